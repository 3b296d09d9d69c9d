"""ROUGE-L and chrF of texts whose common parts can be counted by hand."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_records import (
    BASELINE,
    DRAFTED,
    EXITING,
    KOALA,
    MT_BENCH,
    RUN,
    baseline_row,
    drafted_row,
    exiting_row,
    write,
)

from benchctl.analysis.comparison import compare
from benchctl.analysis.metrics.faithfulness import CHRF, ROUGE_L
from benchctl.analysis.metrics.overlap import Overlap, _Words, overlap
from benchctl.analysis.metrics.text_overlap import with_overlap
from benchctl.records.schema import Row
from benchctl.records.writer import read


@pytest.mark.parametrize(
    ("text", "reference", "rouge_l"),
    [
        ("the cat sat", "the cat sat", 1.0),
        # Of 4 words of the text and 3 of the reference 2 are common in order: precision 1/2, recall 2/3.
        ("the dog cat ran", "the cat sat", 4 / 7),
        ("cat the", "the cat", 0.5),  # the words are the same, their order is not
        ("The CAT, sat!", "the cat sat.", 1.0),
        ("dog", "cat", 0.0),
        ("кот сидел тут", "кот лежал тут", 2 / 3),  # the library's own tokenizer would find no word here
    ],
)
def test_rouge_l_is_the_f_measure_of_the_longest_common_subsequence_of_words(
    text: str, reference: str, rouge_l: float
) -> None:
    assert overlap(text, reference).rouge_l == pytest.approx(rouge_l)


def test_words_are_those_of_the_library_wherever_it_knows_them() -> None:
    from rouge_score.tokenizers import DefaultTokenizer

    text = "It's 3.5 x_1 -- (So) END-to-end,\n\tdone."
    assert _Words().tokenize(text) == DefaultTokenizer().tokenize(text)


def test_chrf_is_the_mean_over_lengths_of_the_f2_measure_of_character_n_grams() -> None:
    """abcd against abce: of 4, 3, 2 and 1 n-grams of lengths 1 to 4 there are 3, 2, 1 and 0 in common, so precision and
    recall are the same; longer ones do not occur, and their lengths do not count."""
    shares = [3 / 4, 2 / 3, 1 / 2, 0.0]
    assert overlap("abcd", "abce").chrf == pytest.approx(sum(shares) / 4)


def test_recall_counts_twice_in_chrf() -> None:
    """ab against abab: both unigrams of two found of four, the bigram ab of three (ab ba ab)."""
    precision, recall = 1.0, (2 / 4 + 1 / 3) / 2
    expected = 5 * precision * recall / (4 * precision + recall)
    assert overlap("ab", "abab").chrf == pytest.approx(expected)
    assert overlap("abab", "ab").chrf > overlap("ab", "abab").chrf


def test_equal_texts_overlap_fully_even_without_a_word() -> None:
    assert overlap("", "") == overlap("?!", "?!") == Overlap(1.0, 1.0)
    assert overlap("", "cat") == Overlap(0.0, 0.0)


def _spoken(row: Row, text: str) -> Row:
    return replace(row, text=text)


def test_overlap_is_the_mean_over_greedy_answers_and_asked_for(tmp_path: Path) -> None:
    rows = [
        *(_spoken(row("p0"), "the cat sat") for row in (baseline_row, drafted_row, exiting_row)),
        *(_spoken(row("p1"), "the cat sat") for row in (baseline_row, drafted_row)),
        _spoken(exiting_row("p1"), "the dog cat ran"),
    ]
    groups = compare([read(write(tmp_path / "run.jsonl", rows))], texts=True)
    assert all(method.estimate(ROUGE_L).value is None for method in groups[0].pooled.methods)
    found = {method.label: method.estimate(ROUGE_L).value for method in with_overlap(groups)[0].pooled.methods}
    assert found == {BASELINE: None, DRAFTED: 1.0, EXITING: pytest.approx((1 + 4 / 7) / 2)}
    chrf = [method.estimate(CHRF).value for method in with_overlap(groups)[0].pooled.methods]
    assert chrf[:2] == [None, 1.0] and chrf[2] is not None and 0.5 < chrf[2] < 1.0


def test_each_suite_has_its_own_overlap_and_all_together_theirs(tmp_path: Path) -> None:
    run = replace(RUN, suites=(KOALA, MT_BENCH))
    told = [baseline_row("p0"), exiting_row("p0")]
    rows = [*told, *(replace(row, suite="mt-bench") for row in told)]
    rows[3] = _spoken(rows[3], "nothing of the kind")
    (group,) = with_overlap(compare([read(write(tmp_path / "run.jsonl", rows, run))], texts=True))
    found = {suite.suite: suite.methods[-1].estimate(ROUGE_L).value for suite in group.suites}
    assert found == {"koala": 1.0, "mt-bench": 0.0, "all suites": 0.5}


def test_sampled_answers_have_no_overlap(tmp_path: Path) -> None:
    rows = [baseline_row(), replace(drafted_row(), verdict="sampled", text="other")]
    (group,) = with_overlap(compare([read(write(tmp_path / "run.jsonl", rows))], texts=True))
    assert [method.estimate(ROUGE_L).value for method in group.pooled.methods] == [None, None]


def test_texts_that_were_not_kept_do_not_overlap(tmp_path: Path) -> None:
    """Answers without their texts would all be equal, and their overlap 1."""
    groups = compare([read(write(tmp_path / "run.jsonl", [baseline_row(), exiting_row()]))])
    with pytest.raises(ValueError, match="texts=True"):
        with_overlap(groups)


def test_comparing_loads_neither_library_before_two_texts_differ() -> None:
    code = (
        "import sys; from benchctl.analysis.metrics.text_overlap import with_overlap; "
        "from benchctl.analysis.metrics.overlap import overlap; overlap('a', 'a'); "
        "sys.exit(bool({'rouge_score', 'sacrebleu', 'nltk'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
