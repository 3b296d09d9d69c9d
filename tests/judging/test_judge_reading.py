"""What counts as scores in a judge's reply, and what does not."""

import pytest

from benchctl.judging.chat import read_scores


@pytest.mark.parametrize(
    "reply",
    [
        "8 7",
        " 8 7\n",
        "8.0 7.0",
        "8, 7",
        "**8 7**",
        "[[8]] [[7]]",
        "8/10 7/10",
        "8 out of 10 and 7 out of 10",
        "Scores: 8 7",
        "Assistant A: 8, assistant B: 7",
        "Assistant A's score is 8 and B's score is 7.",
        "8 7\n\nAnswer A has 3 errors, and answer B has 5 of them.",
        "I give A a 8 and B a 7.",
        "A and B get 8 and 7.",
        "answer a: 8, answer b: 7",
        "8-7",
        "Scores (1-10):\n8 7",
    ],
)
def test_two_scores_on_one_line_are_read(reply: str) -> None:
    assert read_scores(reply, 2) == (8.0, 7.0)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "I'm sorry, I cannot judge that.",
        "8",
        "8 7 6",
        "A: 8\nB: 7",
        "8 7\n7 8",
        "11 7",
        "0 7",
        "-8 7",
        "eight seven",
        "nan 7",
        "1e1 7",
        "3.5.2 7",
        "Answer 1 is better than answer 2.",
        "Answer A has 3 errors, answer B has 5.",
        "Assistant 1: 8",
        "Assistant B: 7, assistant A: 8",
        "Answer b: 7, answer a: 8",
        "B: 7, A: 8",
        "I give a 7 to B and a 8 to A.",
        "Score the answers with 1 to 10.",
        "8 of 10",
        "Scores (1-10):",
        "The scores are 1 \u2013 10.",
        "1-10",
    ],
)
def test_what_is_not_surely_two_scores_from_1_to_10_is_not_read(reply: str) -> None:
    """The numbers that name answers, or count errors, or are the ends of a scale, were once read as the scores of both;
    and where B was named first, each got the score of the other."""
    assert read_scores(reply, 2) is None


@pytest.mark.parametrize(("reply", "score"), [("7", 7.0), ("Rating: [[7.5]]", 7.5), ("7/10", 7.0), ("10", 10.0)])
def test_a_single_score_is_read(reply: str, score: float) -> None:
    assert read_scores(reply, 1) == (score,)


@pytest.mark.parametrize("reply", ["8 7", "0.5", "10.5", "7\n8", "turn 2"])
def test_what_is_not_one_score_is_not_read_as_one(reply: str) -> None:
    assert read_scores(reply, 1) is None
