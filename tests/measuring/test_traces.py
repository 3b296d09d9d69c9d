"""Routing traces: read as they were written, recorded from a real run, refused with file and line if broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from offloading import visit
from tiny import tiny_folder

from benchctl.decoding.experts.trace import Trace, Visit, read_trace, write_trace
from benchctl.errors import UserError
from benchctl.measuring.prompts.files import Prompt
from benchctl.measuring.tracing import Recording, record

VISITS = (
    Visit(0, (1, 3), {1: (0, 2)}, 0.1, 0.02, 0.3),
    Visit(1, (0,), {}, 0.4, 0.0, 0.5),
    visit(0, 2),
    visit(1, 2),
)
ELSEWHERE = json.dumps({**dict.fromkeys(("generation", "before_s", "predict_s", "experts_s"), 0), "layer": 9,
                        "experts": [0], "predicted": {}})  # fmt: skip
TRACE = Trace("by hand", True, 2, 4, 2, 1000, (VISITS, VISITS[:2]), tpot_s=0.5, stall_s=0.25)
PROMPTS = (Prompt("a", "koala", ("Say something.",)), Prompt("b", "koala", ("And then?",)))


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(path, TRACE)
    assert read_trace(path) == TRACE
    assert len(path.read_text().splitlines()) == 1 + 6


def test_tokens_are_the_passes_after_each_first() -> None:
    assert TRACE.tokens == 1


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (0, "nonsense", ":1: is not a JSON object"),
        (0, '{"kind": "run"}', ":1: is not a trace of this version"),
        (0, '{"kind": "trace", "schema_version": 1, "layers": 2}', ":1: lacks 'source'"),
        (2, "[]", ":3: is not a JSON object"),
        (2, '{"kind": "visit"}', ":3: is not a visit"),
        (3, ELSEWHERE, ":4: visits layer 9"),
    ],
)
def test_a_broken_trace_is_refused_with_its_line(tmp_path: Path, line: int, text: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(path, TRACE)
    lines = path.read_text().splitlines()
    lines[line] = text
    path.write_text("\n".join(lines))
    with pytest.raises(UserError, match=message):
        read_trace(path)


def test_a_trace_that_is_not_there_or_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="cannot be written"):
        write_trace(tmp_path / "no" / "folder.jsonl", TRACE)


def test_a_recorded_trace_holds_every_visit_of_every_answer(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "moe", "olmoe", stop_ids=())
    trace = record(Recording(str(folder), "expert_offload[prefetch=next_gate,capacity=18]", PROMPTS, 5))
    assert (trace.layers, trace.experts, trace.top_k, trace.expert_bytes) == (3, 6, 2, 4 * 3 * 32 * 48)
    assert (trace.synthetic, trace.tokens, len(trace.generations)) == (False, 8, 2)
    for generation in trace.generations:
        assert [found.layer for found in generation] == [0, 1, 2] * 5
        assert {len(found.experts) for found in generation[3:]} == {2}
        assert [sorted(found.predicted) for found in generation[3:6]] == [[1], [2], []]
        assert all(found.before_s > 0 and found.experts_s > 0 for found in generation)
    assert trace.tpot_s > trace.stall_s >= 0


@pytest.mark.parametrize(
    ("family", "label", "message"),
    [
        ("llama", "expert_offload", "cannot run on .*: the target is dense"),
        ("olmoe", "expert_offload[capacity=1]", "capacity 1 is below the 2 experts a token needs"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_weights_are_read(
    tmp_path: Path, family: str, label: str, message: str
) -> None:
    folder = tiny_folder(tmp_path / "model", family)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=message):
        record(Recording(str(folder), label, PROMPTS, 3))


def test_a_method_that_loads_no_experts_has_no_trace(tmp_path: Path) -> None:
    """It is refused before weights are read: here there are none."""
    folder = tiny_folder(tmp_path / "model", "olmoe")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="prompt_lookup loads no experts"):
        record(Recording(str(folder), "prompt_lookup", PROMPTS, 3))
