"""`benchctl compare` answers every mistake with one message, and prints what programs can read."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from command import cli
from fixtures_records import DRAFTED, EXITING, KOALA, RUN, drafted_row, usual_rows, write

_compare = partial(cli, "compare")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "run.jsonl", usual_rows())


def test_the_table_is_plain_where_there_is_no_terminal(path: Path) -> None:
    result = _compare(path)
    assert result.exit_code == 0
    assert "two_model" in result.stdout and "Warning:" in result.stdout and "\x1b" not in result.stdout


def test_json_and_csv_are_alone_on_stdout(path: Path) -> None:
    csv = _compare(path, "--format", "csv")
    assert len({line.count(",") for line in csv.stdout.splitlines()}) == 1
    assert "Warning:" in csv.stderr
    path.write_bytes(path.read_bytes()[:-20])
    result = _compare(path, "--format", "json")
    assert [method["label"] for method in json.loads(result.stdout)["groups"][0]["suites"][0]["methods"]]
    assert "Note:" in result.stderr and "torn" in result.stderr


def test_by_category_is_offered_where_there_are_categories_and_refused_where_there_are_none(path: Path) -> None:
    categories = {f"p{number}": "maths" if number < 5 else "rag" for number in range(20)}
    run = replace(RUN, suites=(replace(KOALA, categories=categories),))
    other = write(path.with_name("categories.jsonl"), usual_rows(), run)
    alone = [replace(row, batch=(row.prompt_id,)) for row in usual_rows()]
    batches = write(path.with_name("batches.jsonl"), alone, replace(run, batch_size=2))
    offered = [_compare(file).stdout.splitlines()[-1] for file in (path, other, batches)]
    assert ["--by-category" in line for line in offered] == [False, True, False]
    assert not any("--by-suite" in line for line in offered)
    result = _compare(other, "--by-category")
    assert (result.exit_code, "--by-category" in result.stdout) == (0, False)
    assert [name for name in ("koala/maths", "koala/rag") if name in result.stdout] == ["koala/maths", "koala/rag"]
    suites = json.loads(_compare(other, "--by-category", "--format", "json").stdout)["groups"][0]["suites"]
    assert [suite["suite"] for suite in suites] == ["koala/maths", "koala/rag", "koala"]
    assert _compare(path, "--by-category").exit_code == 2
    assert _compare(other, "--by-category", "--acceptance").exit_code == 2


def test_a_pattern_in_quotes_is_expanded_and_files_count_once(path: Path) -> None:
    write(path.with_name("other.jsonl"), usual_rows(), replace(RUN, name="other"))
    (path.parent / "link.jsonl").symlink_to(path)
    document = json.loads(_compare(path, path.with_name("*.jsonl"), "--format", "json").stdout)
    assert document["groups"][0]["files"] == [str(path), str(path.with_name("other.jsonl"))]


def test_a_copy_is_refused_and_a_file_without_generations_left_out(path: Path) -> None:
    """A copy would count as another session."""
    copy, empty = path.with_name("copy.jsonl"), write(path.with_name("empty.jsonl"), [])
    copy.write_bytes(path.read_bytes())
    for other, code in ((copy, 2), (empty, 0)):
        result = _compare(path, other)
        assert (result.exit_code, str(other) in result.stderr) == (code, True)


def test_files_that_are_not_comparable_are_shown_apart_and_no_success(path: Path) -> None:
    other = write(path.with_name("other.jsonl"), usual_rows(), replace(RUN, threads=2))
    result = _compare(path, other)
    assert result.exit_code == 2
    assert "threads is 2 (group 1: 1)" in result.stdout
    assert f"with {path}: {other} differs in threads." in " ".join(result.stderr.split())


def test_files_of_several_machines_are_pooled_and_a_success(path: Path) -> None:
    """They were, and then an error asked for files of one machine."""
    run = replace(RUN, machine={**RUN.machine, "cpu": "another processor"})
    result = _compare(path, write(path.with_name("other.jsonl"), usual_rows(), run))
    assert result.exit_code == 0 and "Several machines" in result.stdout


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
    if content is not None:
        (tmp_path / "run.jsonl").write_text(content)
    result = _compare(tmp_path / "run.jsonl")
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (code, "", 1)
    assert message in result.stderr
    unmatched = _compare(tmp_path / "none*.jsonl")
    assert unmatched.exit_code == 2 and "benchctl run" in unmatched.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--acceptance --columns speedup", "--columns"),
        ("--format csv --full", "--full"),
        ("--format json --name two_model=Ours", "--name"),
        ("--check --format json", "--check"),
        ("--schema results", "--schema"),
        ("--name Ours", "LABEL=NAME"),
        ("--columns pace", "tokens_per_s"),
        ("--name medusa=Ours", DRAFTED),
    ],
)
def test_options_without_an_effect_and_unknown_names_are_refused(path: Path, words: str, named: str) -> None:
    result = _compare(path, *words.split())
    assert (result.exit_code, result.stdout, named in result.stderr) == (2, "", True)


def test_columns_and_names_for_print_reach_the_table(path: Path) -> None:
    result = _compare(path, "--columns", "lossless, speedup", "--name", f"{DRAFTED}=Ours", "--format", "md")
    assert "| method | lossless | speed-up [95%] |" in result.stdout and "| Ours | yes | 1.59x" in result.stdout


def test_ten_methods_on_five_suites_take_at_most_forty_lines(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They took 871 at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = _compare(root / "results" / "reference" / "all-1.jsonl").stdout.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    assert sum(line.startswith("Warning: ") for line in lines) <= 3 and lines[-1].startswith("more: ")


def test_times_can_be_set_against_another_method(path: Path) -> None:
    """As loading experts ahead is against loading them on demand; the speed-up is that of the two, pair by pair."""
    usual = json.loads(_compare(path, "--format", "json").stdout)["groups"][0]["suites"][-1]["methods"]
    document = json.loads(_compare(path, "--over", DRAFTED, "--format", "json").stdout)
    against = document["groups"][0]["suites"][-1]["methods"]
    speed, over = (
        {method["label"]: method["metrics"]["speedup"]["value"] for method in methods} for methods in (usual, against)
    )
    assert set(over) == {DRAFTED, EXITING}
    assert over[EXITING] == pytest.approx(speed[EXITING] / speed[DRAFTED])
    assert against[0]["baseline"] is True


def test_against_a_method_that_drafts_the_table_shows_the_difference_of_acceptance_rates(path: Path) -> None:
    rows = [*usual_rows(), *(replace(drafted_row(prompt), label="other") for prompt in ("p0", "p1", "p2", "p3", "p4"))]
    run = replace(RUN, methods=(*RUN.methods, replace(RUN.methods[1], label="other")))
    two = write(path.with_name("two.jsonl"), rows, run)
    shown = _compare(two, "--over", DRAFTED, "--full", "--format", "md").stdout
    assert "acceptance difference [95%]" in shown and "+0.000 [+0.000, +0.000]" in shown
    assert "acceptance difference" not in _compare(two, "--full", "--format", "md").stdout


def test_times_cannot_be_set_against_what_was_not_measured(path: Path) -> None:
    result = _compare(path, "--over", "medusa")
    assert result.exit_code == 2 and f"autoregressive {DRAFTED} {EXITING}" in " ".join(result.stderr.split())
