"""Judging over real HTTP, by OpenAI's own client, of a server that goes wrong in every way that servers do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
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
    Fails,
    Hangs,
    JudgeServer,
    Plan,
    Says,
    marks,
)
from judged import KEY_ENV, PRICE, Court, FakeTimer, answers_shown, fair, good_and_bad

from benchctl.errors import UserError
from benchctl.judges import _batches
from benchctl.judges._openai import strike_out
from benchctl.judging.patience import Patience
from benchctl.records.scores import Score, scores_path

PROMPTS = 2
QUESTIONS = 2 * PROMPTS  # of the bad answers, in both orders; the drafted ones are the baseline's own
ALL = QUESTIONS + PROMPTS  # scores, those of equal answers among them


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


def test_both_orders_are_asked_and_equal_answers_are_not(court: Court) -> None:
    with JudgeServer(lambda asked: Says(fair(asked))) as server:
        summary = court.judge(server.url)
    shown = Counter(tuple(answers_shown(asked)) for asked in server.asked)
    assert shown == {("good", "bad"): PROMPTS, ("bad", "good"): PROMPTS}
    assert outcomes(court.scores()) == RIGHT
    assert (summary.written, summary.ties, summary.unreadable) == (ALL, PROMPTS, 0)
    assert {score.order for score in court.scores()} == {"baseline_first", "baseline_second", ""}


def test_a_judge_that_likes_what_stands_first_gives_each_answer_both_places(court: Court) -> None:
    with JudgeServer(lambda asked: Says("8 4")) as server:
        court.judge(server.url)
    judged = [score for score in court.scores() if not score.identical]
    assert {(score.order, score.score, score.baseline_score) for score in judged} == {
        ("baseline_first", 4.0, 8.0),
        ("baseline_second", 8.0, 4.0),
    }


def in_ten_minutes() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)


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


def test_a_request_that_is_never_answered_is_given_up_and_asked_again(court: Court) -> None:
    """One of them, and with patience: every question under 0.15 s once failed on a machine that was busy otherwise."""
    with JudgeServer(lambda asked: Hangs(60.0) if asked.number == 0 else Says(fair(asked))) as server:
        court.judge(server.url, options={"timeout_s": 2.0})
    assert outcomes(court.scores()) == RIGHT
    assert (len(server.asked), server.paid_twice) == (QUESTIONS + 1, [])


@pytest.mark.parametrize(
    "deed",
    [MALFORMED, NO_JSON, EMPTY, Says("I'd rather not.", refused=True), Says(""), Says("11 0"), Says("A is better.")],
    ids=["malformed", "no JSON", "no choices", "refusal", "nothing said", "out of range", "no scores"],
)
def test_a_reply_that_cannot_be_read_is_asked_for_again_and_kept_with_its_bill(court: Court, deed: Deed) -> None:
    with JudgeServer(at_first(deed)) as server:
        summary = court.judge(server.url)
    assert outcomes(court.scores()) == RIGHT
    assert (summary.unreadable, len(server.asked)) == (0, 2 * QUESTIONS)
    assert {score.tries for score in court.scores() if not score.identical} == {2}


@pytest.mark.parametrize(
    "reply", ["Assistant A: {}/10, assistant B: {}/10", "{} {}\n\nBoth are short.", "**{} {}**", "{}, {}", "{}.0 {}.0"]
)
def test_scores_with_words_around_them_are_read_at_once(court: Court, reply: str) -> None:
    with JudgeServer(lambda asked: Says(reply.format(*fair(asked).split()))) as server:
        court.judge(server.url)
    assert outcomes(court.scores()) == RIGHT
    assert len(server.asked) == QUESTIONS


@pytest.mark.parametrize("reply", ["11 0", "7", "7 8 9", "-3 5", "A is better.", "8 or 7? I cannot tell 9 from 8."])
def test_what_stays_unreadable_is_counted_and_never_scored(court: Court, reply: str) -> None:
    with JudgeServer(lambda asked: Says(reply)) as server:
        summary = court.judge(server.url)
    judged = [score for score in court.scores() if not score.identical]
    assert (summary.unreadable, len(judged), len(server.asked)) == (QUESTIONS, QUESTIONS, 3 * QUESTIONS)
    assert {(score.score, score.baseline_score, score.tries, score.reply) for score in judged} == {
        (None, None, 3, reply)
    }
    assert all(score.unreadable for score in judged)


@pytest.mark.parametrize(("asked", "least_s", "most_s"), [("7", 7.0, 8.0), ("date", 500.0, 601.0)])
def test_no_request_is_sent_before_the_server_wants_one(
    court: Court, asked: str, least_s: float, most_s: float
) -> None:
    def plan(request: Asked) -> Deed:
        when = in_ten_minutes() if asked == "date" else asked
        return Fails(429, {"Retry-After": when}) if request.number == 0 else Says(fair(request))

    with JudgeServer(plan) as server:
        court.judge(server.url)
    assert least_s <= sum(court.timer.waits_s) <= most_s and len(server.asked) == QUESTIONS + 1


def test_waits_grow_from_failure_to_failure_and_end_in_an_error_that_keeps_what_is_judged(court: Court) -> None:
    refused = pytest.raises(UserError, match="no reply in 8 tries: status 500 .*What is judged is kept")
    with JudgeServer(lambda asked: Says(fair(asked)) if asked.number < 3 else Fails(500)) as server, refused:
        court.judge(server.url)
    assert len(court.scores()) == PROMPTS + 3
    assert court.timer.moment_s - FakeTimer().moment_s > 60  # 0.75 * (1 + 2 + 4 + ... + 60)
    with JudgeServer(lambda asked: Says(fair(asked))) as server:
        court.judge(server.url)
    assert outcomes(court.scores()) == RIGHT
    assert len(server.asked) == QUESTIONS - 3


def test_after_an_outage_the_panel_goes_on_where_it_was_and_pays_for_nothing_twice(court: Court) -> None:
    """Each judging breaks down after one more reply; together they judge everything, once."""
    bills: Counter[str] = Counter()
    for _ in range(QUESTIONS + 1):
        with JudgeServer(lambda asked: Says(fair(asked)) if asked.number == 0 else Fails(401)) as server:
            try:
                court.judge(server.url)
            except UserError as error:
                assert "refuses the key" in str(error)
            bills.update(bill.content for bill in server.bills)
    assert outcomes(court.scores()) == RIGHT
    assert len(bills) == QUESTIONS and set(bills.values()) == {1}


def test_a_wrong_key_and_an_unknown_model_are_found_before_anything_is_billed(
    court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    with JudgeServer(lambda asked: Says(fair(asked))) as server:
        with pytest.raises(UserError, match="has no 'judge-2'"):
            court.judge(server.url, options={"model": "judge-2"})
        monkeypatch.setenv(KEY_ENV, "sk-wrong")
        with pytest.raises(UserError, match=f"refuses the key in {KEY_ENV}"):
            court.judge(server.url)
    assert server.bills == [] and all(score.identical for score in court.scores())


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("count", [marks, len], ids=["words", "characters"])
def test_the_budget_is_never_passed_whatever_replies_cost(
    tmp_path: Path, batch: bool, count: Callable[[str], int]
) -> None:
    """Every reply is as long as it may be, and prompts are of as many tokens as characters, which nobody could foresee:
    what was handed in as a batch once cost a multiple of the budget then."""
    court = Court(tmp_path, good_and_bad(8))
    with JudgeServer(lambda asked: Says("word " * 60), count) as server:
        asked: dict[str, Any] = {"options": {"reply_limit": 300}, "tries": 2, "batch": batch}
        whole = court.judging(server.url, **asked).forecast()
        assert whole.usd is not None and whole.most_usd is not None
        limit = 0.7 * whole.most_usd
        summary = court.judge(server.url, max_usd=limit, concurrency=3, **asked)
    prompt_tokens, reply_tokens = server.tokens()
    billed = (prompt_tokens * PRICE.in_usd + reply_tokens * PRICE.out_usd) / 1e6
    assert 0.4 * limit < billed <= limit
    assert summary.spent.usd == pytest.approx(billed)
    assert summary.unasked > 0 or count is marks


def test_nothing_is_waited_for_long_where_there_is_no_server(court: Court) -> None:
    """A wrong port was once tried eight times, for more than a minute; and empty files stayed."""
    with JudgeServer(lambda asked: Says(fair(asked))) as server:
        url = server.url
    with pytest.raises(UserError, match=r"no server of the judge can be reached: the connection failed .*--base-url"):
        court.judge(url)
    assert sum(court.timer.waits_s) < 5 and not scores_path(court.results).exists()


def test_what_scores_say_they_cost_is_what_the_server_bills(court: Court) -> None:
    with JudgeServer(at_first(Says("no scores here"))) as server:
        summary = court.judge(server.url)
    scores = court.scores()
    assert (
        sum(score.prompt_tokens for score in scores),
        sum(score.reply_tokens for score in scores),
    ) == server.tokens()
    prompt_tokens, reply_tokens = server.tokens()
    billed = (prompt_tokens * PRICE.in_usd + reply_tokens * PRICE.out_usd) / 1e6
    assert sum(score.cost_usd or 0.0 for score in scores) == pytest.approx(billed) == summary.spent.usd


def test_no_more_requests_are_in_flight_than_asked_for(tmp_path: Path) -> None:
    court = Court(tmp_path, good_and_bad(12))
    with JudgeServer(lambda asked: Says(fair(asked)), delay_s=0.02) as server:
        court.judge(server.url, concurrency=3)
    assert 1 < server.most_at_once <= 3
    assert len(court.scores()) == 36 and server.paid_twice == []


def test_a_cache_replays_everything_where_there_is_no_server_and_no_key(
    court: Court, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with JudgeServer(lambda asked: Says(fair(asked))) as server:
        court.judge(server.url)
    other = Court(tmp_path / "elsewhere", court.rows)
    monkeypatch.delenv(KEY_ENV)
    summary = other.judge(server.url, cache=court.folder / "cache")  # the server has ended
    assert outcomes(other.scores()) == RIGHT
    assert (summary.recalled, summary.spent.usd) == (QUESTIONS, 0.0)
    assert all(score.cached and score.cost_usd == 0.0 for score in other.scores() if not score.identical)


def test_a_batch_judges_everything_and_what_failed_in_it_is_judged_in_the_next(court: Court) -> None:
    def plan(asked: Asked) -> Deed:
        return Fails(500) if asked.tries == 0 and asked.number % 3 == 0 else Says(fair(asked))

    with JudgeServer(plan) as server:
        court.judge(server.url, batch=True)
        for _ in range(3):
            court.judge(server.url, batch=True)
    assert outcomes(court.scores()) == RIGHT
    assert server.paid_twice == [] and len(server.batches.batches) <= 4
    assert {score.tries for score in court.scores() if not score.identical} == {1}  # what fails gave no reply


def test_a_batch_that_the_server_does_not_take_is_over_and_the_next_judging_judges(court: Court) -> None:
    """It stayed open once: judged again with --batch it failed again, and without --batch was told to add it."""
    with JudgeServer(lambda asked: Says(fair(asked))) as server:
        server.batches.refusing = True
        with pytest.raises(UserError, match="would not take the batch batch-0: as planned. Nothing of it was billed"):
            court.judge(server.url, batch=True)
        server.batches.refusing = False
        court.judge(server.url)
    assert outcomes(court.scores()) == RIGHT
    assert len(server.bills) == QUESTIONS and server.paid_twice == []


def test_a_batch_that_was_deleted_says_what_to_do_and_can_be_forgotten(court: Court) -> None:
    with JudgeServer(lambda asked: Says(fair(asked))) as server:
        server.batches.looks = 1_000_000
        with pytest.raises(UserError), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Patience, "pause", lambda self, seconds: server.batches.batches.clear())
            court.judge(server.url, batch=True)
        with pytest.raises(
            UserError, match=r"does not give the batch batch-0: status 404 \(No batch .*--forget-batches"
        ):
            court.judge(server.url, batch=True)
        server.batches.looks = 1
        court.judge(server.url, batch=True, forget_batches=True)
    assert outcomes(court.scores()) == RIGHT and server.paid_twice == []


def test_a_server_without_batches_is_told_so_and_asked_without_them(court: Court) -> None:
    """It was said to have no such model, and the batch that never was stayed open: "add --batch", it was then said."""
    with JudgeServer(lambda asked: Says(fair(asked))) as server:
        server.batches.absent = True
        with pytest.raises(UserError, match=r"takes no batches \(status 404, Not Found\): leave --batch out"):
            court.judge(server.url, batch=True)
        court.judge(server.url)
    assert outcomes(court.scores()) == RIGHT and server.paid_twice == []


def test_a_line_of_a_batch_that_is_no_json_loses_nothing_and_pays_for_nothing_twice(court: Court) -> None:
    """It once ended in a traceback, each time. A download that was cut short may be whole the next time."""
    with JudgeServer(lambda asked: Says(fair(asked))) as server:
        server.batches.torn = 3
        with pytest.raises(UserError, match=r"line 1 of what the batch batch-0 brought is no reply \(3 such lines\)"):
            court.judge(server.url, batch=True)
        (kept,) = (court.folder / "cache").glob("*.jsonl")
        assert kept.read_bytes().count(b"\n") == QUESTIONS - 3
        server.batches.torn = 0
        court.judge(server.url, batch=True)
    assert outcomes(court.scores()) == RIGHT
    assert len(server.bills) == QUESTIONS and server.paid_twice == []


@pytest.mark.parametrize(
    "page", [b"<html>Welcome</html>", b'{"id": "batch', b"[]", b"{}", b'{"status": "lost"}', b'{"data": 1}']
)
@pytest.mark.parametrize("moment", ["handed in", "waited for"])
def test_what_is_no_word_of_batches_ends_in_no_traceback_and_pays_for_nothing_twice(
    court: Court, page: bytes, moment: str
) -> None:
    """A proxy's page, or half a JSON text, ended in a traceback; an object that is no batch was waited for for ever."""
    with JudgeServer(lambda asked: Says(fair(asked))) as server:
        if moment == "handed in":
            server.batches.page = page
        else:
            server.batches.looks = 1_000_000
        with pytest.raises(UserError, match="8 tries: what came back is no"), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Patience, "pause", lambda self, seconds: setattr(server.batches, "page", page))
            court.judge(server.url, batch=True)
        server.batches.page, server.batches.looks = None, 1
        court.judge(server.url, batch=True)
    assert outcomes(court.scores()) == RIGHT
    assert (len(server.batches.batches), len(server.bills), server.paid_twice) == (1, QUESTIONS, [])


@pytest.mark.parametrize(("limit", "most"), [("_MOST_REQUESTS", 3), ("_MOST_BYTES", 4000)])
def test_a_batch_is_never_larger_than_the_server_takes(
    court: Court, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    """More than 50,000 requests, or 200 MB of them, were once handed in as one batch, which OpenAI refuses."""
    assert (_batches._MOST_REQUESTS, _batches._MOST_BYTES) == (50_000, 200_000_000)
    monkeypatch.setattr(_batches, limit, most)
    with JudgeServer(lambda asked: Says(fair(asked))) as server:
        court.judge(server.url, batch=True)
    handed = [server.batches.files[batch.input_file] for batch in server.batches.batches.values()]
    assert len(handed) > 1 and sum(content.count(b"\n") for content in handed) == QUESTIONS
    assert all((content.count(b"\n") if limit == "_MOST_REQUESTS" else len(content)) <= most for content in handed)
    assert outcomes(court.scores()) == RIGHT and server.paid_twice == []


def test_a_word_that_is_no_secret_is_not_struck_out_of_replies(court: Court, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the key "9" for a server of one's own every reply of "9 3" could not be read, for ever."""
    monkeypatch.setenv(KEY_ENV, "9")
    monkeypatch.setattr("judge_server.KEY", "9")
    with JudgeServer(lambda asked: Says(fair(asked))) as server:
        court.judge(server.url)
    assert outcomes(court.scores()) == RIGHT
    assert strike_out("Bearer 9", "9") == "Bearer 9" and strike_out(f"Bearer {KEY}!", KEY) == "Bearer [key]!"


def test_a_reply_in_a_batch_may_hold_what_other_texts_take_for_the_end_of_a_line(court: Court) -> None:
    """U+2028 may stand in a JSON text as it is; its lines were once torn there, and the batch never collected."""
    with JudgeServer(lambda asked: Says(f"{fair(asked)}\n\nBoth\u2028are\x85short.")) as server:
        court.judge(server.url, batch=True)
    assert outcomes(court.scores()) == RIGHT
