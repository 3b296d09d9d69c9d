"""Files of serving benchmarks become rows with the figures that their programs report, and nothing that they lack.

The shapes are those that vLLM 0.32, aiperf 0.13 and guidellm 0.8 write. Values of guidellm come from a run of it.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import cli, ok
from refusals import refused

from benchctl.analysis.comparison import MethodFigures, compare
from benchctl.analysis.metrics.drafting import ACCEPTANCE_RATE, BLOCK_EFFICIENCY
from benchctl.analysis.metrics.faithfulness import TOKEN_AGREEMENT
from benchctl.analysis.metrics.speed import DECODE_SPEEDUP, SPEEDUP, TOKENS_PER_S, TPOT, TTFT
from benchctl.importing import Format
from benchctl.importing.gather import Imported, Source, Terms, gather
from benchctl.records.schema import Row, Totals
from benchctl.records.writer import read

Fields = dict[str, Any]

# Start, first token, last token and end of three requests, with the milliseconds that guidellm reports for them.
GUIDELLM = (
    ((1795602581.609182, 1795602581.7316155, 1795602581.7640665, 1795602581.7644687), 122.43366241455078, 4.635845),
    ((1795602581.770000, 1795602581.7938433, 1795602581.8296778, 1795602581.8300), 23.8433, 5.119214),
    ((1795602581.840000, 1795602581.8631426, 1795602581.8991021, 1795602581.8995), 23.1426, 5.137071),
)


def vllm(scale: float = 1.0, **changed: Any) -> Fields:
    """A result with --save-detailed of two requests, of 8 tokens in 5 chunks and of 4 tokens."""
    requests = {
        "input_lens": [5, 9],
        "output_lens": [8, 4],
        "ttfts": [0.1 * scale, 0.2 * scale],
        "itls": [[0.02 * scale] * 4, [0.02 * scale] * 3],
        "generated_texts": ["one two", "three"],
        "errors": ["", ""],
    }
    usual: Fields = {"date": "20261125-101500", "endpoint_type": "openai", "backend": "openai", "label": None}
    usual |= {"model_id": "org/model", "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 1}
    usual |= {"request_throughput": 2.0, "request_goodput": None, "mean_ttft_ms": 150.0 * scale}
    return usual | {"spec_decode_num_drafts": 9, "spec_decode_draft_tokens": 27} | requests | changed


def aiperf(number: int = 0, latency_ms: float = 100.0, phase: str = "profiling", **changed: Any) -> Fields:
    """A record of 8 tokens; by the server's report 3 steps accepted 4 of 6 drafted tokens."""
    start_ns = 10**18 + number * 10**9
    metadata = {"session_num": number, "conversation_id": f"session_{number:06d}", "turn_index": 0, "worker_id": "w"}
    metadata |= {"request_start_ns": start_ns, "request_end_ns": start_ns + int(latency_ms * 1e6)}
    metadata |= {"record_processor_id": "r", "benchmark_phase": phase, "was_cancelled": False}
    values = {"request_latency": (latency_ms, "ms"), "time_to_first_token": (30, "ms")}
    values |= {"output_sequence_length": (8, "tokens"), "input_sequence_length": (12, "tokens")}
    metrics = {name: {"value": value, "unit": unit} for name, (value, unit) in values.items()}
    counts = {"engine": "vllm", "num_spec_steps": 3, "num_draft_tokens": 6, "num_accepted_draft_tokens": 4}
    return {"metadata": metadata, "metrics": metrics, "spec_decode_acceptance": counts} | changed


def guidellm(**changed: Any) -> Fields:
    def request(number: int) -> Fields:
        start, first, last, end = GUIDELLM[number][0]
        times = {"request_start": start, "first_token_iteration": first, "last_token_iteration": last}
        body = {"model": "mock", "stream": True, "messages": [{"role": "user", "content": f"Prompt {number}."}]}
        return {
            "type_": "generative_request_stats",
            "request_args": json.dumps({"method": None, "stream": True, "body": body}),
            "output": "Score each cause.",
            "info": {"timings": {**times, "request_end": end, "token_iterations": 8}, "error": None},
            "input_metrics": {"text_tokens": 6, "total_tokens": 6},
            "output_metrics": {"text_tokens": 8, "total_tokens": 8},
            "response_metrics": None,
        }

    requests = {"successful": [request(number) for number in range(3)], "incomplete": [], "errored": []} | changed
    return {"metadata": {"version": 2}, "config": {}, "benchmarks": [{"requests": requests}]}


def written(path: Path, *lines: Fields, indent: int | None = None) -> Path:
    path.write_text("\n".join(json.dumps(line, indent=indent) for line in lines) + "\n")
    return path


def gathered(*sources: Path | Source, format: Format | None = None) -> Imported:
    given = [source if isinstance(source, Source) else Source(source) for source in sources]
    return gather(given, Terms(format), name="x")


def figures(folder: Path, *arguments: str) -> dict[str, MethodFigures]:
    """Of what the command writes and `compare` reads."""
    out = folder / "out.jsonl"
    ok(cli("import", *arguments, "--out", out))
    (group,) = compare([read(out)])
    return {method.label: method for method in group.pooled.methods}


def totals_of(row: Row) -> Totals:
    assert row.totals is not None and row.error is None
    return row.totals


def test_vllms_lists_become_rows_with_its_times_and_without_steps(tmp_path: Path) -> None:
    imported = gathered(written(tmp_path / "a.json", vllm()))
    assert gathered(written(tmp_path / "b.json", vllm(), indent=2)).rows == imported.rows
    assert (imported.run.imported, imported.run.order) == ("vllm-bench", "one after another")
    assert (imported.run.created, imported.run.baseline) == ("2026-11-25T10:15:00+00:00", "org/model")
    first, second = imported.rows
    assert (first.prompt_id, first.prompt_tokens, first.text, first.ttft_s) == ("0", 5, "one two", 0.1)
    assert [replace(totals_of(row), wall_s=None) for row in (first, second)] == [
        Totals(new_tokens=8),
        Totals(new_tokens=4),
    ]
    assert [totals_of(row).wall_s for row in (first, second)] == pytest.approx([0.18, 0.26])
    assert first.token_ids == () and first.stop_reason is None
    (method,) = figures(tmp_path, str(tmp_path / "a.json")).values()
    assert method.estimate(TTFT).value == pytest.approx(0.15)
    assert method.estimate(TPOT).value == pytest.approx((0.08 + 0.06) / (7 + 3)), "chunks are no tokens"
    assert method.estimate(TOKENS_PER_S).value == pytest.approx(12 / 0.44)
    assert [method.estimate(metric).value for metric in (BLOCK_EFFICIENCY, ACCEPTANCE_RATE)] == [None, None]


def test_two_files_of_one_model_are_compared_by_their_labels(tmp_path: Path) -> None:
    written(tmp_path / "plain.json", vllm())
    written(tmp_path / "fast.json", vllm(0.5))
    found = figures(tmp_path, f"plain={tmp_path}/plain.json", f"fast={tmp_path}/fast.json")
    assert found["fast"].estimate(SPEEDUP).value == pytest.approx(2.0)
    assert found["fast"].estimate(DECODE_SPEEDUP).value == pytest.approx(2.0)
    assert found["fast"].estimate(TOKEN_AGREEMENT).value is None and not found["fast"].lossless
    labelled = written(tmp_path / "c.json", vllm(0.25, label="faster"))
    assert gathered(tmp_path / "plain.json", labelled).run.methods[1].label == "faster"


def test_aiperfs_records_have_the_servers_counts_where_these_explain_all_tokens(tmp_path: Path) -> None:
    usage = {"usage_completion_tokens": {"value": 9, "unit": "tokens"}}
    records = [
        aiperf(0, 900.0, "warmup"),
        aiperf(0),
        aiperf(1, metrics=aiperf(1)["metrics"] | usage),
        aiperf(2, metrics={}, error={"code": 500, "message": "broken"}, spec_decode_acceptance=None),
    ]
    path = written(tmp_path / "a.jsonl", *records)
    imported = gathered(Source(path, "fast"))
    whole, odd, failed = imported.rows
    assert (whole.prompt_id, whole.ttft_s, whole.prompt_tokens) == ("session_000000", 0.03, 12)
    # Steps that drafted nothing are not among the counts: what is left would be the answers that are easy to draft.
    assert totals_of(whole) == Totals(new_tokens=8, wall_s=0.1)
    assert totals_of(odd) == Totals(new_tokens=9, wall_s=0.1)
    assert failed.error is not None and (failed.totals, failed.ttft_s) == (None, None)
    assert [notice.split()[0] for notice in imported.notices[:2]] == ["1", "1"]
    written(path, aiperf(0), aiperf(1))
    (method,) = figures(tmp_path, f"fast={path}").values()
    assert method.estimate(BLOCK_EFFICIENCY).value == pytest.approx(14 / 6)
    assert method.estimate(ACCEPTANCE_RATE).value == pytest.approx(4 / 6)
    assert method.estimate(TPOT).value == pytest.approx(0.07 / 7)


def test_counts_of_a_request_that_was_not_streamed_are_left_out(tmp_path: Path) -> None:
    """Without a first token all 8 tokens counted as those of the 3 steps, which came after it."""
    record = aiperf(0)
    del record["metrics"]["time_to_first_token"]
    (row,) = gathered(Source(written(tmp_path / "a.jsonl", record), "a")).rows
    assert (row.ttft_s, totals_of(row)) == (None, Totals(new_tokens=8, wall_s=0.1))


def test_later_turns_may_have_other_lengths_since_they_follow_other_answers(tmp_path: Path) -> None:
    """Conversations of two turns were refused as other prompts."""

    def talk(label: str, later_tokens: int) -> Source:
        first, second = aiperf(0), aiperf(1)
        second["metadata"] |= {"conversation_id": "session_000000", "turn_index": 1}
        second["metrics"] |= {"input_sequence_length": {"value": later_tokens, "unit": "tokens"}}
        return Source(written(tmp_path / f"{label}.jsonl", first, second), label)

    rows = gathered(talk("plain", 40), talk("fast", 44)).rows
    assert [(row.label, row.turn, row.prompt_tokens) for row in rows] == [
        *(("plain", 0, 12), ("plain", 1, 40)),
        *(("fast", 0, 12), ("fast", 1, 44)),
    ]


def test_guidellms_requests_have_the_times_that_it_reports(tmp_path: Path) -> None:
    imported = gathered(written(tmp_path / "a.json", guidellm()))
    assert (imported.run.imported, imported.run.baseline) == ("guidellm", "mock")
    assert len({row.prompt_id for row in imported.rows}) == 3
    for row, (_, ttft_ms, gap_ms) in zip(imported.rows, GUIDELLM, strict=True):
        assert row.ttft_s == pytest.approx(ttft_ms / 1e3, abs=1e-6)
        assert row.decode_s / 7 == pytest.approx(gap_ms / 1e3, abs=1e-6)
        assert totals_of(row).new_tokens == 8 and totals_of(row).steps is None


def test_guidellms_counts_of_the_server_are_kept_and_its_counts_of_chunks_are_not(tmp_path: Path) -> None:
    reported, silent, cut = guidellm()["benchmarks"][0]["requests"]["successful"]
    counts = {"num_spec_steps": 2, "num_draft_tokens": 8, "num_accepted_draft_tokens": 5}
    reported |= {"response_metrics": {"speculative_decoding": counts}}
    silent |= {"output_metrics": {"total_tokens": None}, "output_tokens": 8}
    failed = cut | {"request_args": None}
    path = written(tmp_path / "a.json", guidellm(successful=[reported, silent], incomplete=[cut], errored=[failed]))
    imported = gathered(path)
    first, second = map(totals_of, imported.rows)
    assert (first.steps, first.drafted, first.accepted) == (2, 8, 5)
    assert second.new_tokens is None and second.wall_s is not None
    assert [notice.split()[0] for notice in imported.notices[:2]] == ["1", "1"]


def test_requests_with_one_prompt_are_its_repeats(tmp_path: Path) -> None:
    imported = gathered(Source(written(tmp_path / "a.jsonl", aiperf(0), aiperf(1), aiperf(0)), "a"))
    assert [(row.prompt_id[-1], row.repeat) for row in imported.rows] == [("0", 0), ("1", 0), ("0", 1)]
    assert (imported.run.repeats, imported.run.suites[0].prompts) == (2, 2)


def test_failed_requests_of_vllm_have_no_numbers(tmp_path: Path) -> None:
    trace = 'Traceback:\n  File "/home/me/x.py"\nTimeoutError: late'
    imported = gathered(written(tmp_path / "a.json", vllm(errors=["", trace], output_lens=[8, 0])))
    assert [row.error is None for row in imported.rows] == [True, False]
    assert "/home" not in str(imported.rows[1].error) and imported.rows[1].totals is None
    not_streamed = gathered(written(tmp_path / "b.json", vllm(ttfts=[0.0, 0.0], itls=[[], []])))
    assert {(row.ttft_s, totals_of(row).wall_s) for row in not_streamed.rows} == {(None, None)}


@pytest.mark.parametrize(
    ("changed", "order"),
    [
        ({"max_concurrency": None}, "an unknown number at once"),
        ({"max_concurrency": 8, "start_times": [5.0, 5.1], "ttfts": [0.1, 0.0]}, "an unknown number at once"),
        ({"max_concurrency": 8, "start_times": [5.0, 5.1]}, "up to 2 at once"),
        ({"max_concurrency": 8, "start_times": [5.0, 5.2]}, "one after another"),
    ],
)
def test_requests_that_ran_at_once_are_told(changed: Fields, order: str, tmp_path: Path) -> None:
    imported = gathered(written(tmp_path / "a.json", vllm(**changed)))
    assert imported.run.order == order
    assert len(imported.notices) == 1 + (order != "one after another")


def _vllm_without(*names: str) -> Fields:
    return {name: value for name, value in vllm().items() if name not in names}


MEANS = _vllm_without("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors")
AGGREGATE = {"schema_version": "1.4", "aiperf_version": "0.13.0", "request_latency": {"unit": "ms", "avg": 5.0}}
BACKWARDS = guidellm()["benchmarks"][0]["requests"]["successful"][0]
BACKWARDS["info"]["timings"]["first_token_iteration"] += 10.0
NO_PROMPTS = [guidellm()["benchmarks"][0]["requests"]["successful"][0] | {"request_args": None}]


@pytest.mark.parametrize(
    ("write", "id"),
    [
        (lambda path: written(path, MEANS), "only_means"),
        (lambda path: written(path, AGGREGATE, indent=2), "only_means"),
        (lambda path: written(path, guidellm(successful=NO_PROMPTS)), "only_means"),
        (lambda path: written(path, guidellm(successful=[])), "only_means"),
        (lambda path: written(path, vllm(), vllm()), "several_loads"),
        (lambda path: written(path, guidellm() | {"benchmarks": guidellm()["benchmarks"] * 2}), "several_loads"),
        (lambda path: written(path, vllm(ttfts=[0.1])), "not_as_published"),
        (lambda path: written(path, vllm(ttfts=[-0.1, 0.2])), "not_as_published"),
        (lambda path: written(path, vllm(ttfts=[1e6, 0.2])), "not_as_published"),
        (lambda path: written(path, guidellm(successful=[BACKWARDS])), "not_as_published"),
        (
            lambda path: written(path, aiperf() | {"metrics": {"request_latency": {"value": 1, "unit": "s"}}}),
            "not_as_published",
        ),
        (lambda path: written(path, guidellm(errored=None)), "not_as_published"),
        (lambda path: written(path, aiperf()), "needs_a_label"),
    ],
)
def test_files_that_cannot_be_used_are_refused(write: Callable[[Path], Path], id: str, tmp_path: Path) -> None:
    with refused(id, "a.json"):
        gathered(write(tmp_path / "a.json"))


def test_a_later_line_that_is_no_object_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", aiperf())
    path.write_text(path.read_text() + "{\n")
    with refused("no_object", "a.json:2"):
        gathered(Source(path, "a"))


def test_files_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    plain, many = written(tmp_path / "a.json", vllm()), written(tmp_path / "b.json", vllm(0.7, max_concurrency=4))
    others = written(tmp_path / "c.json", vllm(0.5, input_lens=[5, 8]))
    with refused("needs_a_label", "b.json", "org/model"):
        gathered(plain, many)
    with refused("other_load", "a", "b"):
        gathered(Source(plain, "a"), Source(many, "b"))
    with refused("other_load", "a"):
        gathered(Source(plain, "a"), Source(many, "a"))
    for label in ("a", "c"):
        with refused("other_prompts", "9", "8"):
            gathered(Source(plain, "a"), Source(others, label))
    with refused("other_prompts", "d"):
        gathered(Source(plain, "a"), Source(written(tmp_path / "d.jsonl", aiperf()), "d"))


def test_a_format_that_is_given_is_not_guessed(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", vllm())
    assert len(gathered(path, format="vllm-bench").rows) == 2
    with refused("not_as_published", "a.json"):
        gathered(path, format="guidellm")
    with refused("not_as_published", "a.json:1"):
        gathered(path, format="eagle")
