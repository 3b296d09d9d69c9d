"""Judging over real HTTP, by OpenAI's own client, of a server that goes wrong in every way that servers do."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures_records import DRAFTED, EXITING
from judge_server import (
    EMPTY,
    KEY,
    MALFORMED,
    NO_JSON,
    Asked,
    Cuts,
    Deed,
    Drips,
    Fails,
    Hangs,
    JudgeServer,
    Plan,
    Says,
    Sends,
    marks,
)
from judged import KEY_ENV, PRICE, Court, fair, good_and_bad
from refusals import refused

from benchctl.judges.gpt import strike_out
from benchctl.judging.asking import Asker
from benchctl.records.scores import Score, scores_path

PROMPTS = 2
QUESTIONS = 2 * PROMPTS  # of the bad answers, in both orders; the drafted ones are the baseline's own


@pytest.fixture(autouse=True)
def waits_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long judging, and OpenAI's client at the first look, would have waited before each retry."""
    waits: list[float] = []
    still = SimpleNamespace(**{**vars(time), "sleep": waits.append})
    monkeypatch.setattr("openai._base_client.time", still)
    monkeypatch.setattr(Asker, "pause", lambda self, seconds: waits.append(seconds))
    return waits


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(KEY_ENV, KEY)
    yield


@pytest.fixture
def court(tmp_path: Path) -> Court:
    return Court(tmp_path, good_and_bad(PROMPTS))


def at_first(deed: Deed) -> Plan:
    """That deed for the first try of each question, and a fair reply for the next."""
    return lambda asked: deed if asked.tries == 0 else Says(fair(asked))


def outcomes(scores: list[Score]) -> Counter[tuple[str, float | None, float | None]]:
    return Counter((score.label, score.score, score.baseline_score) for score in scores)


RIGHT = Counter({(EXITING, 3.0, 9.0): QUESTIONS, (DRAFTED, None, None): PROMPTS})


def in_a_minute() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(minutes=1), usegmt=True)


@pytest.mark.parametrize(
    "deed",
    [
        Fails(429, {"Retry-After": "7"}),
        Fails(429),
        Fails(500),
        Fails(503, {"Retry-After": "soon"}),
        Cuts("9 3", 30),
        Cuts("9 3", 0),
    ],
    ids=["429 with seconds", "429", "500", "503 with nonsense", "cut", "cut at once"],
)
def test_what_a_failed_request_asked_is_asked_again_until_it_is_judged(court: Court, deed: Deed) -> None:
    with JudgeServer(at_first(deed)) as server:
        summary = court.judge(server.url)
    assert outcomes(court.scores()) == RIGHT
    assert (summary.unreadable, len(server.asked), server.paid_twice) == (0, 2 * QUESTIONS, [])
    assert {score.tries for score in court.scores() if not score.identical} == {1}  # what fails gave no reply


@pytest.mark.parametrize(("status", "feared"), [(500, 0), (503, 0), (429, 0), (502, QUESTIONS), (504, QUESTIONS)])
def test_what_a_gateway_gave_up_waiting_for_may_be_billed_and_counts(court: Court, status: int, feared: int) -> None:
    """The model behind it may have answered all the same."""
    with JudgeServer(at_first(Fails(status))) as server:
        spent = court.judge(server.url, options={"reply_limit": 64}).spent
    reply_usd = 64 * PRICE.out_usd / 1e6
    assert feared * reply_usd <= spent.doubtful_usd <= feared * 10 * reply_usd


@pytest.mark.slow
def test_a_request_that_is_never_answered_is_given_up_and_asked_again(court: Court) -> None:
    """One of them, and with patience: every question under 0.15 s once failed on a machine that was busy otherwise."""
    with JudgeServer(lambda asked: Hangs(60.0) if asked.number == 0 else Says(fair(asked))) as server:
        court.judge(server.url, options={"timeout_s": 2.0})
    assert outcomes(court.scores()) == RIGHT
    assert (len(server.asked), server.paid_twice) == (QUESTIONS + 1, [])


@pytest.mark.parametrize(
    "deed",
    [
        Says("I'd rather not.", refused=True),
        Says(""),
        Says("11 0"),
        Says("8 7", finish="content_filter"),
        Says("8 1", finish="length"),
        Says("8 7" + "\nand so on" * 10_001),
        Sends(b" " * 1_000_001),
    ],
    ids=["refusal", "nothing said", "out of range", "filtered", "cut by length", "above 100 KB", "above 1 MB"],
)
def test_a_reply_that_cannot_be_read_is_asked_for_again_and_kept_with_its_bill(court: Court, deed: Deed) -> None:
    with JudgeServer(at_first(deed)) as server:
        summary = court.judge(server.url)
    assert outcomes(court.scores()) == RIGHT
    assert (summary.unreadable, len(server.asked)) == (0, 2 * QUESTIONS)
    assert {score.tries for score in court.scores() if not score.identical} == {2}


@pytest.mark.parametrize(
    ("deed", "message"),
    [
        (Sends(b'{"error": {"message": "overloaded", "code": 503}}'), "overloaded"),
        (NO_JSON, "Bad gateway"),
        (MALFORMED, "chat.comple"),
        (EMPTY, "choices"),
        (Sends(b""), "nothing"),
        (Fails(307, {"Location": "/v2/chat/completions"}), "/v2/chat/completions"),
    ],
    ids=["error of status 200", "HTML", "cut JSON", "no choices", "no body", "redirect"],
)
def test_what_is_no_completion_is_sent_again_later(
    court: Court, waits_s: list[float], deed: Deed, message: str
) -> None:
    """Each was once asked for three times without a pause, kept as a reply, and then never asked for again."""
    with JudgeServer(at_first(deed)) as server:
        assert court.judge(server.url).unreadable == 0
    assert (outcomes(court.scores()), len(waits_s)) == (RIGHT, QUESTIONS)
    assert {score.tries for score in court.scores() if not score.identical} == {1}
    scores_path(court.results).unlink()
    shutil.rmtree(court.folder / "cache")
    with JudgeServer(lambda asked: deed) as server, refused("no_judge_reply", message):
        court.judge(server.url)


def test_nothing_is_sent_to_where_a_server_redirects(court: Court) -> None:
    """Questions and answers once went to another host, and its scores were taken, without a word."""
    with JudgeServer(lambda asked: Says(fair(asked))) as other:
        elsewhere = Fails(307, {"Location": f"{other.url}/chat/completions"})
        with JudgeServer(lambda asked: elsewhere) as server, refused("judge_redirects", other.url):
            court.judge(server.url)
    assert (len(server.asked), other.asked) == (1, [])


@pytest.mark.slow
@pytest.mark.parametrize("headless", [False, True], ids=["body", "head"])
def test_a_request_ends_in_time_even_if_its_server_keeps_the_connection_alive(court: Court, headless: bool) -> None:
    """A blank a second once kept a request of timeout_s=2 waiting for ever: the limit was of each read."""
    with JudgeServer(lambda asked: Drips(0.3, headless) if asked.number == 0 else Says(fair(asked))) as server:
        begun_s = time.monotonic()
        court.judge(server.url, options={"timeout_s": 2.0})
    assert outcomes(court.scores()) == RIGHT
    assert (len(server.asked), time.monotonic() - begun_s < 20) == (QUESTIONS + 1, True)


@pytest.mark.parametrize(("asked", "least_s", "most_s"), [("7", 7.0, 7.0), ("date", 50.0, 61.0)])
def test_no_request_is_sent_before_the_server_wants_one(
    court: Court, waits_s: list[float], asked: str, least_s: float, most_s: float
) -> None:
    def plan(request: Asked) -> Deed:
        when = in_a_minute() if asked == "date" else asked
        return Fails(429, {"Retry-After": when}) if request.number == 0 else Says(fair(request))

    with JudgeServer(plan) as server:
        court.judge(server.url)
    assert least_s <= sum(waits_s) <= most_s and len(server.asked) == QUESTIONS + 1


def test_a_pause_of_hours_is_not_waited_for(court: Court, waits_s: list[float]) -> None:
    with JudgeServer(lambda asked: Fails(429, {"Retry-After": "7200"})) as server, refused("no_judge_reply", "7200 s"):
        court.judge(server.url)
    assert (waits_s, len(server.asked)) == ([], 1)


def test_retries_end_in_an_error_that_keeps_what_is_judged(court: Court, waits_s: list[float]) -> None:
    """After a minute of pauses: it was a quarter of a minute, while the limits on rates are of a minute."""
    plan = lambda asked: Says(fair(asked)) if asked.number < 3 else Fails(500)  # noqa: E731
    with JudgeServer(plan) as server, refused("no_judge_reply", "status 500"):
        court.judge(server.url)
    assert len(server.asked) == 3 + 1 + len(waits_s) and waits_s == sorted(waits_s)
    assert 60 <= sum(waits_s) <= 90
    assert len(court.scores()) == PROMPTS + 3
    with JudgeServer(lambda asked: Says(fair(asked))) as server:
        court.judge(server.url)
    assert outcomes(court.scores()) == RIGHT
    assert len(server.asked) == QUESTIONS - 3


def test_a_wrong_key_and_an_unknown_model_are_found_before_a_bill(
    court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    with JudgeServer(lambda asked: Says(fair(asked))) as server:
        with refused("unknown_judge_model", "'judge-2'"):
            court.judge(server.url, options={"model": "judge-2"})
        monkeypatch.setenv(KEY_ENV, "sk-wrong")
        with refused("wrong_judge_key", KEY_ENV):
            court.judge(server.url)
    assert server.bills == [] and all(score.identical for score in court.scores())


@pytest.mark.parametrize("count", [marks, len], ids=["words", "characters"])
def test_the_budget_is_never_passed_whatever_replies_cost(tmp_path: Path, count: Callable[[str], int]) -> None:
    """Every reply is as long as it may be, and prompts are of as many tokens as characters, more than estimated."""
    court = Court(tmp_path, good_and_bad(8))
    with JudgeServer(lambda asked: Says("word " * 60), count) as server:
        asked: dict[str, Any] = {"options": {"reply_limit": 300}, "tries": 2}
        whole = court.judged_by(server.url, **asked).forecast()
        assert whole.usd is not None and whole.most_usd is not None
        limit = 0.7 * whole.most_usd
        summary = court.judge(server.url, max_usd=limit, concurrency=3, **asked)
    prompt_tokens, reply_tokens = server.tokens()
    billed = (prompt_tokens * PRICE.in_usd + reply_tokens * PRICE.out_usd) / 1e6
    assert 0.2 * limit < billed <= limit
    assert summary.spent.usd == pytest.approx(billed)
    assert summary.unasked > 0 or count is marks


def test_nothing_is_waited_for_long_where_there_is_no_server(court: Court, waits_s: list[float]) -> None:
    """A wrong port was once tried eight times, for more than a minute; and empty files stayed."""
    with JudgeServer(lambda asked: Says(fair(asked))) as server:
        url = server.url
    with refused("judge_unreachable", "--base-url"):
        court.judge(url)
    assert len(waits_s) == 2 and not scores_path(court.results).exists()


def test_no_more_requests_are_in_flight_than_asked_for(tmp_path: Path) -> None:
    court = Court(tmp_path, good_and_bad(12))
    with JudgeServer(lambda asked: Says(fair(asked)), delay_s=0.02) as server:
        court.judge(server.url, concurrency=3)
    assert 1 < server.most_at_once <= 3
    assert len(court.scores()) == 36 and server.paid_twice == []


def test_a_word_that_is_no_secret_is_not_struck_out_of_replies(court: Court, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the key "9" for a server of one's own every reply of "9 3" could not be read, for ever."""
    monkeypatch.setenv(KEY_ENV, "9")
    monkeypatch.setattr("judge_server.KEY", "9")
    with JudgeServer(lambda asked: Says(fair(asked))) as server:
        court.judge(server.url)
    assert outcomes(court.scores()) == RIGHT
    assert strike_out("Bearer 9", "9") == "Bearer 9" and strike_out(f"Bearer {KEY}!", KEY) == "Bearer [key]!"
