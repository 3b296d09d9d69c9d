"""What judges say is shown where runs are compared and plotted, with what speaks against it."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from command import cli, ok
from fixtures_records import DRAFTED, EXITING, RUN, baseline_row, exiting_row, usual_rows
from fixtures_scores import both_orders, same, score, sha256, write_both
from pictures import texts
from warned import warned

from benchctl.analysis.comparison import compare
from benchctl.records.schema import Row, Run, to_line
from benchctl.records.scores import Score, scores_path
from benchctl.records.writer import read

PROMPTS = [f"p{number}" for number in range(12)]


def _rows() -> list[Row]:
    """Early exit's answers differ from the baseline's, the draft's are the same."""
    return [replace(row, text="mine") if row.label == EXITING else row for row in usual_rows(len(PROMPTS))]


def _scores(judge: str = "gpt", better: int = 3) -> list[Score]:
    """Early exit wins `better` of the twelve prompts and loses the others by a point."""
    points = [(7, 6) if number < better else (6, 7) for number in range(len(PROMPTS))]
    return [one for prompt, of in zip(PROMPTS, points, strict=True) for one in both_orders(prompt, of, of, judge=judge)]


def _file(tmp_path: Path, scores: Sequence[Score]) -> Path:
    return write_both(tmp_path / "run.jsonl", _rows(), scores, RUN)


def _warned(tmp_path: Path, id: str, scores: Sequence[Score], rows: Sequence[Row] = ()) -> list[dict[str, Any]]:
    path = write_both(tmp_path / "run.jsonl", rows or _rows(), scores, RUN)
    (group,) = compare([read(path)], ())
    return warned(group, id)


def test_a_column_of_a_judge_with_options_can_be_chosen(tmp_path: Path) -> None:
    """Its name was split at the comma between its options."""
    judge = "gpt[temperature=none,reply_limit=2000]"
    path = _file(tmp_path, _scores(judge))
    result = ok(cli("compare", path, "--columns", f"speedup, score_difference[{judge} gpt-4o pairwise]"))
    assert "-0.50" in result.stdout


@pytest.mark.slow
def test_compare_shows_what_each_judge_says_and_how_far_they_agree(tmp_path: Path) -> None:
    """Of 12 pairs the judges agree on 9: 3 won and 6 lost by both; chance makes that of 0.375.

    3 scores of +1 and 9 of -1 have a standard error of 0.261, and Student's t is 2.201.
    """
    path = _file(tmp_path, [*_scores(), *_scores("local", better=6)])
    shown = " ".join(cli("compare", path, "--full").stdout.split())
    assert "Judged by gpt gpt-4o pairwise" in shown and "Judged by local gpt-4o pairwise" in shown
    assert "early_exit -0.50 [-1.07, +0.07] 25% 0% 75%" in shown
    assert "75% of 12 pairs" in shown and "Cohen's kappa 0.50" in shown
    assert "Cohen's kappa 0.50" in cli("compare", path, "--full", "--format", "md").stdout


def test_programs_get_every_figure_of_judges(tmp_path: Path) -> None:
    path = _file(tmp_path, [*_scores(), *_scores("local", better=6)])
    (group,) = json.loads(cli("compare", path, "--format", "json").stdout)["groups"]
    assert [agreed["kappa"] for agreed in group["agreement_of_judges"]] == [pytest.approx(0.5)]
    methods = {method["label"]: method for method in group["suites"][0]["methods"]}
    first, _ = methods[EXITING]["judged"]
    assert (first["judge"], first["model"], first["protocol"]) == ("gpt", "gpt-4o", "pairwise")
    assert (first["pairs"], first["asked"], first["unreadable"]) == (12, 24, 0)
    assert first["metrics"]["score_difference"]["value"] == -0.5
    lines = list(csv.DictReader(io.StringIO(cli("compare", path, "--format", "csv").stdout)))
    cells = {line["label"]: line["win[local gpt-4o pairwise]"] for line in lines}
    assert (cells[EXITING], cells["autoregressive"]) == ("0.5", "")


def test_a_pattern_that_matches_files_of_scores_too_means_the_results(tmp_path: Path) -> None:
    path = _file(tmp_path, _scores())
    assert cli("compare", tmp_path / "*.jsonl").stdout == cli("compare", path).stdout
    alone = cli("compare", scores_path(path))
    assert (alone.exit_code, "--scores" in alone.stderr) == (2, True)


def test_options_that_would_be_ignored_are_refused(tmp_path: Path) -> None:
    path = _file(tmp_path, _scores())
    for arguments in ((), ("--scores", scores_path(path))):
        result = cli("compare", *arguments)
        assert (result.exit_code, "No files" in result.stderr) == (2, True)
    infinite = cli("gate", path, "--require-quality", "inf")
    assert (infinite.exit_code, "inf" in infinite.stderr) == (2, True)
    assert "--judge needs --quality quality" in cli("plot", "--pareto", "--judge", "gpt", path).stderr


def test_a_judge_s_biases_are_warned_of(tmp_path: Path) -> None:
    """Of the same answers: who stands first wins; who is longer wins."""
    judge = "gpt gpt-4o pairwise"
    assert _warned(tmp_path, "judge_position_bias", _scores()) == []
    places = [one for prompt in PROMPTS for one in both_orders(prompt, (6, 7), (8, 6))]
    found = _warned(tmp_path, "judge_position_bias", places)
    assert found == [{"judge": judge, "favoured": "first", "labels": EXITING}]
    long = [replace(row, text="m" * 40) for row in _rows() if row.label == EXITING]
    won = [one for prompt in PROMPTS for one in both_orders(prompt, (8, 6), (8, 6), answer_sha256=sha256("m" * 40))]
    rows = [*(row for row in _rows() if row.label != EXITING), *long]
    found = _warned(tmp_path, "judge_length_bias", won, rows)
    assert found == [{"judge": judge, "favoured": "longer", "labels": EXITING}]


@pytest.mark.slow
def test_missing_judgements_are_warned_of(tmp_path: Path) -> None:
    judge = "gpt gpt-4o pairwise"
    rows = [row for row in _rows() if row.label != DRAFTED]
    assert _warned(tmp_path, "judge_incomplete", _scores(), rows) == []
    (lost,) = _warned(tmp_path, "judge_incomplete", [score("p0", None, None), *_scores()[1:]], rows)
    assert (lost["judge"], lost["unreadable"], lost["asked"], lost["pairs"]) == (judge, 1, 24, 1)
    (few,) = _warned(tmp_path, "judge_incomplete", _scores()[:8], rows)
    assert (few["unreadable"], few["missing"]) == (0, EXITING)
    (never,) = _warned(tmp_path, "judge_incomplete", _scores())
    assert never["missing"] == DRAFTED
    one_order = [score(prompt, 7, 6) for prompt in PROMPTS]
    assert _warned(tmp_path, "judge_one_order", one_order) == [{"judge": judge}]
    stale = [*_scores(), score("p0", judge="old", answer_sha256="0" * 64)]
    assert _warned(tmp_path, "scores_left_out", stale) == [{"changed": 1, "gone": 0, "elsewhere": 0}]
    assert _warned(tmp_path, "judge_prompts_mixed", _scores()) == []
    both = [*_scores(), replace(_scores()[0], template="pairwise-reference-v1@0123456789abcdef")]
    changed = [replace(one, template="pairwise-v1@ffffffffffffffff") for one in _scores()[:2]]
    for mixed in (both, [*changed, *_scores()[2:]]):
        assert _warned(tmp_path, "judge_prompts_mixed", mixed) == [{"judge": judge}]


@pytest.mark.slow
def test_scores_of_one_file_are_not_missed_in_another(tmp_path: Path) -> None:
    """Given by --scores they were once looked for in every file, and of the other ones "of answers that are not here".
    What is of no file is still told of, once."""
    first = write_both(tmp_path / "first.jsonl", _rows(), [], RUN)
    other = [replace(row, suite="other") for row in _rows()]
    run = replace(RUN, suites=(replace(RUN.suites[0], name="other"),))
    second = write_both(tmp_path / "second.jsonl", other, [], run)
    groups = compare([read(first), read(second)], _scores())
    assert [bool(group.judging) for group in groups] == [True, False]
    assert warned(groups[0], "scores_left_out") == []
    stray = [replace(one, prompt_id="nowhere") for one in _scores()[:2]]
    stray.append(replace(_scores()[0], answer_sha256="0" * 64, judge="old"))
    found = [
        values
        for group in compare([read(second), read(first)], [*_scores(), *stray])
        for values in warned(group, "scores_left_out")
    ]
    assert [sum(values[name] for values in found) for name in ("gone", "changed", "elsewhere")] == [2, 1, 0]


def _better(prompts: Sequence[str] = PROMPTS, judge: str = "gpt") -> list[Score]:
    """Early exit is a point better on every other prompt and half a point worse on the others: 0.25 [-0.25, 0.75]."""
    points = [(7, 6) if number % 2 else (6.5, 7) for number in range(len(prompts))]
    return [one for prompt, of in zip(prompts, points, strict=True) for one in both_orders(prompt, of, of, judge=judge)]


def _worse() -> list[Score]:
    """Early exit is two points worse on every prompt."""
    return [one for prompt in PROMPTS for one in both_orders(prompt, (5, 7), (5, 7))]


def _run_of(prompts: int) -> Run:
    return replace(RUN, suites=(replace(RUN.suites[0], prompts=prompts),))


def _drafted(judge: str = "gpt") -> list[Score]:
    ties = [same(prompt, judge=judge) for prompt in PROMPTS]
    return [replace(one, label="two_model[draft_tokens=3]") for one in ties]


@pytest.mark.parametrize(
    ("scores", "points", "problems", "code"),
    [
        ([*_better(), *_drafted()], 0.5, [], 0),
        # 0.25 [-0.25, 0.75] shows neither that it is as good up to 0.1, nor that it is worse.
        ([*_better(), *_drafted()], 0.1, ["quality_not_shown"], 4),
        ([*_worse(), *_drafted()], 0.5, ["quality_not_shown"], 1),
        (_better(), 0.5, ["not_judged"], 1),
        ([*_better(PROMPTS[:11]), *_drafted()], 0.5, ["turns_not_judged"], 1),
        (
            [*(one for one in _better() if one.order == "baseline_second"), *_drafted()],
            5,
            ["judged_in_one_order"] * 2,
            1,
        ),
        ([*_better(), *_drafted(), *_scores("strict"), *_drafted("strict")], 0.5, ["quality_not_shown"], 4),
        ([], 9, ["not_judged"] * 2, 1),
    ],
)
def test_quality_is_required(
    tmp_path: Path, scores: list[Score], points: float, problems: list[str], code: int
) -> None:
    """What nobody judged, or a judge saw only in part, is not as good; nor is what it saw in one order alone, which
    once passed by the points that it gives to a place."""
    path = write_both(tmp_path / "run.jsonl", _rows(), scores, _run_of(len(PROMPTS)))
    result = cli("gate", path, "--require-quality", str(points), "--format", "json")
    assert (result.exit_code, _problems(result)) == (code, problems)


@pytest.mark.parametrize(
    ("first", "second", "blind"),
    [((9, 4), (4, 9), True), ((5, 5), (5, 5), True), ((9, 4), (9, 8), False)],
    ids=["the first always wins", "always equal", "tells them apart"],
)
def test_a_judge_that_cannot_tell_answers_apart_shows_nothing(
    tmp_path: Path, first: tuple[float, float], second: tuple[float, float], blind: bool
) -> None:
    """Both once passed a gate of 0 points, with a difference of +0.00 [+0.00, +0.00]."""
    scores = [one for prompt in PROMPTS for one in both_orders(prompt, first, second)]
    path = write_both(tmp_path / "run.jsonl", _rows(), [*scores, *_drafted()], _run_of(len(PROMPTS)))
    result = cli("gate", path, "--require-quality", "0", "--format", "json")
    assert (result.exit_code, _problems(result)) == ((4, ["judge_blind"] * 2) if blind else (0, []))
    found = _warned(tmp_path, "judge_blind", [*scores, *_drafted()])
    assert found == ([{"judge": "gpt gpt-4o pairwise"}] if blind else [])


def _problems(result: Result) -> list[str]:
    """The ids of the problems of all labels."""
    return [problem["id"] for label in json.loads(result.stdout)["labels"] for problem in label["problems"]]


@pytest.mark.slow
def test_quality_is_shown_on_every_turn_that_was_answered(tmp_path: Path) -> None:
    """Of two turns the first alone was once enough, so a judge that could read no second turn let everything pass."""
    rows = [replace(row, turn=turn) for row in _rows() for turn in (0, 1)]
    first = [*_better(), *_drafted()]
    second = [replace(one, turn=1) for one in first]
    lost = [one for one in second if one.label != EXITING or one.prompt_id != "p3"]
    for scores, problem in ((first, "12 of 24 turns"), ([*first, *lost], "23 of 24 turns"), (first + second, "")):
        path = write_both(tmp_path / "run.jsonl", rows, scores, _run_of(len(PROMPTS)))
        result = cli("gate", path, "--require-quality", "0.5")
        assert (result.exit_code, problem in result.stdout) == (int(bool(problem)), True)


def test_quality_cannot_be_shown_on_a_few_prompts_nor_of_nothing(tmp_path: Path) -> None:
    few = [row for row in _rows() if row.prompt_id in PROMPTS[:9]]
    path = write_both(tmp_path / "run.jsonl", few, [*_better(PROMPTS[:9]), *_drafted()], _run_of(9))
    result = cli("gate", path, "--require-quality", "5", "--format", "json")
    assert (result.exit_code, _problems(result)) == (4, ["few_prompts_judged"] * 2)
    alone = [row for row in _rows() if row.label == RUN.baseline]
    path = write_both(tmp_path / "run.jsonl", alone, [], replace(RUN, methods=RUN.methods[:1]))
    assert _problems(cli("gate", path, "--require-quality", "5", "--format", "json"))[:1] == ["only_baseline"]


@pytest.mark.slow
def test_a_report_takes_scores_from_elsewhere_as_compare_does(tmp_path: Path) -> None:
    path = write_both(tmp_path / "run.jsonl", _rows(), [], RUN)
    given = tmp_path / "given.scores.jsonl"
    given.write_bytes(b"".join(to_line(replace(one, reply="what the judge said")) for one in _scores()))
    pages = [tmp_path / "without.html", tmp_path / "with.html"]
    for page, more in zip(pages, ((), ("--scores", given)), strict=True):
        ok(cli("report", path, "-o", page, *more))
    without, with_scores = (page.read_text(encoding="utf-8") for page in pages)
    for part in ("Judged by gpt gpt-4o pairwise", "what the judge said"):
        assert part in with_scores and part not in without


def test_a_torn_last_score_is_said_and_the_others_count(tmp_path: Path) -> None:
    path = _file(tmp_path, _scores())
    file = scores_path(path)
    file.write_bytes(file.read_bytes()[:-40])
    assert "torn" in cli("compare", path, "--full").stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("height", "title"),
    [
        ("quality", "score of gpt gpt-4o pairwise on 12 prompts"),
        ("verdict", "answers that are the target's own"),
        ("agreement", "token agreement"),
    ],
)
def test_the_pareto_plot_sets_speed_against_what_is_asked_for(tmp_path: Path, height: str, title: str) -> None:
    out = tmp_path / "plot.svg"
    same = [one for prompt in PROMPTS for one in both_orders(prompt, (6, 6), (6, 6), label="two_model[draft_tokens=3]")]
    same = [replace(one, answer_sha256=sha256("drafted")) for one in same]
    rows = [replace(row, text="drafted") if row.label.startswith("two_model") else row for row in _rows()]
    path = write_both(tmp_path / "run.jsonl", rows, [*_scores(), *same], RUN)
    ok(cli("plot", "--pareto", "--quality", height, path, "--out", out))
    shown = texts(out)
    assert title in shown
    assert "95% interval" in shown and "two_model" in shown


def test_quality_cannot_be_plotted_without_a_judge_or_of_two(tmp_path: Path) -> None:
    out, plot = tmp_path / "plot.png", ("plot", "--pareto", "--quality", "quality")
    path = write_both(tmp_path / "run.jsonl", _rows(), [], RUN)
    assert "`benchctl judge`" in cli(*plot, path, "--out", out).stderr
    path = _file(tmp_path, [*_scores(), *_scores("local")])
    both = cli(*plot, path, "--out", out)
    assert both.exit_code == 2
    assert all(part in both.stderr for part in ("--judge", "'gpt gpt-4o pairwise'", "'local gpt-4o pairwise'"))
    unjudged = cli(*plot, path, "--out", out, "--judge", "local")
    assert "two_model[draft_tokens=3]" in unjudged.stderr and "local gpt-4o pairwise" in unjudged.stderr


def test_an_answer_that_was_judged_stays_judged_whatever_was_wrong_with_its_time(tmp_path: Path) -> None:
    rows = [replace(row, invalid="a foreign process") for row in (baseline_row(), replace(exiting_row(), text="mine"))]
    path = write_both(tmp_path / "run.jsonl", [*rows, *_rows()[3:]], _scores(), RUN)
    (group,) = compare([read(path)], ())
    assert next(method for method in group.pooled.methods if method.label == EXITING).judged[0].pairs == 12
