"""llama-server of llama.cpp, started here: the program, with options of build b11434, or the package xllamacpp."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from benchctl.errors import UserError
from benchctl.gguf import SUFFIX
from benchctl.records.schema import EngineInfo
from benchctl.serving import served
from benchctl.serving.dialects import LlamaCppDialect
from benchctl.serving.engine import Deployment, check_gguf
from benchctl.serving.served import Started


@dataclass
class LlamaCpp(Started):
    """The program ``server`` on the target, or on ``gguf``, the same weights as a GGUF file.

    Where there is no llama-server on PATH, the server of the package xllamacpp is used if that is installed.

    ``quantised`` is a file with other weights of this model. Its baseline has the target's weights.
    It drafts ``draft_tokens`` with the model ``draft``, or what followed the last ``ngram`` tokens before. A model that
    is no GGUF file is written as one, with matrices in float16 if the run has `--weights float16`.
    """

    draft: str = ""
    ngram: int = 0
    draft_tokens: int = 5
    gguf: str = ""
    quantised: str = ""
    server: str = "llama-server"
    limit_s: float = 600.0

    dialect = LlamaCppDialect()
    takes_threads = True

    def __post_init__(self) -> None:
        if self.draft and self.ngram:
            raise ValueError("draft and ngram are two ways to draft; name one")
        if self.ngram < 0 or self.draft_tokens < 1:
            raise ValueError("ngram must be at least 0 and draft_tokens at least 1")
        if not (self.draft or self.ngram):
            self.refuse_options("without draft or ngram", "draft_tokens")

    @property
    def has_other_weights(self) -> bool:
        return bool(self.quantised)

    def runs_float16(self, target: str) -> bool:
        return True

    @property
    def _program(self) -> list[str]:
        """The words that start the server, before its options."""
        if self.server == LlamaCpp.server and which(self.server) is None and find_spec("xllamacpp"):
            return [sys.executable, "-P", str(Path(served.__file__).with_name("llama_server.py"))]
        return [self.server]

    def plain(self) -> LlamaCpp:
        return replace(self, draft="", ngram=0, draft_tokens=5, quantised="")

    def check(self, target: str) -> None:
        if which(self._program[0]) is None:
            raise UserError(
                "engine_not_found",
                f"{self.server}: no such program. Install the package xllamacpp (pip install 'benchctl[llama-cpp]'), "
                "put llama-server on PATH, or name it with the option `server`.",
            )
        own = self.gguf or target
        for model in filter(None, (own, self.quantised, self.draft)):
            check_gguf(model)
        if self.draft and self.draft.endswith(SUFFIX) != (self.quantised or own).endswith(SUFFIX):
            raise UserError(
                "mixed_vocabularies",
                "llama.cpp compares the texts of tokens, and files that benchctl writes have other texts. For "
                f"{self.draft} and {self.quantised or own} give two GGUF files, or neither.",
            )

    def command(self, deployment: Deployment, port: int) -> list[str]:
        file = deployment.as_gguf(self.quantised or self.gguf or deployment.target)
        # The cache has the precision of the target; the server's default is float16.
        cache = ["-ctk", "f32", "-ctv", "f32"] if deployment.dtype == "float32" else []
        speculation = []
        if self.draft:
            speculation = ["--spec-type", "draft-simple", "-md", deployment.as_gguf(self.draft), "--spec-draft-n-max"]
            speculation += [str(self.draft_tokens)]
            speculation += ["-ctkd", "f32", "-ctvd", "f32"] if cache else []
        elif self.ngram:
            speculation = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", str(self.ngram)]
            speculation += ["--spec-ngram-simple-size-m", str(self.draft_tokens)]
        return [
            *(*self._program, "-m", file, "--host", "127.0.0.1", "--port", str(port)),
            # One request at a time, no prompt cache, and no idle thread that waits in a loop.
            *("--parallel", "1", "--no-cache-prompt", "--cache-ram", "0", "--poll", "0", "--no-webui"),
            *("-t", str(deployment.threads), "-c", str(deployment.context_tokens)),
            *cache,
            *speculation,
        ]

    def start(self, deployment: Deployment) -> EngineInfo:
        info = super().start(deployment)
        # The package's own build has no number.
        return info if len(self._program) == 1 else replace(info, version=f"xllamacpp {version('xllamacpp')}")
