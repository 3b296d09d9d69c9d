"""The parts of judging, each alone: the cache, the budget, patience, prices, estimates of tokens, prompts."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from benchctl.errors import UserError
from benchctl.judging.budget import NOTHING, Budget, Price, price_of, price_table
from benchctl.judging.chat import load_template, most_tokens
from benchctl.judging.judge import Message, Question, Usage
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
    with refused("bad_reply_line", ".jsonl:1"), Cache(tmp_path, "gpt"):
        pass


def test_a_cache_is_one_judgings_at_a_time_and_that_of_another_judge_is_free(tmp_path: Path) -> None:
    busy = "another `benchctl judge` is writing it"
    with Cache(tmp_path, "gpt"), Cache(tmp_path, "local"), pytest.raises(UserError, match=busy), Cache(tmp_path, "gpt"):
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


def test_a_reservation_that_does_not_fit_waits_until_one_in_flight_turns_out_cheaper() -> None:
    budget = Budget(Price(1_000_000.0, 0.0), max_usd=10.0)  # a token costs a dollar
    budget.reserve(Usage(6, 0))
    reserved = threading.Event()

    def second() -> None:
        budget.reserve(Usage(6, 0))
        reserved.set()

    thread = threading.Thread(target=second)
    thread.start()
    assert not reserved.wait(0.1)
    budget.settle(Usage(6, 0), Usage(4, 0))
    assert reserved.wait(10)
    thread.join()
    budget.settle(Usage(6, 0), NOTHING)
    assert budget.spent.usd == 4.0


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
def test_every_prompt_asks_for_scores_on_one_line_and_shows_all_it_is_given(
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
