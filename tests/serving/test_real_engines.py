"""Engines that are installed here, on a tiny GGUF file: the target's own tokens, and steps as the engines report them.

Left out unless asked for with -m engines. They need `pip install 'benchctl[gguf,llama-cpp,openvino]'`.
llama-server is used instead of xllamacpp where it is on PATH.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Literal

import pytest
from fixtures_run import make_settings, measure_file, measured, write_prompts
from ggufs import bpe, tiny, write_gguf
from refusals import refused

from benchctl.gguf import converted
from benchctl.measuring.settings import AnswerSettings, ModelSettings, PromptSettings
from benchctl.records.schema import Row
from benchctl.records.writer import RunFile
from benchctl.registry import build_engine, parse_label

pytestmark = pytest.mark.engines
openvino = pytest.mark.skipif(find_spec("openvino_genai") is None, reason="openvino-genai is not installed here")
llama_server = pytest.mark.skipif(
    not (which("llama-server") or find_spec("xllamacpp")), reason="neither llama-server nor xllamacpp is installed here"
)

NEW_TOKENS, NGRAM, DRAFT_TOKENS = 40, 2, 5
PROMPTS = [
    {"id": str(number), "prompt": text} for number, text in enumerate(("été été été", "x ** 2 x ** 2", "12,345"))
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    write_prompts(tmp_path / "prompts.jsonl", PROMPTS)
    return tmp_path


def runs(
    folder: Path, label: str, kind: Literal["F16", "F32"], new_tokens: int = NEW_TOKENS, as_folder: bool = False
) -> tuple[RunFile, dict[str, Row]]:
    """The run of an engine on weights of this type, and the rows of our own loop on the same file.

    `{model}` in the label is the target: a GGUF file, or the folder that it is converted to.
    """
    tokenizer = bpe("gpt-2")
    model = tiny("llama", tokenizer.get_vocab_size())
    write_gguf(folder / "tiny.gguf", model, "llama", tokenizer, "gpt-2", kind=kind)
    name = str(converted(folder / "tiny.gguf", folder / "models") if as_folder else folder / "tiny.gguf")
    settings = replace(
        make_settings(folder, folder / "out.jsonl"),
        prompts=PromptSettings(benches=(str(folder / "prompts.jsonl"),)),
        models=ModelSettings(name, device="cpu"),
        answers=AnswerSettings(max_new_tokens=new_tokens),
    )
    engine = measure_file(replace(settings, methods=(label.format(model=name),)))
    ours = measure_file(replace(settings, methods=("autoregressive",), out=folder / "ours.jsonl"))
    return engine, {row.prompt_id: row for row in measured(ours)}


def check_tokens(file: RunFile, ours: dict[str, Row]) -> None:
    assert len(measured(file)) == 12
    for row in measured(file):
        assert row.error is None and row.token_ids == ours[row.prompt_id].token_ids
        assert row.fidelity["target_agreed_tokens"] == row.fidelity["scored_tokens"] == len(row.token_ids)
        assert row.verdict == (None if row.label == file.run.baseline else "identical")
        if row.label == file.run.baseline:
            assert row.committed == (1,) * (len(row.token_ids) - 1)


def naive_steps(prompt_ids: Sequence[int], answer: Sequence[int]) -> list[int]:
    """The tokens of each step of prompt lookup: what followed the first place of the last NGRAM or fewer tokens."""
    text, end, sizes = [*prompt_ids, answer[0]], len(prompt_ids) + len(answer), [1]
    whole = [*prompt_ids, *answer]
    while len(text) < end:
        draft: list[int] = []
        for size in range(NGRAM, 0, -1):
            places = [place for place in range(len(text) - size) if text[place : place + size] == text[-size:]]
            if places:
                draft = text[places[0] + size :][: min(DRAFT_TOKENS, end - len(text) - 1)]
                break
        accepted = 0
        while accepted < len(draft) and draft[accepted] == whole[len(text) + accepted]:
            accepted += 1
        sizes.append(accepted + 1)
        text = whole[: len(text) + accepted + 1]
    return sizes


def children() -> set[str]:
    """The processes that this one started and that still run."""
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


@openvino
def test_openvino_answers_as_our_own_loop_does(folder: Path) -> None:
    before = children()
    file, ours = runs(folder, f"openvino[lookup={NGRAM}]", "F16")
    check_tokens(file, ours)
    info = file.run.methods[1].engine
    assert info is not None and (info.run, info.dtype) == ("in_process", "float32")
    speculative = [row for row in measured(file) if row.label != file.run.baseline]
    for row in speculative:
        (prompt,) = (each["prompt"] for each in PROMPTS if each["id"] == row.prompt_id)
        prompt_ids = bpe("gpt-2").encode(f"<|im_start|>user\n{prompt}<|im_end|>\n").ids
        assert len(prompt_ids) == row.prompt_tokens
        assert row.arrived_tokens == tuple(naive_steps(prompt_ids, row.token_ids))
        assert row.totals is None or row.totals.steps == len(row.arrived_tokens) - 1
    assert max(max(row.arrived_tokens) for row in speculative) > 3, "drafts were accepted"
    assert children() == before


@openvino
@pytest.mark.parametrize(("new_tokens", "are_reported"), [(NEW_TOKENS, False), (NEW_TOKENS + 1, True)])
def test_openvino_drafts_with_a_model(folder: Path, new_tokens: int, are_reported: bool) -> None:
    """With the target itself all drafts are right: after the first token 13 steps of three, and a last one without a
    draft if there is a token more. OpenVINO does not report what it drafted in a last step of three."""
    file, ours = runs(folder, "openvino[draft={model},draft_tokens=2]", "F16", new_tokens)
    check_tokens(file, ours)
    for row in measured(file):
        if row.label != file.run.baseline:
            assert row.totals is not None and row.totals.steps == 13 + are_reported
            assert (row.totals.drafted, row.totals.accepted) == ((26, 26) if are_reported else (None, None))


@openvino
def test_a_hub_id_whose_files_are_not_here_is_refused_before_anything_is_loaded() -> None:
    with refused("not_fetched"):
        build_engine(parse_label("openvino")).check("owner/name")


@llama_server
@pytest.mark.parametrize("speculation", [f"ngram={NGRAM}", "draft={model}"])
def test_llama_server_answers_as_our_own_loop_does(speculation: str, folder: Path) -> None:
    before = children()
    file, ours = runs(folder, f"llama_cpp[{speculation},draft_tokens={DRAFT_TOKENS}]", "F32", as_folder=True)
    check_tokens(file, ours)
    info = file.run.methods[1].engine
    assert info is not None and (info.run, info.dtype, info.steps_from) == ("started", "float32", "counts")
    assert info.version.startswith("xllamacpp 20" if which("llama-server") is None else "b")
    assert str(folder) not in " ".join(info.command)
    speculative = [row for row in measured(file) if row.label != file.run.baseline]
    sums = [row.totals for row in speculative if row.totals is not None and row.totals.accepted is not None]
    assert sums and all(of.steps is None and (of.accepted or 0) <= (of.drafted or 0) for of in sums)
    if speculation.startswith("draft"):  # a draft model with the target's weights is always right
        assert sum(of.accepted or 0 for of in sums) > 0
    assert children() == before


@llama_server
def test_llama_server_keeps_parts_of_characters_back(folder: Path) -> None:
    """Of a GGUF file with the tokenizer of a real model: such an answer is an error, and no other is wrong."""
    file, ours = runs(folder, f"llama_cpp[ngram={NGRAM}]", "F32")
    lost = [row for row in measured(file) if row.error is not None]
    assert lost and all("tokens_lost" in (row.error or "") for row in lost)
    assert all(row.token_ids == ours[row.prompt_id].token_ids for row in measured(file) if row.error is None)


@llama_server
def test_llama_server_is_measured_on_a_family_that_our_layers_do_not_know(folder: Path) -> None:
    """Ministral 3 computes as Llama does within its first context, so llama.cpp's answers are those of our own loop."""
    ours = runs(folder, f"llama_cpp[ngram={NGRAM}]", "F32", as_folder=True)[1]
    (file,) = (folder / "models").glob("*/config.json")
    known = json.loads(file.read_text())
    rope = {**known["rope_parameters"], "original_max_position_embeddings": known["max_position_embeddings"]}
    other = known | {"model_type": "ministral3", "architectures": ["Ministral3ForCausalLM"]}
    (weights,) = (folder / "cache" / "gguf").glob("*.gguf")
    unknown = folder / "unknown"
    shutil.copytree(file.parent, unknown)
    (unknown / "config.json").write_text(json.dumps(other | {"rope_parameters": rope | {"llama_4_scaling_beta": 0.0}}))
    settings = replace(
        make_settings(folder, folder / "unknown.jsonl"),
        prompts=PromptSettings(benches=(str(folder / "prompts.jsonl"),)),
        models=ModelSettings(str(unknown), device="cpu"),
        answers=AnswerSettings(max_new_tokens=NEW_TOKENS),
        methods=(f"llama_cpp[ngram={NGRAM},gguf={weights}]",),
    )
    found = measure_file(settings)
    assert found.run.target.family == "ministral3" and len(measured(found)) == 12
    assert all(row.error is None and row.token_ids == ours[row.prompt_id].token_ids for row in measured(found))
