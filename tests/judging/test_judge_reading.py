"""The table of replies: what each must be read as. Two scores of the scale asked for, or nothing."""

import time

import pytest

from benchctl.judging.chat import read_scores

# What is read, by the scores. Every line with a digit must say the same scores.
PAIRS = {
    (8.0, 7.0): [
        *("8 7", " 8 7\n", "8 7.", "8.0 7.0", "8\t7", "8\u00a07", "8, 7", "8,7", "8;7", "8 and 7", "[8, 7]"),
        *("(8, 7)", "| 8 | 7 |", "**8 7**", "**8** **7**", "[[8]] [[7]]", "8/10 7/10"),
        *("8 out of 10 and 7 out of 10", "\uff18 \uff17", "\u0668 \u0667", "\u096e \u096d", "Score: 8 7"),
        *("**Final scores:** 8, 7", "Scores (1-10): 8 7", "Scores (1-10):\n8 7"),
        *("Scores of assistant A and assistant B, on one line: 8 7", '{"scores": [8, 7]}'),
        *('{"score_a": 8, "score_b": 7}', '{"A": 8, "B": 7}', "__Assistant A__: 8, __Assistant B__: 7"),
        *("_A_ 8 _B_ 7", "Assistant A: 8/10, assistant B: 7/10", "answer a: 8, answer b: 7"),
        *("answer_A: 8, answer_B: 7", "Assistant A's score is 8 and B's score is 7."),
        *("Here you are:\n8 7\nThe first answer is clearer.",),
        *("<think>\nThe first has 3 errors, so 9 4.\n</think>\n8 7", "8 7\nScores: 8 7"),
    ],
    (8.0, 5.0): ["8,5"],  # where two scores are asked for a comma parts them; a decimal comma would be one score
    (7.1234, 6.5): ["7.1234 6.5000\nmeans over replies of its probability"],
    (10.0, 1.0): ["10 1", "10/10 1/10"],
}


@pytest.mark.parametrize(
    ("scores", "reply"), [(scores, reply) for scores, replies in PAIRS.items() for reply in replies]
)
def test_two_scores_on_one_line_are_read(scores: tuple[float, float], reply: str) -> None:
    assert read_scores(reply, 2) == scores


UNREADABLE = {
    "no scores": ["", "I'm sorry, I cannot judge that.", "eight seven", "\u2167 \u2166", "\u00bd", "\u2078 \u2077"],
    "another count": ["8", "8 7 6", "7,5 8", "8 7,5", "8.5", "A: 8\nB: 7", "8\n7", "Assistant 1: 8", "8. 7."],
    "not from 1 to 10": ["11 7", "0 7", "-8 7", "\u22128 7", "8 10.5", "80 70", "nan 7", "1e1 7", "3.5.2 7"],
    "swapped names": [
        *('{"score_b": 7, "score_a": 8}', '{"assistant_b": 7, "assistant_a": 8}', '{"B":7,"A":8}'),
        *("assistant_b: 7, assistant_a: 8", "__Assistant B__: 7, __Assistant A__: 8", "_B_ 7 _A_ 8"),
        *("answer_B: 7, answer_A: 8", "Assistant-B: 7, Assistant-A: 8", "Assistant B: 7, assistant A: 8"),
        *("Answer b: 7, answer a: 8", "I give a 7 to B and a 8 to A."),
        *("Scores of assistant B and assistant A: 7 8",),
    ],
    "contradictions": [
        *("8 7\n7 8", "8 7\nFinal scores: A: 3, B: 9", "Draft:\n8 7\nFinal: 3 9"),
        *("8 7\nOn reflection 3 and 9.", "8 7\nAnswer A has 3 errors, and answer B has 5 of them."),
        *("8 7</think>3 9\n4 4", "<think>\n8 7\nhmm"),
    ],
    "fractions": ["4/5", "3/4", "8/5 7/5", "80/100 70/100", "8/10/10 7", "8 of 10", "8/10", "8 \u00bd 7"],
    "ranges": [
        *("7-8", "8-7", "7 to 8", "8-9 7", "7 - 8", "1-10", "7\u20138", "The scores are 1 \u2013 10."),
        *("Scores (1-10):",),
    ],
    "other scales": ["4 5\n(on a scale of 1 to 5)", "8 7\n(scale of 1 to 100)", "Scores (1-100): 8 7", "8% 7%"],
    "signs": ["<5 7", ">8 7", "8+ 7", "~8 7", "8? 7?"],
    "other numbers": [
        *("Answer 1 is better than answer 2.", "Answer A has 3 errors, answer B has 5."),
        *("Score the answers with 1 to 10.", "1. 8 7"),
    ],
}


@pytest.mark.parametrize(("why", "reply"), [(why, reply) for why, replies in UNREADABLE.items() for reply in replies])
def test_what_is_not_surely_two_scores_from_1_to_10_is_not_read(why: str, reply: str) -> None:
    """Names behind an underscore were once no names, so that swapped scores were read; a bare line once won over a line
    that contradicts it, and a fraction, a range and one score of five counted as two scores."""
    assert read_scores(reply, 2) is None


@pytest.mark.parametrize(
    ("reply", "score"),
    [("7", 7.0), ("Rating: [[7.5]]", 7.5), ("7/10", 7.0), ("10", 10.0), ("Score: 3.", 3.0), ('{"score": 8}', 8.0)],
)
def test_a_single_score_is_read(reply: str, score: float) -> None:
    assert read_scores(reply, 1) == (score,)


@pytest.mark.parametrize(
    "reply", ["8 7", "0.5", "10.5", "7\n8", "turn 2", "3.\n", "8\nFinal score: 3", "7,5", "4/5", "7-8", "<5"]
)
def test_what_is_not_one_score_is_not_read_as_one(reply: str) -> None:
    """`3.` begins a list."""
    assert read_scores(reply, 1) is None


@pytest.mark.parametrize(
    "reply",
    ["8" * 90_000 + "x", " " * 90_000 + "8 7 x", "8 " * 45_000, "8\n" * 45_000, "/10" * 30_000, "8 7 " + "(1" * 40_000],
)
def test_a_hostile_reply_is_read_in_no_time(reply: str) -> None:
    """20,000 digits and a letter once took seconds: the time grew with the square of the length."""
    begun_s = time.process_time()
    assert read_scores(reply, 2) is None
    assert time.process_time() - begun_s < 1.0


def test_a_reply_above_100_kb_is_not_read() -> None:
    assert read_scores("8 7" + "\nwords" * 10_000, 2) == (8.0, 7.0)
    assert read_scores("8 7" + "\nwords" * 20_000, 2) is None
