"""OpenVINO GenAI in this process, on the CPU: `pip install 'benchctl[openvino]'`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchctl import bundled, gguf
from benchctl.errors import UserError
from benchctl.records.schema import EngineInfo
from benchctl.serving.engine import Answer, Chunk, Counts, Deployment, Engine, Question, check_gguf

_MODEL = "openvino_model.xml"
_PRECISION = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


@dataclass
class OpenVINO(Engine):
    """A pipeline on the target, or on ``weights``: the same weights as a GGUF file or as a folder of OpenVINO.

    It drafts ``draft_tokens`` tokens that followed the last ``lookup`` or fewer tokens before, or those of the model
    ``draft``. A model that is no GGUF file is written as one, with matrices in float16 if the run has
    `--weights float16`.
    """

    draft: str = ""
    lookup: int = 0
    draft_tokens: int = 5
    weights: str = ""

    def __post_init__(self) -> None:
        if self.lookup < 0 or self.draft_tokens < 1:
            raise ValueError("lookup must be at least 0 and draft_tokens at least 1")
        if self.draft and self.lookup:
            raise ValueError("draft and lookup are two ways to draft; name one")
        if not (self.draft or self.lookup):
            self.refuse_options("without draft or lookup", "draft_tokens")
        self._pipeline: Any = None

    def runs_float16(self, target: str) -> bool:
        return not (self.weights or target.endswith(gguf.SUFFIX))

    def plain(self) -> OpenVINO:
        return replace(self, draft="", lookup=0, draft_tokens=5)

    def check(self, target: str) -> None:
        if not all(map(find_spec, ("openvino", "openvino_genai"))):
            raise UserError("openvino_not_installed", "OpenVINO is not installed: pip install 'benchctl[openvino]'.")
        for model in filter(None, (target if not self.weights else "", self.draft)):
            check_gguf(model)

    def start(self, deployment: Deployment) -> EngineInfo:
        import openvino_genai

        if deployment.dtype not in _PRECISION:
            raise UserError(
                "number_format",
                f"OpenVINO computes in {', '.join(_PRECISION)}, not in {deployment.dtype}: give another --dtype.",
            )
        path = self.weights or deployment.as_gguf(deployment.target)
        draft = deployment.as_gguf(self.draft) if self.draft else ""
        try:
            properties = self._properties(deployment)
            if draft:
                properties["draft_model"] = openvino_genai.draft_model(_as_folder(draft), "CPU", **properties)
            self._pipeline = openvino_genai.LLMPipeline(path, "CPU", **properties)
        except (RuntimeError, IndexError, ValueError) as error:
            raise UserError(
                "engine_did_not_start", f"OpenVINO cannot load {' or '.join(filter(None, (path, draft)))}: {error}"
            ) from error
        return EngineInfo(
            name="OpenVINO GenAI",
            version=openvino_genai.__version__,
            run="in_process",
            dtype=deployment.dtype,
            threads=deployment.threads,
            prefix_cache="off",
            steps_from="chunks",
        )

    def _properties(self, deployment: Deployment) -> dict[str, Any]:
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False  # the pipeline's own default is True
        scheduler.max_num_batched_tokens = deployment.context_tokens  # a prompt in one pass, as in its own default
        precision = _PRECISION[deployment.dtype]
        return {
            "INFERENCE_NUM_THREADS": deployment.threads,
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # activations keep the format, also with quantised weights
            "scheduler_config": scheduler,
            **({"prompt_lookup": True} if self.lookup else {}),
        }

    def answer(self, question: Question) -> Answer:
        import numpy
        import openvino
        from openvino_genai import GenerationFinishReason

        chunks = list[Chunk]()
        prompt = openvino.Tensor(numpy.array([question.prompt_ids]))
        result = self._pipeline.generate(prompt, self._config(question), _streamer(question.clock, chunks))
        stopped = result.finish_reasons[0] == GenerationFinishReason.STOP
        return Answer(
            tuple(chunks),
            "stop" if stopped else "length",
            self._counts(result, len(chunks) - 1, stopped),
            prompt_tokens=result.perf_metrics.get_num_input_tokens(),
            new_tokens=len(result.tokens[0]),
        )

    def _config(self, question: Question) -> Any:
        import openvino_genai

        config = openvino_genai.GenerationConfig()  # not that of the model's files
        config.do_sample, config.apply_chat_template = False, False
        config.max_new_tokens, config.stop_token_ids = question.max_new_tokens, set(question.stop_ids)
        if self.lookup:
            config.max_ngram_size = self.lookup
        if self.lookup or self.draft:
            config.num_assistant_tokens = self.draft_tokens
        return config

    def _counts(self, result: Any, steps: int, stopped: bool) -> Counts:
        """What it reports of its drafts; nothing with ``lookup``."""
        if not self.draft:
            return Counts(steps) if self.lookup else Counts()
        reported, after_first = result.extended_perf_metrics, len(result.tokens[0]) - 1
        drafted, accepted = reported.get_num_draft_tokens(), reported.get_num_accepted_tokens()
        # Its sums leave out the step that ends the answer.
        is_whole = not stopped and after_first == steps + accepted
        return Counts(steps, drafted, accepted) if is_whole else Counts(steps)

    def stop(self) -> None:
        self._pipeline = None


def _streamer(clock: Callable[[], float], chunks: list[Chunk]) -> Any:
    """Adds a chunk with its time for each step, from now on."""
    import openvino_genai

    started_s = clock()

    class Marks(openvino_genai.StreamerBase):  # type: ignore[misc]  # it has no types
        """Called once in each step, with its tokens."""

        def write(self, token: int | list[int]) -> Any:
            ids = tuple(token) if isinstance(token, list) else (token,)
            chunks.append(Chunk(clock() - started_s, ids))
            return openvino_genai.StreamingStatus.RUNNING

        def end(self) -> None:
            """Nothing is kept back."""

    return Marks()


def _as_folder(file: str) -> str:
    """The folder that OpenVINO writes of a GGUF file, once, in the cache. It reads draft models from such folders only,
    and writes their matrices in float16.

    Raises RuntimeError where OpenVINO cannot read the file.
    """
    import openvino_genai

    source, version = Path(file), openvino_genai.__version__
    out = bundled.cache_folder() / "gguf" / f"{source.stem}-{gguf.sha256_of(source)[:12]}-openvino-{version}"
    if not (out / _MODEL).is_file():
        with gguf.room_for(out, source.stat().st_size * 2) as partial:
            (partial / source.name).symlink_to(source.resolve())
            openvino_genai.LLMPipeline(str(partial / source.name), "CPU", enable_save_ov_model=True)
            (partial / source.name).unlink()
            if not (partial / _MODEL).is_file():
                raise RuntimeError("OpenVINO did not write the model")
            if not (out / _MODEL).is_file():  # another process may have been faster
                shutil.rmtree(out, ignore_errors=True)
                partial.rename(out)
    return str(out)
