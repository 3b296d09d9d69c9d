"""The benchmark of reading writes what it says, measures the processes that read, and says what misses its goal."""

import json
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchctl.records.schema import Row
from benchctl.records.writer import read as read_records
from benchmarks import reading
from benchmarks.made_up import BASELINE, DRAFTING, EXITING, MadeUp
from benchmarks.reading import MODES, Took, main, took


def test_the_file_has_as_many_generations_as_asked_for_and_all_can_be_true(tmp_path: Path) -> None:
    MadeUp(MODES).write(tmp_path / "run.jsonl", 65)
    rows = read_records(tmp_path / "run.jsonl").rows
    assert len(rows) == 65
    assert {row.mode for row in rows} == set(MODES) and {row.label for row in rows} == {BASELINE, DRAFTING}
    assert len({row.step_s for row in rows}) == 65


def test_answers_that_differ_do_so_from_where_they_say_on() -> None:
    answers = {(row.prompt_id, row.label): row for row in islice(MadeUp(tokens=9, differ=True).rows(), 60)}
    assert len(answers) == 4 * 3
    for number in range(4):
        ours: dict[str, Row] = {label: answers[f"p{number}", label] for label in (BASELINE, DRAFTING, EXITING)}
        usual, left = ours[BASELINE].token_ids, ours[EXITING].token_ids
        at = ours[EXITING].first_divergence
        assert at is not None and usual[:at] == left[:at] and usual[at] != left[at]
        assert ours[DRAFTING].text == ours[BASELINE].text != ours[EXITING].text


@pytest.mark.slow
def test_what_it_took_is_that_of_the_process_that_compared(tmp_path: Path) -> None:
    MadeUp().write(tmp_path / "run.jsonl", 40)
    measured = took(["compare", str(tmp_path / "run.jsonl")])
    assert 0.2 < measured.user_s + measured.system_s < measured.wall_s + 5
    # No upper bound: the kernel also counts the memory of the process that starts another one, and pytest is large.
    assert measured.peak_bytes > 5e7
    (tmp_path / "run.jsonl").write_text("nothing\n")
    with pytest.raises(ChildProcessError, match="exit code 3"):
        took(["compare", str(tmp_path / "run.jsonl")])


@pytest.mark.parametrize(
    ("slow", "missed"),
    [
        ({}, []),
        ({"compare": Took(1.0, peak_bytes=1_010_000_000)}, ["compare"]),
        ({"report": Took(20.1), "plot": Took(5.1), "--help": Took(0.31)}, ["report", "plot", "--help"]),
    ],
)
def test_whatever_takes_more_than_it_may_fails_and_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: dict[str, Took], missed: list[str]
) -> None:
    fast = {"compare": Took(19.9, 1.0, 0.5, 990_000_000), "report": Took(19.9), "plot": Took(4.9), "--help": Took(0.29)}

    def taken(arguments: tuple[str, ...]) -> Took:
        if "--out" in arguments:
            Path(arguments[arguments.index("--out") + 1]).write_text("page")
        return (fast | slow)[arguments[0]]

    monkeypatch.setattr(reading, "took", taken)
    monkeypatch.setattr(reading, "circumstances", lambda: {"commit": "c0ffee"})
    out = tmp_path / "figures.json"
    result = CliRunner().invoke(main, ["--generations", "10", "--shown", "10", "--times", "2", "--out", str(out)])
    assert result.exit_code == bool(missed), result.output
    document = json.loads(out.read_text())
    met = {figure["command"].split()[1]: figure["is_met"] for figure in document["figures"]}
    assert met == {name: name not in missed for name in fast}
    assert document["commit"] == "c0ffee" and all(len(figure["took"]) == 2 for figure in document["figures"])
    assert result.output.count("MISSED") == len(missed)
