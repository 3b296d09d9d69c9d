"""Records keep what a run measured, whatever happens to the run, and refuse what cannot be true."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures_records import DRAFTED, RUN, baseline_row, batch, drafted_row, exiting_row, failed, write
from refusals import refused

from benchctl.analysis.comparison import compare
from benchctl.errors import InvalidData, UserError
from benchctl.records.labels import current_label, note_rename
from benchctl.records.reader import batch_keys, row_key
from benchctl.records.schema import Row, Run, Totals, to_line
from benchctl.records.writer import Writer, check_output, read, scan

ROWS = [baseline_row("p0"), drafted_row("p0"), exiting_row("p0"), failed(baseline_row("p1"))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def test_a_file_gives_back_the_run_and_rows_that_were_written(path: Path) -> None:
    path = path.parent / "new" / "run.jsonl"
    with Writer(path, RUN, resume=True) as writer:
        assert writer.stored.rows == ()
        for row in ROWS:
            writer.append(row)
    found = read(path)
    assert (found.run, found.rows, found.notices) == (RUN, tuple(ROWS), ())
    assert row_key(ROWS[1]) == ("koala", "p0", 0, DRAFTED, 0, 0, "free")


@pytest.mark.parametrize(
    ("last", "problem"),
    [(b'{"kind": "row", "sui\n', "Invalid JSON"), (b"garbage\n", "Invalid JSON"), (b"\n", "the line is empty")],
)
def test_a_last_line_that_is_whole_and_wrong_was_not_torn_and_stays(path: Path, last: bytes, problem: str) -> None:
    content = write(path, ROWS[:1]).read_bytes() + last
    path.write_bytes(content)
    with pytest.raises(InvalidData, match=f"run.jsonl:3: {problem}"):
        read(path)
    with pytest.raises(InvalidData, match="run.jsonl:3: "), Writer(path, RUN, resume=True):
        pass
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("changes", "id", "facts"),
    [
        ({"max_new_tokens": 128}, "other_settings", r"max_new_tokens.*\b64\b.*\b128\b"),
        ({"context_fill": 5}, "other_settings", r"context_fill.*\b0\b.*\b5\b"),
        ({"modes": ("free", "replay")}, "other_settings", "modes.*replay"),
        ({"target": replace(RUN.target, weights_sha256="zz")}, "other_settings", r"target.*\baa\b.*\bzz\b"),
        ({"methods": RUN.methods[:2]}, "other_settings", "methods.*early_exit"),
        ({"methods": RUN.methods[::-1]}, "other_settings", "methods.*order"),
        (
            {"methods": (*RUN.methods[:2], replace(RUN.methods[2], modules_sha256="0123456789"))},
            "other_settings",
            "methods.*early_exit.*modules_sha256",
        ),
        (
            {"methods": (*RUN.methods[:2], replace(RUN.methods[2], unsupported="no room"))},
            "other_settings",
            "methods.*early_exit.*unsupported",
        ),
        (  # `doctor` is not compared
            {"methods": (*RUN.methods[:2], replace(RUN.methods[2], source_sha256="ff", doctor="failed"))},
            "other_settings",
            "methods(?!.*doctor).*early_exit.*source_sha256",
        ),
        ({"suites": (replace(RUN.suites[0], prompts=3),)}, "other_settings", r"suites.*koala.*\b20\b.*koala.*\b3\b"),
        ({"suites": (replace(RUN.suites[0], exact_answers={"p0": ("4",)}),)}, "other_settings", "suites"),
        ({"batch_size": 2}, "other_settings", r"batch_size.*\b1\b.*\b2\b"),
        ({"versions": {"torch": "3"}}, "other_versions", "torch was 2 and is 3"),
        ({"machine": {"cpu": "B", "gpu": ""}}, "other_machine", r"\bcpu\b"),
    ],
)
def test_resuming_with_other_settings_names_the_field(path: Path, changes: dict[str, Any], id: str, facts: str) -> None:
    """The facts in their order: what the file has before what the run has."""
    before = write(path, ROWS).read_bytes()
    with pytest.raises(UserError, match=facts) as caught, Writer(path, replace(RUN, **changes), resume=True):
        pass
    assert caught.value.id == id and path.read_bytes() == before


def test_what_an_earlier_version_did_not_record_is_no_other_setting(path: Path) -> None:
    """Stop tokens of target and draft model, and the commit. Known ones count, and are named."""

    def run_of(ids: tuple[int, ...], commit: str) -> Run:
        model = replace(RUN.target, stop_ids=ids)
        return replace(RUN, target=model, draft=model, commit=commit)

    write(path, ROWS, run_of((), ""))
    with Writer(path, run_of((2,), "abc"), resume=True):
        pass
    write(path, ROWS, run_of((7,), "abc"))
    for run, id, fact in (
        (run_of((2,), "abc"), "other_settings", "stop_ids"),
        (run_of((7,), "d"), "other_versions", "d"),
    ):
        with refused(id, fact), Writer(path, run, resume=True):
            pass


def test_a_plug_in_examined_since_then_is_no_other_setting(path: Path) -> None:
    write(path, ROWS, replace(RUN, methods=(RUN.methods[0], replace(RUN.methods[1], doctor="never"), RUN.methods[2])))
    methods = (RUN.methods[0], replace(RUN.methods[1], doctor="passed"), RUN.methods[2])
    with Writer(path, replace(RUN, methods=methods), resume=True):
        pass


def test_old_and_new_labels_are_pooled(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of `m2r2[mode=dynamic]` and of `m2r2_dynamic` stood in two lines of a table."""
    old, new = "m2r2[mode=dynamic,threshold=0.3]", "m2r2_dynamic[threshold=0.3]"
    current_label.cache_clear()
    note_rename.cache_clear()
    before = write_labelled(path, old, options={"mode": "dynamic", "threshold": 0.3}).read_bytes()
    (group,) = compare([scan(path), scan(write_labelled(tmp_path / "new.jsonl", new, options={"threshold": 0.3}))])
    assert [method.label for method in group.pooled.methods] == [RUN.baseline, new]
    file = read(path)
    assert {row.label for row in file.rows} == {RUN.baseline, new}
    assert (file.run.methods[1].name, file.run.methods[1].options) == ("m2r2_dynamic", {"threshold": 0.3})
    assert capsys.readouterr().err.count(new.partition("[")[0]) == 1
    assert path.read_bytes() == before


def write_labelled(path: Path, label: str, options: dict[str, Any]) -> Path:
    """A run of the baseline and one method under this label."""
    method = replace(RUN.methods[1], label=label, name=label.partition("[")[0], options=options)
    return write(path, [ROWS[0], replace(ROWS[1], label=label)], replace(RUN, methods=(RUN.methods[0], method)))


def test_resuming_later_in_another_load_is_the_same_run(path: Path) -> None:
    suites = (replace(RUN.suites[0], categories={"p0": "maths"}),)  # which earlier versions did not record
    machine = {**RUN.machine, "load_average": [3.0, 2.0, 1.0]}
    later = replace(RUN, name="later", command=("again",), machine=machine, suites=suites)
    with Writer(write(path, ROWS), later, resume=True) as writer:
        assert writer.stored.run == RUN


def test_output_is_checked_before_anything_slow(path: Path) -> None:
    check_output(path)
    check_output(path.parent / "new" / "folder" / "run.jsonl")
    assert list(path.parent.iterdir()) == []
    write(path, [])
    check_output(path, resume=True)
    for unfit, id, option in [
        (path, "file_exists", "--resume"),
        (path.parent, "cannot_write", "--out"),
        (Path("/dev/null"), "cannot_write", "--out"),
        (path / "below.jsonl", "cannot_write", "--out"),
        (Path("/proc/run.jsonl"), "cannot_write", "--out"),
    ]:
        with refused(id, f"{unfit}: ", option), Writer(unfit, RUN):
            pass


def with_first(old: str, new: str) -> bytes:
    """The first line with one text replaced."""
    assert old.encode() in to_line(RUN)
    return to_line(RUN).replace(old.encode(), new.encode())


@pytest.mark.parametrize(
    ("content", "id", "facts"),
    [
        (b"", "empty_file", ["run.jsonl"]),
        (b"\n\n", "empty_file", ["run.jsonl"]),
        (b"a,b\n1,2\n", "not_a_results_file", ["run.jsonl:1:"]),
        (b"\xef\xbb\xbf" + to_line(RUN), "byte_order_mark", ["run.jsonl:1:"]),
        (b"\xff\xfe\n", "not_a_results_file", ["run.jsonl:1:"]),
        (b"[" * 9000, "not_a_results_file", ["run.jsonl:1:"]),
        (with_first('"kind":"run"', '"kind":"walk"'), "not_a_results_file", ["run.jsonl:1:"]),
        (with_first('"schema_version":6', '"schema_version":true'), "broken_line", ["run.jsonl:1:", "schema_version"]),
        (
            with_first('"schema_version":6', '"schema_version":7,"wonder":1'),
            "newer_version",
            ["run.jsonl:1:", "schema 7", "reads 6"],
        ),
        (with_first('"kind":"run"', '"kind":"run","wonder":true'), "broken_line", ["run.jsonl:1:", "wonder"]),
        (with_first('"dtype":"float32",', ""), "broken_line", ["run.jsonl:1:", "dtype"]),
        (
            with_first('"baseline":"auto', '"baseline":"other'),
            "broken_line",
            ["run.jsonl:1:", "baseline", "'otherregressive'"],
        ),
    ],
)
def test_a_file_of_something_else_is_named(path: Path, content: bytes, id: str, facts: Sequence[str]) -> None:
    with refused("cannot_read", "run.jsonl"):
        read(path)
    path.write_bytes(content)
    with refused(id, *facts):
        read(path)


@pytest.mark.parametrize(
    ("old", "new", "id", "facts"),
    [
        (b'"ttft_s":2.0', b'"ttft_s":NaN', "broken_line", ["JSON"]),
        (b'"ttft_s":2.0', b'"ttft_s":-2.0', "broken_line", ["ttft_s"]),
        (b'"step_s":[1.0', b'"step_s":[1e999', "broken_line", ["step_s[0]"]),
        (b'"step_s":[1.0', b'"step_s":[-0.5', "broken_line", ["step_s[0]"]),
        (b'"committed":[1,', b'"committed":[-1,', "broken_line", ["committed[0]"]),
        (b'"token_ids":[0,', b'"token_ids":[', "broken_line", ["8 token_ids", "committed 9"]),
        (b'"label":"auto', b'"label":"other', "row_not_of_run", ["'otherregressive'", "line 1"]),
        (b'"kind":"row"', b'"kind":"row","wonder":1', "broken_line", ["wonder"]),
        (b'"kind":"row"', b'"kind":"row"}', "broken_line", []),
        (b'"layers":[12', b'"layers":[13', "row_not_of_run", ["109 layers", "9 tokens", "12 layers"]),
        (b'"token_ids":[0', b'"token_ids":[4096', "row_not_of_run", ["token 4096", "of 4096"]),
    ],
)
def test_a_broken_line_in_the_middle_is_named_with_its_number(
    path: Path, old: bytes, new: bytes, id: str, facts: Sequence[str]
) -> None:
    lines = write(path, ROWS).read_bytes().splitlines(keepends=True)
    assert old in lines[1]
    lines[1] = lines[1].replace(old, new)
    path.write_bytes(b"".join(lines))
    with refused(id, "run.jsonl:2:", *facts):
        read(path)


def test_what_is_as_much_as_there_can_be_is_read(path: Path) -> None:
    """A token may carry the layers that were caught up for an earlier one."""
    caught_up = replace(ROWS[0], token_ids=(4095,) * 9, layers=(12, 6, 18, *(12,) * 6))
    assert read(write(path, [caught_up], replace(RUN, max_new_tokens=9))).rows == (caught_up,)
    with refused("row_not_of_run", "run.jsonl:2", "9 token_ids", "8 max_new_tokens"):
        read(write(path, [caught_up], replace(RUN, max_new_tokens=8)))


def test_the_prompt_of_an_encoder_takes_no_room_of_the_answer(path: Path) -> None:
    """A run on T5 whose prompt and answer together exceed the context could be neither compared nor resumed."""
    row, target = replace(ROWS[0], prompt_tokens=8), replace(RUN.target, family="t5", context_tokens=9)
    assert read(write(path, [row], replace(RUN, target=target))).rows == (row,)
    for other in (replace(target, context_tokens=8), replace(target, family="llama")):
        with refused("row_not_of_run", "run.jsonl:2", "8 prompt_tokens", "9 token_ids"):
            read(write(path, [row], replace(RUN, target=other)))


def test_the_same_generation_twice_is_named_with_both_lines(path: Path) -> None:
    with refused("line_twice", "run.jsonl:4", "line 2"):
        read(write(path, [ROWS[0], ROWS[1], ROWS[0]]))


DRAFTED_ROW = drafted_row()
SHORT = baseline_row(tokens=3)  # a token in each step, which is checked by a shorter way


@pytest.mark.parametrize(
    ("row", "changes", "message"),
    [
        (SHORT, {"committed": (2, 1), "token_ids": (0, 1, 2, 3), "layers": (12,) * 4}, "step 0: 2 committed, 0 accep"),
        (SHORT, {"accepted": (0, 1)}, "step 1: 1 committed, 1 accepted of 0 drafted"),
        (SHORT, {"drafted": (0, 1)}, "has a row of the target for each drafted token"),
        (SHORT, {"committed": (2, 1)}, "3 token_ids, but prefill and steps committed 4"),
        (DRAFTED_ROW, {"accepted": (3, 1, 1, 1)}, "step 0: 2 committed, 3 accepted of 3 drafted"),
        (DRAFTED_ROW, {"accepted": (0, 1, 1, 1)}, "step 0: 2 committed, 0 accepted"),
        (DRAFTED_ROW, {"drafted": (0, 3, 3, 3)}, "step 0: 2 committed, 1 accepted of 0 drafted"),
        (DRAFTED_ROW, {"committed": (1, 2, 2, 2)}, "9 token_ids, but prefill and steps committed 8"),
        (DRAFTED_ROW, {"rows": (4,)}, "differ in length"),
        (DRAFTED_ROW, {"layers": (12,)}, "9 token_ids, but 1 entries in layers"),
        (DRAFTED_ROW, {"stop_reason": None}, "needs ttft_s and stop_reason"),
        (DRAFTED_ROW, {"ttft_s": None}, "needs ttft_s and stop_reason"),
        (DRAFTED_ROW, {"first_divergence": 3}, "identical, but with a first divergence"),
        (DRAFTED_ROW, {"verdict": "lossy"}, "lossy, but without a first divergence"),
        (DRAFTED_ROW, {"error": "out of memory"}, "a failed generation has an error and no tokens"),
        (DRAFTED_ROW, {"rows": (4, 4, 3, 4)}, "has a row of the target for each drafted token"),
        (DRAFTED_ROW, {"verdict": "lossy", "first_divergence": 10}, "a first divergence at 10 in an answer of 9"),
        (DRAFTED_ROW, {"fidelity": {"scored_tokens": 1.0, "target_agreed_tokens": 9.0}}, "target_agreed_tokens"),
        (DRAFTED_ROW, {"fidelity": {"target_agreed_tokens": 1.0}}, "target_agreed_tokens"),
        (DRAFTED_ROW, {"fidelity": {"replay_judged_tokens": 1.0, "replay_agreed_tokens": 2.0}}, "replay_agreed_tokens"),
        (DRAFTED_ROW, {"fidelity": {"scored_tokens": 1.0, "target_agreed_tokens": -1.0}}, "target_agreed_tokens"),
    ],
)
def test_a_row_that_cannot_be_true_is_never_made(row: Row, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(row, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": (9, 4, 4, 4)},  # with scratch rows
        {"accepted": (1, 1, 1, 2), "stop_reason": "stop"},  # cut at the stop token: no bonus token there
        {"drafted": (0, 3, 3, 3), "accepted": (0, 1, 1, 1), "committed": (1, 2, 2, 2), "rows": (0, 4, 4, 4)},
        {"verdict": "lossy", "first_divergence": 8},  # where one answer ends and the other goes on
        {"fidelity": {"scored_tokens": 8.0, "target_agreed_tokens": 8.0, "target_logprob": -3.0}},
    ],
)
def test_a_row_at_the_edge_of_what_can_be_true_is_made(changes: dict[str, Any]) -> None:
    answer = drafted_row()
    tokens = 1 + sum(changes.get("committed", answer.committed))
    row = replace(answer, token_ids=answer.token_ids[:tokens], layers=answer.layers[:tokens], **changes)
    assert {name: getattr(row, name) for name in changes} == changes


# The version that the fields of a run, of its suites and methods, and of a row came with.
SINCE = {"exact_answers": 2, "own": 2, "counters": 3, "batch_size": 4, "batch": 4, "modules_sha256": 4, "modes": 5}
SINCE |= dict.fromkeys(("mode", "phases", "conditions", "fidelity", "totals", "imported", "context_fill"), 5)
SINCE |= dict.fromkeys(("passes", "started_s", "cpu_s", "prepare_s"), 6)


def as_of(version: int, value: Any) -> Any:
    """A line without the fields that its version did not know."""
    if isinstance(value, list):
        return [as_of(version, each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: as_of(version, inner) for name, inner in value.items() if SINCE.get(name, 1) <= version}


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_a_file_of_an_older_version_is_read_and_goes_on(path: Path, version: int) -> None:
    lines = [as_of(version, json.loads(line)) for line in write(path, ROWS[:2]).read_bytes().splitlines()]
    lines[0]["schema_version"] = version
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = path.read_bytes()
    with Writer(path, RUN, resume=True) as writer:
        assert (writer.stored.run, writer.stored.rows) == (replace(RUN, schema_version=version), tuple(ROWS[:2]))  # type: ignore[arg-type]
        writer.append(ROWS[2])
    assert path.read_bytes() == before + to_line(ROWS[2])


BATCHED = replace(RUN, batch_size=2)
BATCHES = [
    *batch(baseline_row("p0", tokens=5), baseline_row("p1", tokens=9)),
    *batch(drafted_row("p0", steps=3), drafted_row("p1", steps=2)),
    *batch(baseline_row("p2")),
]


def test_rows_of_a_batch_come_back_as_they_were_written(path: Path) -> None:
    with Writer(path, BATCHED) as writer:
        writer.append(*BATCHES[:2])
        writer.append(*BATCHES[2:4])
        writer.append(*BATCHES[4:])
    assert read(path).rows == tuple(BATCHES)
    assert batch_keys(BATCHES[1]) == (row_key(BATCHES[0]), row_key(BATCHES[1]))
    assert batch_keys(ROWS[0]) == (row_key(ROWS[0]),)


@pytest.mark.parametrize(
    "rows",
    [
        [BATCHES[0], *BATCHES[2:]],  # one of a batch is gone
        [BATCHES[1], BATCHES[0]],  # in another order
        [BATCHES[0], BATCHES[2], BATCHES[1], BATCHES[3]],  # not together
        [BATCHES[0], replace(BATCHES[1], ttft_s=3.0)],  # prefilled apart
        [replace(BATCHES[0], step_s=(1.0, 1.0, 1.0, 7.0)), BATCHES[1]],  # steps apart
        [BATCHES[0], failed(BATCHES[1])],  # failed alone
    ],
)
def test_rows_that_can_be_no_batch_are_named(path: Path, rows: list[Row]) -> None:
    """What such a batch took cannot be told, so its figures would be made up."""
    with refused("batch_not_whole", "run.jsonl:2"):
        read(write(path, rows, BATCHED))


def test_batches_and_the_size_in_the_first_line_must_agree(path: Path) -> None:
    with refused("row_not_of_run", "run.jsonl:2", "batch of 2", "size 1"):
        read(write(path, BATCHES))
    with refused("row_not_of_run", "run.jsonl:2", "batch of 0", "size 2"):
        read(write(path, ROWS, BATCHED))


def test_a_row_is_in_its_own_batch_once() -> None:
    with pytest.raises(ValueError, match="'p0'.* batch"):
        replace(ROWS[0], batch=("p1", "p2"))
    with pytest.raises(ValueError, match="batch .*twice"):
        replace(ROWS[0], batch=("p0", "p0"))


def test_phases_are_those_of_profile_rows_and_have_an_entry_per_step() -> None:
    row = ROWS[0]
    phases = {"draft": tuple(0.1 for _ in row.step_s)}
    assert replace(row, mode="profile", phases=phases).phases == phases
    for wrong in ({"mode": "free", "phases": phases}, {"mode": "profile"}, {"mode": "profile", "phases": {"x": ()}}):
        with pytest.raises(ValueError, match="phases"):
            replace(row, **wrong)


def test_an_imported_generation_has_totals_and_no_lists() -> None:
    known = {name: getattr(ROWS[0], name) for name in ("suite", "prompt_id", "turn", "label", "repeat", "session")}
    totals = Totals(new_tokens=7, steps=3, wall_s=0.5)
    assert Row(**known, order=0, prompt_tokens=0, totals=totals).totals == totals
    with pytest.raises(ValueError, match="totals"):
        replace(ROWS[0], totals=totals)
    with pytest.raises(ValueError, match="failed generation"):
        Row(**known, order=0, prompt_tokens=0, totals=totals, error="lost")


def test_only_an_imported_run_may_leave_its_settings_open() -> None:
    bare = replace(RUN.target, layers=0, vocabulary=0)
    assert replace(RUN, imported="medusa", threads=0, max_new_tokens=0, target=bare).threads == 0
    for unknown in ({"threads": 0}, {"max_new_tokens": 0}, {"target": bare}):
        with pytest.raises(ValueError, match="imported"):
            replace(RUN, **unknown)


def test_a_replay_is_another_generation_than_the_free_one(path: Path) -> None:
    again = replace(ROWS[0], mode="replay")
    assert row_key(again) != row_key(ROWS[0])
    assert read(write(path, [ROWS[0], again])).rows == (ROWS[0], again)
