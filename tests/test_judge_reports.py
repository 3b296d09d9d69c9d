"""What judges say is shown where runs are compared and plotted, with what speaks against it."""

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fixtures_records import EXITING, RUN, baseline_row, exiting_row, usual_rows
from fixtures_scores import both_orders, own, score, sha256, write_both

from benchctl.analysis.cautions import cautions
from benchctl.analysis.comparison import compare
from benchctl.analysis.judged import with_judgements
from benchctl.cli import main
from benchctl.recordfile import read
from benchctl.records import Row
from benchctl.scores import Score, scores_path, to_line

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


def _run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


def _cautions(tmp_path: Path, scores: Sequence[Score], rows: Sequence[Row] = ()) -> str:
    path = write_both(tmp_path / "run.jsonl", rows or _rows(), scores, RUN)
    (group,) = with_judgements(compare([read(path)]))
    return "\n".join(cautions(group))


def test_compare_shows_what_each_judge_says_and_how_far_they_agree(tmp_path: Path) -> None:
    """Of 12 pairs the judges agree on 9: 3 won and 6 lost by both; chance makes that of 0.375."""
    path = _file(tmp_path, [*_scores(), *_scores("local", better=6)])
    shown = " ".join(_run("compare", path).stdout.split())
    assert "Judged by gpt gpt-4o pairwise" in shown and "Judged by local gpt-4o pairwise" in shown
    assert "early_exit -0.50 [-1.00, +0.00] 25% 0% 75%" in shown
    assert "say the same (win, tie or loss) of 75% of 12 pairs of answers that both judged: Cohen's kappa 0.50" in shown
    assert "Cohen's kappa 0.50" in _run("compare", path, "--format", "md").stdout


def test_programs_get_every_figure_of_judges(tmp_path: Path) -> None:
    path = _file(tmp_path, [*_scores(), *_scores("local", better=6)])
    (group,) = json.loads(_run("compare", path, "--format", "json").stdout)["groups"]
    assert [agreed["kappa"] for agreed in group["agreement_of_judges"]] == [pytest.approx(0.5)]
    methods = {method["label"]: method for method in group["suites"][0]["methods"]}
    first, _ = methods[EXITING]["judged"]
    assert (first["judge"], first["model"], first["protocol"]) == ("gpt", "gpt-4o", "pairwise")
    assert (first["pairs"], first["asked"], first["unreadable"], first["within_margin"]) == (12, 24, 0, None)
    assert first["metrics"]["score_difference"]["value"] == -0.5
    lines = list(csv.DictReader(io.StringIO(_run("compare", path, "--format", "csv").stdout)))
    cells = {line["label"]: line["win[local gpt-4o pairwise]"] for line in lines}
    assert (cells[EXITING], cells["autoregressive"]) == ("0.5", "")


def test_a_margin_that_is_asked_for_tells_how_many_prompts_it_takes(tmp_path: Path) -> None:
    """Differences of +1 and -1 spread by 0.905: 1.96 times that, over 0.5, squared, and some more for Student's t."""
    shown = " ".join(_run("compare", _file(tmp_path, _scores()), "--margin", "0.5").stdout.split())
    assert "±0.5" in shown
    assert "25% 0% 75% 12 16" in shown


def test_a_pattern_that_matches_files_of_scores_too_means_the_results(tmp_path: Path) -> None:
    path = _file(tmp_path, _scores())
    assert _run("compare", tmp_path / "*.jsonl").stdout == _run("compare", path).stdout
    alone = _run("compare", scores_path(path))
    assert (alone.exit_code, "holds scores, not results" in alone.stderr) == (2, True)


def test_scores_alone_tell_how_far_their_judges_agree(tmp_path: Path) -> None:
    one = scores_path(_file(tmp_path, _scores()))
    two = tmp_path / "other.scores.jsonl"
    two.write_bytes(b"".join(map(to_line, _scores("local", better=6))))
    result = _run("compare", "--scores", one, "--scores", two)
    assert result.exit_code == 0, result.output
    assert "75% of 12 pairs of answers that both judged: Cohen's kappa 0.50" in result.stdout
    document = json.loads(_run("compare", "--scores", one, "--scores", two, "--format", "json").stdout)
    assert document["agreement_of_judges"][0]["pairs"] == 12
    added = " ".join(_run("compare", tmp_path / "run.jsonl", "--scores", two).stdout.split())
    assert "Judged by local gpt-4o pairwise" in added


@pytest.mark.parametrize(
    ("scores", "problem"),
    [
        (_scores(), "no two judges judged the same pairs"),
        ([own(EXITING, "p0", 5)], "the scores name as their baselines: none"),
        ([score("p0"), score("p0", sample=1, answer_sha256=sha256("other"))], "of two texts of early_exit on koala/p0"),
    ],
)
def test_scores_alone_that_cannot_be_compared_are_refused(tmp_path: Path, scores: list[Score], problem: str) -> None:
    result = _run("compare", "--scores", scores_path(_file(tmp_path, scores)))
    assert (result.exit_code, problem in result.stderr) == (2, True), result.output


def test_options_that_would_be_ignored_are_refused(tmp_path: Path) -> None:
    path = _file(tmp_path, _scores())
    for arguments in (
        (),
        ("--scores", scores_path(path), "--format", "csv"),
        ("--scores", scores_path(path), "--overlap"),
    ):
        assert _run("compare", *arguments).exit_code == 2
    assert _run("compare", path, "--acceptance", "--margin", "0.2").exit_code == 2
    assert "--judge needs --y quality" in _run("plot", "--pareto", "--judge", "gpt", path).stderr


def test_a_judge_s_liking_for_a_place_or_for_length_is_said(tmp_path: Path) -> None:
    """Of the same answers: who stands first wins; who is longer wins."""
    assert "favours" not in _cautions(tmp_path, _scores())
    places = [one for prompt in PROMPTS for one in both_orders(prompt, (6, 7), (8, 6))]
    assert f"favours the answer that stands first (seen on {EXITING})" in _cautions(tmp_path, places)
    long = [replace(row, text="m" * 40) for row in _rows() if row.label == EXITING]
    won = [one for prompt in PROMPTS for one in both_orders(prompt, (8, 6), (8, 6), answer_sha256=sha256("m" * 40))]
    rows = [*(row for row in _rows() if row.label != EXITING), *long]
    assert f"prefers the longer answer (seen on {EXITING})" in _cautions(tmp_path, won, rows)


def test_what_was_lost_of_the_judgements_is_said(tmp_path: Path) -> None:
    lost = [score("p0", None, None), *_scores()[1:]]
    assert "gpt gpt-4o pairwise: 1 of 24 replies could not be read, so 1 pairs" in _cautions(tmp_path, lost)
    assert "was not asked about all prompts of early_exit" in _cautions(tmp_path, _scores()[:8])
    one_order = [score(prompt, 7, 6) for prompt in PROMPTS]
    assert "saw each pair in one order" in _cautions(tmp_path, one_order)
    stale = [*_scores(), score("p0", judge="old", answer_sha256="0" * 64)]
    assert "1 score left out, which are of other texts" in _cautions(tmp_path, stale)
    changed = [replace(one, template="pairwise-v1@ffffffffffffffff") for one in _scores()[:2]]
    assert "the prompt pairwise-v1 was changed between judgements" in _cautions(tmp_path, [*changed, *_scores()[2:]])


def test_a_torn_last_score_is_said_and_the_others_count(tmp_path: Path) -> None:
    path = _file(tmp_path, _scores())
    file = scores_path(path)
    file.write_bytes(file.read_bytes()[:-40])
    assert "the last line is torn" in _run("compare", path).stdout


def _texts(path: Path) -> str:
    return "\n".join(re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8"), re.DOTALL))


@pytest.mark.parametrize(
    ("height", "title"),
    [
        ("quality", "score of gpt gpt-4o pairwise on 12 prompts"),
        ("verdict", "answers that are the target&#x27;s own on 12 prompts"),
        ("agreement", "token agreement with autoregressive"),
    ],
)
def test_the_pareto_plot_sets_speed_against_what_is_asked_for(tmp_path: Path, height: str, title: str) -> None:
    out = tmp_path / "plot.svg"
    same = [one for prompt in PROMPTS for one in both_orders(prompt, (6, 6), (6, 6), label="two_model[draft_tokens=3]")]
    same = [replace(one, answer_sha256=sha256("drafted")) for one in same]
    rows = [replace(row, text="drafted") if row.label.startswith("two_model") else row for row in _rows()]
    path = write_both(tmp_path / "run.jsonl", rows, [*_scores(), *same], RUN)
    result = _run("plot", "--pareto", "--y", height, path, "--out", out)
    assert result.exit_code == 0, result.output
    texts = _texts(out)
    assert title.replace("&#x27;", "'") in texts.replace("&#x27;", "'")
    assert "95% interval" in texts and "two_model" in texts


def test_quality_cannot_be_plotted_without_a_judge_or_of_two(tmp_path: Path) -> None:
    out, plot = tmp_path / "plot.png", ("plot", "--pareto", "--y", "quality")
    path = write_both(tmp_path / "run.jsonl", _rows(), [], RUN)
    assert "no judge has scored these answers. Run `benchctl judge`" in _run(*plot, path, "--out", out).stderr
    path = _file(tmp_path, [*_scores(), *_scores("local")])
    both = _run(*plot, path, "--out", out)
    assert both.exit_code == 2
    assert "--judge must name one of 'gpt gpt-4o pairwise', 'local gpt-4o pairwise'" in both.stderr
    unjudged = _run(*plot, path, "--out", out, "--judge", "local")
    assert "two_model[draft_tokens=3] has no answers that local gpt-4o pairwise judged" in unjudged.stderr


def test_an_answer_that_was_judged_stays_judged_whatever_was_wrong_with_its_time(tmp_path: Path) -> None:
    rows = [replace(row, invalid="a foreign process") for row in (baseline_row(), replace(exiting_row(), text="mine"))]
    path = write_both(tmp_path / "run.jsonl", [*rows, *_rows()[3:]], _scores(), RUN)
    (group,) = with_judgements(compare([read(path)]))
    assert next(method for method in group.pooled.methods if method.label == EXITING).judged[0].pairs == 12
