"""The parts of judging, each alone: replies, the cache, the budget, prices, estimates of tokens, prompts."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from benchctl.judging.budget import Price, price_of, price_table
from benchctl.judging.chat import load_template, most_tokens, read_scores
from benchctl.judging.judge import Message, Question
from benchctl.judging.reply_cache import Cache, Kept, cache_path, content_key

KEPT = Kept("a" * 64, 0, "m", "t@0", "8 7", "", 10, 2, "2026-01-01T00:00:00+00:00")


def test_what_is_kept_is_there_when_the_cache_is_opened_again(tmp_path: Path) -> None:
    """A reply with half a surrogate pair once made the whole cache unreadable."""
    with Cache(tmp_path, "gpt[model=a/b]") as cache:
        cache.keep(KEPT)
        cache.keep(replace(KEPT, text="9 8\n\u00e9"))
        cache.keep(replace(KEPT, text="7 6 \ud83d \U0001f600"))
        assert cache.tries(KEPT.key)[2].text == "7 6 \ufffd \U0001f600"
    with Cache(tmp_path, "gpt[model=a/b]") as cache:
        assert [kept.text for kept in cache.tries(KEPT.key)] == ["8 7", "9 8\n\u00e9", "7 6 \ufffd \U0001f600"]
        assert cache.tries("b" * 64) == ()


@pytest.mark.parametrize("length", [1, 40, -1])
def test_a_torn_last_line_is_cut_off_and_told(tmp_path: Path, length: int) -> None:
    notices: list[str] = []
    with Cache(tmp_path, "gpt") as cache:
        cache.keep(KEPT)
        cache.keep(replace(KEPT, key="b" * 64))
    whole = cache.path.read_bytes()
    first = whole.index(b"\n") + 1
    cache.path.write_bytes(whole[: first + length] if length > 0 else whole[:length])
    with Cache(tmp_path, "gpt", notify=notices.append) as cache:
        found = len(cache.tries("b" * 64))
        cache.keep(replace(KEPT, key="c" * 64))
    # A line that lacks its newline alone says all that it had to say.
    assert (found, len(notices)) == ((1, 0) if length < 0 else (0, 1))
    with Cache(tmp_path, "gpt") as cache:
        assert len(cache.tries("c" * 64)) == 1


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    cache_path(tmp_path, "gpt").write_text('{"key": 1}\n')
    with refused("broken_line", ".jsonl:1"), Cache(tmp_path, "gpt"):
        pass


def test_the_key_changes_with_all_that_a_reply_depends_on() -> None:
    def key(
        judge: str = "j", model: str = "m", template: str = "t", texts: tuple[str, ...] = ("a", "b"), sample: int = 0
    ) -> str:
        return content_key(judge, model, template, [Message("user", text) for text in texts], sample)

    keys = [
        key(),
        key("k"),
        key(model="n"),
        key(template="u"),
        key(texts=("b", "a")),
        key(texts=("ab",)),
        key(sample=1),
    ]
    assert len(set(keys)) == len(keys)
    assert key() == key()


def test_dated_names_cost_what_their_model_does_and_unknown_ones_nobody_knows() -> None:
    table = price_table()
    assert table.price("gpt-4o-2024-08-06") == table.price("gpt-4o") is not None
    assert table.price("gpt-4o-audio") is None
    assert table.context_tokens("gpt-4") == 8192
    assert table.date and table.source


def test_prices_by_hand_go_before_the_table_which_is_of_the_usual_address_alone() -> None:
    assert price_of("gpt-4o", None, None, at_usual_address=False) is None
    assert price_of("gpt-4o", 1.0, None, at_usual_address=True) == replace(_table_price(), in_usd=1.0)
    assert price_of("mine", 1.0, 2.0, at_usual_address=False) == Price(1.0, 2.0)
    with refused("one_price_missing", "--price-in", "--price-out"):
        price_of("mine", 1.0, None, at_usual_address=False)


def _table_price() -> Price:
    found = price_table().price("gpt-4o")
    assert found is not None
    return found


TEXTS = ("", "plain", "It\u2019s 4 \u20ac, \U0001f600!", "half \ud83d a pair", "\u4f60\u597d\u4e16\u754c" * 9)


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("vocabulary", ["cl100k_base", "o200k_base"])
def test_no_text_is_billed_above_its_bound(text: str, vocabulary: str) -> None:
    """The bound was once 1.3 times the estimate, which base64, random letters and rare scripts pass by far."""
    tokenizers: Any = pytest.importorskip("bpe_openai", reason="no tokenizer of OpenAI's models here")
    encoding = tokenizers.get_encoding(vocabulary)
    whole = text.encode("utf-8", "replace").decode()
    dearest = "".join(chr(33 + (7 * at * at + 3) % 94) for at in range(400))
    for each in (whole, whole + dearest, dearest.upper(), "\u1208\u12a0\u12ed" * 50, "Wq" * 99):
        billed = len(encoding.encode(each)) + 3 + 3
        assert billed <= most_tokens([each])
    assert most_tokens([text]) == len(text.encode("utf-8", "surrogatepass")) + 4 + 3


@pytest.mark.parametrize("protocol", ["pairwise", "single"])
@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("reference", [(), ("R one", "R two")])
def test_every_prompt_asks_for_scores_and_shows_all_texts(
    protocol: str, turns: int, reference: tuple[str, ...]
) -> None:
    """Every line that begins or ends an answer has the mark, so that an answer cannot end itself."""
    asked, first = ("Q one", "Q two")[:turns], ("A one", "A two {mark}")[:turns]
    second = ("B one", "B two")[:turns] if protocol == "pairwise" else ()
    template = load_template(protocol, turns, bool(reference))
    system, user = template.fill(Question(asked, first, second, reference[:turns]), "0123")
    assert "single line that holds only" in system.content and "from 1 to 10" in system.content
    talks = turns == 2 and 1 + bool(second) + bool(reference)
    for text in (*asked, *first, *second, *reference[:turns]):
        assert user.content.count(text) == (talks or 1 if text in asked else 1)
    own = "-reference" if reference and protocol == "pairwise" else ""
    assert template.id.startswith(f"{protocol}{'-turns' if turns == 2 else ''}{own}-v2@")
    assert ("Reference answer" in user.content) == bool(reference)
    assert reference == () or "contradicts" in system.content
    frame = [line for line in user.content.splitlines() if line.startswith(("[Start", "[End"))]
    assert [line.endswith(" 0123]") for line in frame] == [True] * (4 if second else 2)
    assert "0123." in system.content and user.content.count("{") == turns - 1


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


@pytest.mark.parametrize(("scores", "reply"), [(two, reply) for two, replies in PAIRS.items() for reply in replies])
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
