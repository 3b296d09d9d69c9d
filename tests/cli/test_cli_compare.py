"""`benchctl compare` answers every mistake with one message, and prints what programs can read."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fixtures_records import DRAFTED, EXITING, RUN, drafted_row, usual_rows, write

from benchctl.cli import main


def _compare(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "run.jsonl", usual_rows())


def test_the_table_is_plain_where_there_is_no_terminal(path: Path) -> None:
    result = _compare(path)
    assert result.exit_code == 0
    assert "two_model" in result.stdout and "\x1b" not in result.stdout
    assert "Warning:" in result.stdout


def test_json_is_alone_on_stdout(path: Path) -> None:
    torn = path.read_bytes()[:-20]
    path.write_bytes(torn)
    result = _compare(path, "--format", "json")
    assert [method["label"] for method in json.loads(result.stdout)["groups"][0]["suites"][0]["methods"]]
    assert "Note:" in result.stderr and "torn" in result.stderr


def test_csv_leaves_its_notes_to_stderr(path: Path) -> None:
    result = _compare(path, "--format", "csv")
    assert {line.count(",") for line in result.stdout.splitlines()} == {result.stdout.splitlines()[0].count(",")}
    assert "Warning:" in result.stderr


def test_a_pattern_in_quotes_is_expanded_and_files_count_once(path: Path) -> None:
    write(path.with_name("other.jsonl"), usual_rows(), replace(RUN, name="other"))
    (path.parent / "link.jsonl").symlink_to(path)
    document = json.loads(_compare(path, path.with_name("*.jsonl"), "--format", "json").stdout)
    assert document["groups"][0]["files"] == [str(path), str(path.with_name("other.jsonl"))]


def test_a_copy_of_a_file_is_refused_for_it_would_count_as_another_session(path: Path) -> None:
    copy = path.with_name("copy.jsonl")
    copy.write_bytes(path.read_bytes())
    result = _compare(path, copy)
    assert result.exit_code == 2
    assert str(copy) in result.stderr and str(path) in result.stderr


def test_files_that_are_not_comparable_are_shown_apart_and_no_success(path: Path) -> None:
    other = write(path.with_name("other.jsonl"), usual_rows(), replace(RUN, threads=2))
    result = _compare(path, other)
    assert result.exit_code == 2
    assert "threads is 2, there 1" in result.stdout
    assert f"{other} in threads, from {path}" in " ".join(result.stderr.split())


def test_a_file_without_generations_is_left_out_with_a_note(path: Path) -> None:
    empty = write(path.with_name("empty.jsonl"), [])
    result = _compare(path, empty)
    assert result.exit_code == 0
    assert str(empty) in result.stderr


@pytest.mark.parametrize(
    ("content", "message", "code"),
    [
        (None, "run.jsonl: cannot be read: No such file", 2),
        ("", "run.jsonl: is empty", 3),
        ('{"prompt": "Hello"}\n', "run.jsonl:1: is not the start of a benchctl run", 3),
        ('{"kind": "run", "schema_version": 9}\n', "run.jsonl:1: written by a newer benchctl, schema 9", 3),
    ],
)
def test_a_file_that_cannot_be_used_gives_one_message(
    tmp_path: Path, content: str | None, message: str, code: int
) -> None:
    path = tmp_path / "run.jsonl"
    if content is not None:
        path.write_text(content)
    result = _compare(path)
    assert result.exit_code == code
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1 and not result.stdout


def test_a_pattern_without_a_match_says_what_to_do(tmp_path: Path) -> None:
    result = _compare(tmp_path / "*.jsonl")
    assert result.exit_code == 2
    assert "no file matches" in result.stderr and "benchctl run" in result.stderr


def test_acceptance_and_the_agreement_of_judges_have_no_brief_form(path: Path) -> None:
    """Both would show all of it, brief or not."""
    assert _compare(path, "--format", "brief").exit_code == 0
    assert _compare(path, "--acceptance", "--format", "brief").exit_code == 2
    assert CliRunner().invoke(main, ["compare", "--scores", str(path), "--format", "brief"]).exit_code == 2


def test_times_can_be_set_against_another_method(path: Path) -> None:
    """As loading experts ahead is against loading them on demand; the speed-up is that of the two, pair by pair."""
    usual = json.loads(_compare(path, "--format", "json").stdout)["groups"][0]["suites"][-1]["methods"]
    found = json.loads(_compare(path, "--over", DRAFTED, "--format", "json").stdout)["groups"][0]["suites"][-1][
        "methods"
    ]
    speed = {method["label"]: method["metrics"]["speedup"]["value"] for method in usual}
    over = {method["label"]: method["metrics"]["speedup"]["value"] for method in found}
    assert set(over) == {DRAFTED, EXITING}
    assert over[EXITING] == pytest.approx(speed[EXITING] / speed[DRAFTED])
    assert found[0]["baseline"] is True


def test_against_a_method_that_drafts_the_table_shows_the_difference_of_acceptance_rates(path: Path) -> None:
    rows = [*usual_rows(), *(replace(drafted_row(prompt), label="other") for prompt in ("p0", "p1"))]
    run = replace(RUN, methods=(*RUN.methods, replace(RUN.methods[1], label="other")))
    two = write(path.with_name("two.jsonl"), rows, run)
    shown = _compare(two, "--over", DRAFTED, "--format", "md").stdout
    assert "acceptance difference [95%]" in shown and "+0.000 [+0.000, +0.000]" in shown
    assert "acceptance difference" not in _compare(two, "--format", "md").stdout
    assert "two_model" in _compare(two, "--over", DRAFTED).stdout  # whole: it has a table of its own


def test_times_cannot_be_set_against_what_was_not_measured(path: Path) -> None:
    result = _compare(path, "--over", "medusa")
    assert result.exit_code == 2
    assert f"has no medusa. It measured: autoregressive {DRAFTED} {EXITING}" in " ".join(result.stderr.split())
