"""Which answers a report shows, and that what it says of their texts is what the tokens say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_records import BASELINE, DRAFTED, EXITING, RUN, baseline_row, drafted_row, usual_rows, write
from fixtures_scores import own, score, write_both
from pages import TWO_SUITES, groups_of, two_suites, usual_groups

from benchctl.analysis.comparison import compare
from benchctl.analysis.html import answers as html_answers
from benchctl.analysis.html.answers import ComparedAnswer, Decode, answered, answers
from benchctl.bundled import default_target
from benchctl.decoding.model.tokenizer import token_text
from benchctl.records.schema import Row
from benchctl.records.writer import read

WORDS = ("A", " b", " c", " d", "😀", "é", " <g>", " h", " i", " j")


def _decode(ids: Sequence[int]) -> str:
    return "".join(WORDS[number] for number in ids)


def _said(row: Row) -> Row:
    return replace(row, text=_decode(row.token_ids))


def _found(tmp_path: Path, rows: list[Row], decode: Decode | None = _decode) -> list[ComparedAnswer]:
    (group,) = groups_of(tmp_path, rows)
    return list(answers(1, group, lambda run: decode))


def _utf_16(text: str, start: int, length: int) -> str:
    return text.encode("utf-16-le")[2 * start : 2 * (start + length)].decode("utf-16-le")


def _drafted(found: Sequence[ComparedAnswer]) -> ComparedAnswer:
    return next(each for each in found if each.place.label == DRAFTED)


def test_each_step_is_coloured_where_its_tokens_are_in_the_text_as_browsers_count(tmp_path: Path) -> None:
    """A smile is two units in a browser and one character in Python: offsets in characters would colour the wrong
    letters from there on. Token 0 is prefill's; each step accepts one token and adds one."""
    found = _drafted(_found(tmp_path, [_said(baseline_row()), _said(drafted_row())])).answer
    assert found.spans is not None
    at, pieces = 0, []
    for accepted, added in found.spans:
        pieces.append((_utf_16(found.text, at, accepted), _utf_16(found.text, at + accepted, added)))
        at += accepted + added
    assert pieces == [("", "A"), (" b", " c"), (" d", "😀"), ("é", " <g>"), (" h", " i")]
    assert found.steps == ((1, 2),) * 4


def test_the_cut_is_where_the_token_of_the_first_divergence_begins(tmp_path: Path) -> None:
    """Not where letters begin to differ: " c" and " cow" differ in their last letter, the tokens in their first."""
    usual = _said(baseline_row())
    other = replace(
        _said(replace(drafted_row(), token_ids=(0, 1, 9, 3, 4, 5, 6, 7, 8))),
        verdict="lossy", first_divergence=2, margin=0.5, noise=0.1,
    )  # fmt: skip
    found = _drafted(_found(tmp_path, [usual, other]))
    assert (found.answer.cut, found.baseline.cut) == (3, 3)
    assert (found.verdict, found.first_divergence, found.margin, found.noise) == ("lossy", 2, 0.5, 0.1)


def test_without_a_tokenizer_the_cut_is_the_first_letter_that_differs_and_nothing_is_coloured(tmp_path: Path) -> None:
    rows = [replace(baseline_row(), text="a smile 😀 here"), replace(drafted_row(), text="a smile 😀 there",
            verdict="lossy", first_divergence=3, margin=0.5, noise=0.1)]  # fmt: skip
    found = _drafted(_found(tmp_path, rows, None))
    assert (found.answer.cut, found.baseline.cut, found.answer.spans) == (11, 11, None)


def test_an_answer_that_only_ended_earlier_is_cut_at_its_end(tmp_path: Path) -> None:
    rows = [replace(baseline_row(), text="more text"), replace(drafted_row(), text="more", verdict="lossy",
            first_divergence=3, margin=None, noise=None)]  # fmt: skip
    found = _drafted(_found(tmp_path, rows, None))
    assert (found.answer.cut, found.baseline.cut) == (4, 4)


def test_identical_answers_have_no_cut(tmp_path: Path) -> None:
    found = _drafted(_found(tmp_path, [_said(baseline_row()), _said(drafted_row())]))
    assert (found.answer.cut, found.baseline.cut) == (None, None)


def test_a_tokenizer_that_is_not_the_run_s_colours_nothing(tmp_path: Path) -> None:
    rows = [_said(baseline_row()), _said(drafted_row())]
    found = _drafted(_found(tmp_path, rows, lambda ids: "x" * len(ids)))
    assert found.answer.spans is None


def test_a_character_of_several_tokens_is_not_torn(tmp_path: Path) -> None:
    """Half of a character decodes to a replacement character, which must not enter the text."""
    whole = "😀".encode()

    def by_byte(ids: Sequence[int]) -> str:
        return bytes(whole[number % 4] for number in ids).decode("utf-8", "replace")

    drafted = replace(drafted_row(), token_ids=tuple(range(8)), committed=(2, 2, 2, 1), layers=(12,) * 8, text="😀😀")
    rows = [replace(baseline_row(tokens=8), text="😀😀"), drafted]
    found = _drafted(_found(tmp_path, rows, by_byte)).answer
    assert found.spans is not None
    assert sum(map(sum, found.spans)) == 4
    assert [sum(span) for span in found.spans] == [0, 0, 2, 0, 2]


def test_the_text_of_real_tokens_is_found_again(root: Path) -> None:
    """With the embedded tokenizer, on a published run: every answer that drafted is coloured from end to end."""
    run = read(root / "results/reference/default.jsonl")
    (group,) = compare([replace(run, rows=run.rows[:120])])
    found = answers(1, group, lambda run: token_text(default_target().path))
    drafted = [each.answer for each in found if each.answer.steps]
    assert len(drafted) > 20
    for answer in drafted:
        assert answer.spans is not None and len(answer.spans) == 1 + len(answer.steps)
        assert sum(map(sum, answer.spans)) == len(answer.text.encode("utf-16-le")) // 2


def test_a_folder_without_a_fast_tokenizer_has_no_text(tmp_path: Path) -> None:
    assert token_text(tmp_path) is None


def test_answers_that_leave_the_baseline_s_come_first_and_suites_take_turns(tmp_path: Path) -> None:
    rows = [
        replace(row, verdict="lossy", first_divergence=1, margin=0.1, noise=0.0)
        if row.label == DRAFTED and row.prompt_id in ("p7", "p9")
        else row
        for row in two_suites()
    ]
    (group,) = groups_of(tmp_path, rows, TWO_SUITES)
    own_answers = [each for each in answers(1, group, lambda run: None) if each.place.label == DRAFTED]
    places = [(each.verdict, each.place.suite, each.place.prompt_id) for each in own_answers[:6]]
    assert places == [
        ("lossy", "koala", "p7"),
        ("lossy", "mt-bench", "p7"),
        ("lossy", "koala", "p9"),
        ("lossy", "mt-bench", "p9"),
        ("identical", "koala", "p0"),
        ("identical", "mt-bench", "p0"),
    ]


def test_repeats_are_shown_once_and_warm_up_and_failures_never(tmp_path: Path) -> None:
    rows = [replace(row, repeat=repeat) for repeat in (-1, 0, 1) for row in usual_rows(3)]
    (group,) = groups_of(tmp_path, rows)
    found = answers(1, group, lambda run: None)
    assert sorted((each.place.label, each.place.prompt_id, each.place.repeat) for each in found) == [
        (label, f"p{number}", 0) for label in sorted((EXITING, DRAFTED)) for number in range(3)
    ]
    assert answered(group) == 6


def test_an_answer_that_left_the_baseline_s_in_one_repeat_alone_is_the_one_shown(tmp_path: Path) -> None:
    """Of each turn the first repeat was shown, so that a divergence which the figures counted could not be seen."""
    rows = [replace(row, repeat=repeat) for repeat in (0, 1, 2) for row in usual_rows(3)]
    odd = next(at for at, row in enumerate(rows) if (row.label, row.prompt_id, row.repeat) == (DRAFTED, "p2", 1))
    rows[odd] = replace(rows[odd], verdict="lossy", first_divergence=1, margin=0.1, noise=0.0)
    (group,) = groups_of(tmp_path, rows)
    found = [each for each in answers(1, group, lambda run: None) if each.place.label == DRAFTED]
    assert [(each.verdict, each.place.prompt_id, each.place.repeat) for each in found] == [
        ("lossy", "p2", 1),
        ("identical", "p0", 0),
        ("identical", "p1", 0),
    ]


def test_no_method_has_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_answers, "MOST_OF_A_METHOD", 4)
    (group,) = usual_groups()
    labels = [each.place.label for each in answers(1, group, lambda run: None)]
    assert labels == [DRAFTED, EXITING] * 4
    assert answered(group) == 40


def test_what_judges_said_stands_by_the_answer_it_was_said_of(tmp_path: Path) -> None:
    """A score of a text that was measured anew since is of no answer here."""
    rows = [replace(row, text="mine") if row.label == EXITING else row for row in usual_rows(3)]
    scores = [
        score("p0", 4, 9, reply="4 9\nIt says <b>nothing</b>."),
        own(EXITING, "p1", 6, reply="6"),
        score("p2", 5, 5, answer_sha256="0" * 64),
    ]
    path = write_both(tmp_path / "run.jsonl", rows, scores, RUN)
    (group,) = compare([read(path)], ())
    found = {each.place.prompt_id: each.judgements for each in answers(1, group, lambda run: None)
             if each.place.label == EXITING}  # fmt: skip
    (said,) = found["p0"]
    assert (said["score"], said["baseline_score"], said["order"]) == (4, 9, "baseline_first")
    assert said["reply"] == "4 9\nIt says <b>nothing</b>." and str(said["judge"]).startswith("gpt")
    assert [(said["score"], said["baseline_score"]) for said in found["p1"]] == [(6, None)]
    assert found["p2"] == ()


def test_sessions_are_told_apart(tmp_path: Path) -> None:
    """Two files of one group hold answers under the same keys: each stands beside the baseline's of its own file."""
    one, two = (
        write(tmp_path / f"{name}.jsonl", [replace(row, text=f"{name} {row.label}") for row in usual_rows(2)])
        for name in ("one", "two")
    )
    (group,) = compare([read(one), read(two)])
    found = answers(1, group, lambda run: None)
    assert {(each.place.file, each.answer.text.split()[0], each.baseline.text) for each in found} == {
        (0, "one", f"one {BASELINE}")
    }
