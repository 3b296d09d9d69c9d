"""Published answer files give the figures that were published, and what they do not tell stays unknown."""

import json
from collections import Counter
from functools import partial
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from command import cli, ok
from refusals import refused
from warned import warned

from benchctl.analysis.comparison import Group, MethodFigures, compare, differences
from benchctl.analysis.judges.figures import CONSISTENCY, FIRST_WINS, LOSS, SCORE_DIFFERENCE, TIE, WIN, JudgedFigures
from benchctl.analysis.metrics.drafting import BLOCK_EFFICIENCY
from benchctl.analysis.metrics.faithfulness import DEGENERATION, TOKEN_AGREEMENT
from benchctl.analysis.metrics.speed import DECODE_SPEEDUP, SOUND_SPEEDUP, SPEEDUP, TOKENS_PER_S, TPOT, TTFT
from benchctl.analysis.tables.text import render
from benchctl.errors import InvalidData
from benchctl.importing.gather import Imported, Source, Terms, gather
from benchctl.judging.items import pairs_of
from benchctl.records.writer import Writer, read

MEDUSA_7B = "medusa-vicuna-7b-v1.3{}-temperature-0.0-posterior_threshold-0.09-posterior_alpha-0.3"
VICUNA, REST = "vicuna-7b-v1.5-temperature-0.0-top_p-0", "rest-vicuna-7b-v1.5-temperature-0.0-top_p-0"


@pytest.fixture(scope="module")
def published(shared: Path) -> Path:
    return shared / "data" / "published_results"


_import = partial(cli, "import")


def _figures(imported: Imported, path: Path) -> tuple[Group, dict[str, MethodFigures]]:
    with Writer(path, imported.run) as writer:
        writer.append(*imported.rows)
    (group,) = compare([read(path)])
    return group, {method.label: method for method in group.pooled.methods}


def test_three_published_runs_of_medusa_give_their_speeds_and_tokens_per_step(published: Path, tmp_path: Path) -> None:
    files = [Source(published / "medusa" / f"{MEDUSA_7B.format(run)}.jsonl") for run in ("", "-1", "-2")]
    imported = gather(files, Terms(), name="medusa")
    _, methods = _figures(imported, tmp_path / "medusa.jsonl")
    found = [methods[MEDUSA_7B.format(run)] for run in ("", "-1", "-2")]
    speeds = [method.estimate(TOKENS_PER_S).value for method in found]
    assert [round(speed or 0, 2) for speed in speeds] == [101.30, 102.65, 94.66]
    assert {round(method.estimate(BLOCK_EFFICIENCY).value or 0, 3) for method in found} == {2.565}
    tokens = [[row.totals.new_tokens for row in imported.rows if row.totals and row.session == n] for n in range(3)]
    assert [(len(own), sum(map(int, own))) for own in tokens] == [(160, 43754)] * 3  # type: ignore[arg-type]
    assert imported.run.temperature == 0 and imported.run.suites[0].name == "mt-bench"


def test_rest_and_its_baseline_give_their_speeds_and_the_ratio_of_them(published: Path, tmp_path: Path) -> None:
    out = tmp_path / "rest.jsonl"
    ok(_import(*(published / "rest" / f"{name}.jsonl" for name in (f"baseline-{VICUNA}", REST)), "--out", out))
    (group,) = compare([read(out)])
    assert group.run.baseline == VICUNA
    speeds = [method.estimate(TOKENS_PER_S).value for method in group.pooled.methods]
    assert [round(speed or 0, 2) for speed in speeds] == [38.89, 66.22]
    accepted = [method.estimate(BLOCK_EFFICIENCY).value for method in group.pooled.methods]
    assert [round(tokens or 0, 3) for tokens in accepted] == [1.0, 1.989]
    # In time alone it is 1060.62 s / 611.43 s: its answers are 1.8% shorter.
    assert group.pooled.methods[1].estimate(SPEEDUP).value == pytest.approx(1060.62 / 611.43, rel=1e-4)


def _judged(out: Path) -> tuple[Group, dict[str, JudgedFigures]]:
    """The figures of the scores beside an imported file, of methods that have any."""
    (group,) = compare([read(out)], ())
    return group, {method.label: method.judged[0] for method in group.pooled.methods if method.judged}


def test_published_judgements_give_the_published_scores_of_both_turns(published: Path, tmp_path: Path) -> None:
    """As published: 6.794/5.181 for Medusa, 6.731/5.475 and 6.519/5.237 for Vicuna, sampled and greedy."""
    judged = published / "medusa" / "gpt-4_single.jsonl"
    out, greedy = tmp_path / "scores.jsonl", "vicuna-7b-v1.3-greedy"
    ok(_import(judged, "--out", out, "--baseline", greedy))
    _, found = _judged(out)
    assert {label: of.by_turn for label, of in found.items()} == {
        MEDUSA_7B.format("-1"): pytest.approx((6.79375, 5.18125)),
        "vicuna-7b-v1.3": pytest.approx((6.73125, 5.475)),
        greedy: pytest.approx((6.51875, 5.2375)),
    }
    shown = cli("compare", "--full", out).stdout
    for means in ("6.794/5.181", "6.731/5.475", "6.519/5.237"):
        assert means in shown


def test_a_published_difference_is_that_of_the_same_prompts_and_turns(published: Path, tmp_path: Path) -> None:
    """Worked out from the file by itself, its interval by Student's t of the means of each prompt's two turns."""
    judged, out = published / "medusa" / "gpt-4_single.jsonl", tmp_path / "scores.jsonl"
    assert _import(judged, "--out", out, "--baseline", "vicuna-7b-v1.3-greedy").exit_code == 0
    points: dict[tuple[str, int, int], float] = {}
    for line in map(json.loads, judged.read_text().splitlines()):
        points[line["model"], line["question_id"], line["turn"]] = line["score"]
    turns = [(question, turn) for question in range(81, 161) for turn in (1, 2)]
    differences = [points["vicuna-7b-v1.3", *turn] - points["vicuna-7b-v1.3-greedy", *turn] for turn in turns]
    found = _judged(out)[1]["vicuna-7b-v1.3"]
    shares = [sum(difference > 0 for difference in differences) / 160, sum(d < 0 for d in differences) / 160]
    assert [found.estimate(metric).value for metric in (SCORE_DIFFERENCE, WIN, LOSS)] == [
        pytest.approx(of) for of in (sum(differences) / 160, *shares)
    ]
    interval = found.estimate(SCORE_DIFFERENCE).interval
    by_prompt = [(differences[2 * n] + differences[2 * n + 1]) / 2 for n in range(80)]
    half = 1.9905 * stdev(by_prompt) / 80**0.5
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((0.225 - half, 0.225 + half), abs=0.02)


def test_judgements_of_answers_that_are_there_are_held_against_their_text(published: Path, tmp_path: Path) -> None:
    judged = published / "medusa" / "gpt-4_single.jsonl"
    answers = published / "medusa" / f"{MEDUSA_7B.format('-1')}.jsonl"
    both = gather([Source(answers), Source(judged)], Terms(), name="both")
    assert [notice.split()[0] for notice in both.notices] == ["320"]
    assert len(both.scores) == 160 and all(score.answer_sha256 for score in both.scores)
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    lines[0]["choices"][0]["turns"][1] = "Another text."
    other = gather([Source(_write(tmp_path / "other.jsonl", *lines)), Source(judged)], Terms(), name="other")
    assert other.notices[-1].startswith("1 judgements")
    assert len(other.scores) == 159


Fields = dict[str, Any]


def _answer(question: int = 1, model: str = "medusa-a", /, **choice: Any) -> Fields:
    usual = {"turns": ["one", "two"], "idxs": [3, 1], "new_tokens": [8, 4], "wall_time": [2.0, 1.0]}
    return {"question_id": question, "model_id": model, "choices": [{"index": 0, **usual, **choice}], "tstamp": 1.5}


def _spec_bench(question: int = 1, /, **choice: Any) -> Fields:
    fields = _answer(question, "sps", **{"decoding_steps": [4, 2], "accept_lengths": [2] * 6, **choice})
    del fields["choices"][0]["idxs"]
    return fields


def _write(path: Path, *lines: Fields) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _gather(*paths: Path, terms: Terms | None = None) -> Imported:
    return gather([Source(path) for path in paths], terms or Terms(), name="x")


@pytest.mark.parametrize(
    ("line", "program", "steps"),
    [
        (_answer(), "medusa", [4, 2]),
        (_answer(1, "ea-eagle3"), "eagle", [4, 2]),
        (_answer(**{"accept_lengths:": [1] * 6}), "rest", [4, 2]),
        (_spec_bench(), "spec-bench", [4, 2]),
        (_spec_bench(accept_lengths=[2] * 8), "spec-bench", [5, 3]),  # its script stored the last indices here
        (_spec_bench(accept_lengths=[2] * 5), "spec-bench", [None, None]),
    ],
)
def test_steps_of_each_program_are_read(tmp_path: Path, line: Fields, program: str, steps: list[int | None]) -> None:
    imported = _gather(_write(tmp_path / "a.jsonl", line))
    assert imported.run.imported == program
    totals = [row.totals for row in imported.rows]
    assert [of and of.steps for of in totals] == steps
    assert [(of and of.new_tokens, of and of.wall_s) for of in totals] == [(8, 2.0), (4, 1.0)]
    assert bool(imported.notices) == (None in steps)


def test_a_turn_its_program_failed_on_is_a_failed_generation_and_lends_no_number(tmp_path: Path) -> None:
    """These programs store the tokens and the time of the turn before it, which then enter their averages."""
    lines = [_spec_bench(1), _spec_bench(2, turns=["one", "ERROR"], new_tokens=[8, 999], wall_time=[2.0, 999.0])]
    imported = _gather(_write(tmp_path / "a.jsonl", *lines))
    assert len(imported.notices) == 1 and imported.notices[0].startswith("1 turns")
    assert [row.error is None for row in imported.rows] == [True, True, True, False]
    assert sum(row.totals.wall_s or 0 for row in imported.rows if row.totals) == 5


def test_what_an_imported_file_does_not_tell_has_no_figure_and_is_flagged(tmp_path: Path) -> None:
    paths = [_write(tmp_path / f"{name}.jsonl", *(_answer(n, f"medusa-{name}") for n in range(12))) for name in "ab"]
    group, methods = _figures(_gather(*paths), tmp_path / "out.jsonl")
    other = methods["medusa-b"]
    unknown = (TPOT, TTFT, DECODE_SPEEDUP, SOUND_SPEEDUP, TOKEN_AGREEMENT, DEGENERATION)
    assert [other.estimate(metric).value for metric in unknown] == [None] * len(unknown)
    assert (other.estimate(SPEEDUP).value, other.lossless) == (1.0, False)
    assert other.estimate(SPEEDUP).interval is None  # two processes, each measured once
    assert warned(group, "imported")[0]["program"] == "medusa"
    (cells,) = (words for line in render([group]).splitlines() if (words := line.split())[:1] == ["medusa-b"])
    assert cells[1:] == ["1.00x", "[n/a]", "4.0"]


def test_an_import_of_files_with_other_questions_is_no_unfinished_run(tmp_path: Path) -> None:
    """It was called an unfinished run, to be continued with --resume, which is impossible."""
    both = _write(tmp_path / "a.jsonl", _answer(1, "medusa-a"), _answer(2, "medusa-a"))
    one = _write(tmp_path / "b.jsonl", _answer(1, "medusa-b"))
    group, _ = _figures(_gather(both, one), tmp_path / "out.jsonl")
    assert warned(group, "imported") and warned(group, "run_unfinished") == []


def test_answers_without_counts_are_imported_without_speeds(tmp_path: Path) -> None:
    line = {"question_id": 7, "model_id": "chatty", "choices": [{"index": 0, "turns": ["one"]}]}
    imported = _gather(_write(tmp_path / "a.jsonl", line))
    assert (imported.run.imported, imported.rows[0].text) == ("fastchat", "one")
    _, methods = _figures(imported, tmp_path / "out.jsonl")
    assert methods["chatty"].estimate(TOKENS_PER_S).value is None


def test_files_of_one_label_are_sessions_of_one_method(tmp_path: Path) -> None:
    one, two = (_write(tmp_path / f"{n}.jsonl", _answer(1, f"medusa-{n}", wall_time=[n, 1.0])) for n in (1, 2))
    base = _write(tmp_path / "base.jsonl", _answer(1, "medusa-none"))
    out = tmp_path / "out.jsonl"
    result = _import(base, f"medusa={one}", f"medusa={two}", "--out", out, "--baseline", "medusa", "--target", "vicuna")
    assert result.exit_code == 0, result.output
    found = read(out)
    assert (found.run.baseline, found.run.target.name) == ("medusa", "vicuna")
    assert {(row.label, row.session) for row in found.rows} == {("medusa", 1), ("medusa", 2), ("medusa-none", 0)}


def test_two_imports_whose_target_nobody_told_are_not_of_one_target(tmp_path: Path) -> None:
    """Speeds of a 7B and of a 13B model under one label would become one mean; sessions of one baseline may."""
    outs = []
    for name, model in (("one", "medusa-7b"), ("other", "medusa-13b"), ("same", "medusa-7b")):
        answers = _write(tmp_path / f"{name}.jsonl", _answer(1, model, wall_time=[len(name), 1.0]))
        outs.append(tmp_path / f"{name}.out.jsonl")
        assert _import(f"m={answers}", "--out", outs[-1]).exit_code == 0
    one, other, same = (read(out).run for out in outs)
    assert [(found.field, found.first.strip(), found.second.strip()) for found in differences(one, other)] == [
        ("target", "unknown, of answers by medusa-7b", "unknown, of answers by medusa-13b")
    ]
    assert differences(one, same) == ()
    assert cli("compare", *outs[:2]).exit_code == 2


def test_answers_of_two_temperatures_are_no_one_run(tmp_path: Path) -> None:
    """Which would be called greedy, or sampled, as a whole; a model_id that tells none goes with those that do."""
    greedy, sampled, silent = (
        _write(tmp_path / f"{name}.jsonl", _answer(1, f"medusa-{name}", wall_time=[len(name), int(name[-1])]))
        for name in ("7b-temperature-0.0", "7b-temperature-0.7", "7b-1")
    )
    spec_bench = _write(tmp_path / "sps.jsonl", _answer(1, "medusa-vicuna-float16-temp-0.7", wall_time=[3.0, 1.0]))
    assert _gather(spec_bench).run.temperature == 0.7
    with refused("several_temperatures", "medusa-7b-temperature-0.0", "medusa-7b-temperature-0.7"):
        _gather(greedy, sampled)
    with refused("several_temperatures"):
        gather([Source(greedy, "m"), Source(sampled, "m")], Terms(), name="x")
    assert [_gather(silent, path).run.temperature for path in (greedy, sampled)] == [0.0, 0.7]


def test_a_file_that_is_given_twice_is_refused_for_it_would_count_as_another_session(tmp_path: Path) -> None:
    """Under the same name, another name, in another order, or as a run of another name with the same times."""
    lines = [_answer(n, "medusa-1", wall_time=[2.0 + n, 1.0]) for n in range(3)]
    path, copy = _write(tmp_path / "a.jsonl", *lines), _write(tmp_path / "b.jsonl", *reversed(lines))
    renamed = _write(tmp_path / "c.jsonl", *({**line, "model_id": "medusa-2"} for line in lines))
    again = _write(tmp_path / "d.jsonl", *lines[:2], _answer(2, "medusa-1", wall_time=[4.0, 1.001]))
    dotted = tmp_path / "folder" / ".." / "a.jsonl"
    (tmp_path / "folder").mkdir()
    for other in (path, dotted):
        with refused("file_twice", "a.jsonl"):
            gather([Source(path, "m"), Source(other, "other")], Terms(), name="x")
    for other in (copy, renamed):
        with refused("file_twice", other.name, "a.jsonl"):
            gather([Source(path, "m"), Source(other, "m")], Terms(), name="x")
    assert len(gather([Source(path, "m"), Source(again, "m")], Terms(), name="x").rows) == 12


def test_several_answers_to_a_question_are_its_repeats(tmp_path: Path) -> None:
    line = _answer()
    line["choices"] *= 3
    imported = _gather(_write(tmp_path / "a.jsonl", line))
    assert imported.run.repeats == 3
    assert [row.repeat for row in imported.rows] == [0, 0, 1, 1, 2, 2]


def _judgement(**changes: Any) -> Fields:
    usual = {"question_id": 1, "model": "medusa-a", "judge": ["gpt-4", "single-v1"], "turn": 1, "score": 7}
    return usual | changes


def _duel(question: int = 1, /, **changes: Any) -> Fields:
    """Of two answers, medusa-a's preferred in both orders."""
    usual = {"question_id": question, "turn": 1, "judge": ["gpt-4", "pair-v2"], "model_1": "medusa-a"}
    games = {f"{game}_{key}": of for game in ("g1", "g2") for key, of in (("winner", "model_1"), ("judgment", "[[A]]"))}
    return usual | {"model_2": "vicuna"} | games | changes


@pytest.mark.parametrize("baseline", ["vicuna", "medusa-a"])
def test_judgements_of_two_answers_become_preferences_in_both_orders(tmp_path: Path, baseline: str) -> None:
    """Whichever of the two is the baseline: one duel won in both orders, one by the first place, a tie, an error."""
    lines = [
        _duel(1),
        _duel(2, g2_winner="model_2"),
        _duel(3, g1_winner="tie", g2_winner="tie"),
        _duel(4, g2_winner="error"),
    ]
    out = tmp_path / "out.jsonl"
    ok(_import(_write(tmp_path / "a.jsonl", *lines), "--out", out, "--baseline", baseline))
    (found,) = _judged(out)[1].values()
    assert (found.pairs, found.incomplete, found.asked, found.unreadable) == (3, 1, 8, 1)
    won, lost = (WIN, LOSS) if baseline == "vicuna" else (LOSS, WIN)
    values = [found.estimate(metric).value for metric in (won, lost, TIE, CONSISTENCY, FIRST_WINS)]
    assert values == [pytest.approx(of) for of in (1 / 3, 0, 2 / 3, 2 / 3, 3 / 4)]
    difference = found.estimate(SCORE_DIFFERENCE).value
    assert difference == pytest.approx(1 / 3 if baseline == "vicuna" else -1 / 3)


def test_a_duel_is_of_the_answers_beside_it_and_of_no_two_others(tmp_path: Path) -> None:
    """Answers of two files are sessions of their own, and where they say the same no judge is needed to call a tie.
    Of the judgements one is of a model that is not here, one of a text that is not, and one not of the baseline."""
    files = [
        _write(tmp_path / "base.jsonl", _chat(1, "vicuna", "two", "y"), _chat(2, "vicuna", "same", "y")),
        _write(tmp_path / "mine.jsonl", _chat(1, "medusa-a", "one", "x"), _chat(2, "medusa-a", "same", "x")),
        _write(tmp_path / "more.jsonl", _chat(1, "medusa-b", "one", "x")),
    ]
    shown = {f"{game}_user_prompt": "shows one and two" for game in ("g1", "g2")}
    duels = [
        _duel(1, **shown),
        _duel(2),
        _duel(1, model_2="other"),
        _duel(1, **(shown | {"g1_user_prompt": "shows one and three"})),
        _duel(1, model_2="medusa-b"),
    ]
    judged = _write(tmp_path / "judged.jsonl", *duels)
    imported = gather([Source(path) for path in (*files, judged)], Terms(), name="x")
    assert sorted(notice.split()[0] for notice in imported.notices) == ["1", "2", "2"]
    out = tmp_path / "out.jsonl"
    assert _import(*files, judged, "--out", out).exit_code == 0
    found = _judged(out)[1]["medusa-a"]
    assert (found.pairs, found.identical, found.asked) == (2, 1, 3)
    assert [found.estimate(metric).value for metric in (WIN, TIE)] == [0.5, 0.5]


def _chat(question: int, model: str, *turns: str) -> Fields:
    return {"question_id": question, "model_id": model, "choices": [{"index": 0, "turns": list(turns)}]}


def test_an_unreadable_judgement_is_counted_and_never_scored(tmp_path: Path) -> None:
    lines = [_judgement(), _judgement(turn=2, score=-1)]
    imported = _gather(_write(tmp_path / "a.jsonl", *lines))
    assert [(score.score, bool(score.unreadable)) for score in imported.scores] == [(7.0, False), (None, True)]
    assert imported.notices[0].startswith("1 judgements")


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_scores_go_to_the_answers_of_their_model_whatever_their_label(tmp_path: Path, order: tuple[int, ...]) -> None:
    """Of three runs that share a label two were judged, and one model that has no answers here."""
    sources = [
        Source(_write(tmp_path / f"{n}.jsonl", _answer(1, f"medusa-{n}", wall_time=[1.0, n])), "medusa")
        for n in (1, 2, 3)
    ]
    scores = {"medusa-1": 5, "medusa-3": 9, "other": 2}
    judged = [_judgement(model=model, turn=turn, score=of) for model, of in scores.items() for turn in (1, 2)]
    sources.append(Source(_write(tmp_path / "judged.jsonl", *judged)))
    imported = gather([sources[n] for n in order], Terms(), name="x")
    scored = {(score.session, score.turn): score.score for score in imported.scores}
    by_time = {
        row.totals.wall_s: scored.get((row.session, row.turn)) for row in imported.rows if row.totals and row.turn
    }
    assert by_time == {1.0: 5, 2.0: None, 3.0: 9}
    assert [notice.split()[0] for notice in imported.notices] == ["2"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({**_answer(2), "tstamp": 1.7e12}, "tstamp"),
        ({**_answer(2), "tstamp": 10**400}, "tstamp"),
        ({**_answer(2), "tstamp": -1}, "tstamp"),
        ({**_answer(2), "question_id": None}, "question_id"),
        (_answer(2, wall_time=[2.0, 10**400]), "wall_time"),
        (_answer(2, wall_time=[2.0, float("inf")]), "is no JSON object"),
        (_answer(2, wall_time=[2.0, float("nan")]), "is no JSON object"),
        (_answer(2, wall_time=[2.0, -1.0]), "wall_time"),
        (_answer(2, wall_time=[2.0]), "2 turns, but 2 new_tokens, 1 wall_time, 2 steps"),
        (_answer(2, wall_time=None), "wall_time is missing"),
        (_answer(2, new_tokens=[8, 2**70]), "new_tokens"),
        (_answer(2, new_tokens=[8, -4]), "new_tokens"),
        (_answer(2, new_tokens=[8, True]), "new_tokens"),
        (_answer(2, new_tokens="8"), "new_tokens"),
        (_answer(2, idxs=[3, 4]), "turn 1 has 5 steps for 4 new_tokens"),
        (_answer(2, turns=[1, 2]), "turns"),
        (_answer(2, **{"accept_lengths:": [1] * 5}), "6 steps, but accept_lengths 5"),
        (_answer(2, "ess-vicuna"), "Medusa or of EAGLE.*--format"),
        (_answer(1), "a second answer of medusa-a to question 1"),
        ({"prompt": "Hello"}, "missing required field"),
        ({"question_id": 5, "model_id": "a", "choices": []}, "choices"),
        (_judgement(score="high"), "score"),
        (_judgement(score=70), "score"),
        (_judgement(score=0), "score is 0, but should be from 1 to 10, or -1"),
        (_judgement(score=10**400), "score"),
        (_judgement(turn=0), "turn"),
        ({"judge": ["gpt-4"], "turn": 1, "question_id": 1}, "model_1"),
        (_duel(g1_winner="A"), "g1_winner"),
        (_duel(model_2="medusa-a"), "model_1 and model_2 are both 'medusa-a'"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_with_its_number(tmp_path: Path, line: Fields, problem: str) -> None:
    path = _write(tmp_path / "a.jsonl", _answer(), line)
    with pytest.raises(InvalidData, match=f"a.jsonl:2: .*{problem}"):
        _gather(path)


@pytest.mark.parametrize("text", ["{", "[1]", "7", "not json"])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, text: str) -> None:
    path = _write(tmp_path / "a.jsonl", _answer())
    path.write_text(path.read_text() + text + "\n")
    with refused("no_object", "a.jsonl:2"):
        _gather(path)
    out = tmp_path / "out.jsonl"
    assert (_import(path, "--out", out).exit_code, out.exists()) == (3, False)


def test_bytes_that_are_no_text_are_named_in_any_field(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(json.dumps(_judgement()).encode() + b"\n" + json.dumps(_judgement(judgment="?")).encode())
    path.write_bytes(path.read_bytes().replace(b'"?"', b'"\xff"'))
    with refused("no_object", "j.jsonl:2"):
        _gather(path)


def test_judgements_without_their_answers_are_not_judged_again(tmp_path: Path) -> None:
    """Their empty texts are equal, so every pair was a tie."""
    judged, out = _write(tmp_path / "j.jsonl", _judgement(), _judgement(model="other")), tmp_path / "out.jsonl"
    ok(_import(judged, "--suite", "mt-bench", "--out", out))
    left_out = Counter[str]()
    assert list(pairs_of(read(out), {}, read(out).run.baseline, left_out, alone=False)) == []
    assert left_out == {"a text": 1}


def test_wrong_usage_says_what_to_do(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.jsonl", _answer())
    with refused("unknown_baseline", "x", "medusa-a"):
        _gather(path, terms=Terms(baseline="x"))
    with refused("cannot_read", "missing.jsonl"):
        _gather(tmp_path / "missing.jsonl")
    with refused("no_answers", "empty.jsonl"):
        _gather(_write(tmp_path / "empty.jsonl"))
    with refused("labelled_judgements", "j.jsonl"):
        gather([Source(_write(tmp_path / "j.jsonl", _judgement()), "me")], Terms(), name="x")
    assert _import(path, "--out", path).exit_code == 2  # exists


def test_a_format_that_is_said_is_not_guessed(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.jsonl", _answer(1, "ess-vicuna-70b-temperature-0.7"))
    imported = _gather(path, terms=Terms(format="eagle"))
    assert (imported.run.imported, imported.run.temperature) == ("eagle", 0.7)
