"""Questions handed in as batches: nothing is handed in twice, whatever goes wrong between handing in and collecting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes_judges import COST_USD, Batching, Bench, Scripted, rows_of, says
from fixtures_records import EXITING

from benchctl.cli.judge.display import describe_forecast
from benchctl.errors import UserError
from benchctl.judging.judge import BatchedReply, Reply, Request, TryAgain, Usage
from benchctl.judging.prices import Price

QUESTIONS = 6


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, rows_of(3))


def handed_in(judge: Batching) -> list[str]:
    return [request.key for _, requests in judge.batches.values() for request in requests]


def test_a_batch_is_handed_in_waited_for_and_collected(bench: Bench) -> None:
    judge = Batching(says("8 7"), delay=3)
    summary = bench.judging(judge, batch=True, price=Price(1.0, 0.0, 0.5)).run()
    assert len(handed_in(judge)) == QUESTIONS and len(judge.batches) == 1
    assert (summary.written, summary.unasked) == (9, 0)
    assert summary.spent.usd == pytest.approx(QUESTIONS * COST_USD / 2), "a batch costs half"
    assert bench.timer.moment_s == pytest.approx(3 * 30.0)
    assert judge.asked == []


def test_after_a_kill_while_waiting_the_same_batch_is_collected(bench: Bench) -> None:
    class Killed(Batching):
        def collect_batch(self, batch: str) -> tuple[BatchedReply, ...] | None:
            raise KeyboardInterrupt

    first = Killed(says("8 7"))
    with pytest.raises(KeyboardInterrupt):
        bench.judging(first, batch=True).run()
    second = Batching(says("8 7"), batches=first.batches, delay=0)
    summary = bench.judging(second, batch=True).run()
    assert len(handed_in(second)) == QUESTIONS
    assert len(bench.scores()) == 9 and summary.spent.usd == pytest.approx(QUESTIONS * COST_USD)


def test_after_a_kill_before_the_id_was_written_down_the_batch_is_found_by_its_mark(bench: Bench) -> None:
    first = Batching(says("8 7"), broken={"after": KeyboardInterrupt()})  # type: ignore[dict-item]
    with pytest.raises(KeyboardInterrupt):
        bench.judging(first, batch=True).run()
    second = Batching(says("8 7"), batches=first.batches, delay=0)
    bench.judging(second, batch=True).run()
    assert len(handed_in(second)) == QUESTIONS and len(bench.scores()) == 9


def test_after_a_kill_before_anything_arrived_it_is_handed_in_anew(bench: Bench) -> None:
    first = Batching(says("8 7"), broken={"before": KeyboardInterrupt()})  # type: ignore[dict-item]
    with pytest.raises(KeyboardInterrupt):
        bench.judging(first, batch=True).run()
    second = Batching(says("8 7"), batches=first.batches, delay=0)
    bench.judging(second, batch=True).run()
    assert len(handed_in(second)) == QUESTIONS and len(bench.scores()) == 9


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_cut_connection_hands_nothing_in_twice(bench: Bench, moment: str) -> None:
    judge = Batching(says("8 7"), broken={moment: TryAgain("cut", maybe_paid=True)})
    bench.judging(judge, batch=True).run()
    assert len(handed_in(judge)) == QUESTIONS and len(bench.scores()) == 9


@pytest.mark.parametrize("kept", range(QUESTIONS))
def test_after_a_kill_while_replies_are_kept_none_is_kept_twice(bench: Bench, kept: int) -> None:
    """Twice the same reply would be two tries, and two unreadable tries of three."""
    first = Batching(says("no"), delay=0)
    judging = bench.judging(first, batch=True, tries=2)
    counted: list[int] = []
    import benchctl.judging.asking as asking

    keep = asking.Asker.keep

    def die(self: Any, asked: Any, reply: Reply) -> None:
        if len(counted) == kept:
            raise KeyboardInterrupt
        counted.append(1)
        keep(self, asked, reply)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking.Asker, "keep", die)
        with pytest.raises(KeyboardInterrupt):
            judging.run()
    second = Batching(says("no"), batches=first.batches, delay=0)
    bench.judging(second, batch=True, tries=2).run()
    assert len(handed_in(second)) == 2 * QUESTIONS, "each is asked twice, in two batches"
    assert {score.tries for score in bench.scores() if score.label == EXITING} == {2}


def test_questions_of_an_open_batch_are_not_asked_one_by_one(bench: Bench) -> None:
    first = Batching(says("8 7"), broken={"after": KeyboardInterrupt()})  # type: ignore[dict-item]
    with pytest.raises(KeyboardInterrupt):
        bench.judging(first, batch=True).run()
    second = Batching(says("8 7"), batches=first.batches)
    with pytest.raises(UserError, match="6 questions were handed in with --batch and not collected yet: add --batch"):
        bench.judging(second).run()
    assert second.asked == []
    forecast = bench.judging(second, batch=True).forecast()
    assert forecast.handed_in == QUESTIONS
    told = describe_forecast(forecast, "gpt", "at the prices given")
    assert f"{QUESTIONS} questions were handed in already" in told, "they were told of as if nothing were"


def test_only_what_the_budget_has_room_for_is_handed_in(bench: Bench) -> None:
    judge = Batching(says("8 7"), delay=0)
    summary = bench.judging(judge, batch=True, max_usd=0.0034).run()
    assert len(handed_in(judge)) == 3, "two at their dearest, and one when these cost less than feared"
    assert summary.spent.usd == pytest.approx(3 * COST_USD) and summary.unasked == 3


def test_a_budget_that_takes_many_batches_is_no_batch_without_a_reply(tmp_path: Path) -> None:
    """Each reply costs a tenth of what was feared, so that each batch makes room for the next: after five of them it
    was once said that the other questions came back without a reply."""
    bench = Bench(tmp_path, rows_of(12))
    judge = Batching(says("8 7", Usage(100, 0)), delay=0)
    summary = bench.judging(judge, batch=True, max_usd=0.004).run()
    assert (len(handed_in(judge)), summary.unasked) == (24, 0)
    assert len(judge.batches) > 5 and summary.spent.usd == pytest.approx(24 * COST_USD / 10)


def test_requests_that_a_batch_brings_nothing_for_are_given_up_in_the_end(bench: Bench) -> None:
    class Deaf(Batching):
        def collect_batch(self, batch: str) -> tuple[BatchedReply, ...] | None:
            return tuple(BatchedReply(each.key, None) for each in self.batches[batch][1])

    judge = Deaf(says("8 7"))
    with pytest.raises(UserError, match="6 questions came back from 2 batches in a row without a reply"):
        bench.judging(judge, batch=True).run()
    assert len(judge.batches) == 2
    assert not [score for score in bench.scores() if score.label == EXITING]


def test_more_questions_than_a_batch_may_hold_are_handed_in_as_several(bench: Bench) -> None:
    """OpenAI refuses a batch of more than 50,000 requests or 200 MB, and once was handed all of them."""
    judge = Batching(says("8 7"), delay=2, room=4)
    summary = bench.judging(judge, batch=True).run()
    assert [len(requests) for _, requests in judge.batches.values()] == [4, 2]
    assert len(set(handed_in(judge))) == QUESTIONS and len(bench.scores()) == 9
    assert summary.spent.usd == pytest.approx(QUESTIONS * COST_USD)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_between_several_batches_pays_for_none_twice(bench: Bench, moment: str) -> None:
    class Killed(Batching):
        def start_batch(self, requests: Sequence[Request], mark: str) -> str:
            if self.batches:
                self.broken[moment] = KeyboardInterrupt()  # type: ignore[assignment]
            return super().start_batch(requests, mark)

    first = Killed(says("8 7"), room=4)
    with pytest.raises(KeyboardInterrupt):
        bench.judging(first, batch=True).run()
    second = Batching(says("8 7"), batches=first.batches, delay=0, room=4)
    bench.judging(second, batch=True).run()
    assert sorted(handed_in(second)) == sorted(set(handed_in(second))) and len(handed_in(second)) == QUESTIONS
    assert len(bench.scores()) == 9


@pytest.mark.parametrize("had", [0, 2])
def test_a_batch_that_the_server_does_not_give_stays_until_it_is_forgotten(bench: Bench, had: int) -> None:
    """It stayed for ever, and what to do was not said; what could be read of it is kept, and not paid for again."""
    lost = Batching(says("8 7"), delay=0, lost={"batch_0": had})
    problem = rf"nobody gives batch_0. What could be read is kept; {QUESTIONS - had} of its questions have no reply"
    for _ in range(2):
        with pytest.raises(UserError, match=f"{problem}.*the key and the address.*--forget-batches"):
            bench.judging(lost, batch=True).run()
    assert len(handed_in(lost)) == QUESTIONS, "nothing is handed in twice while it may come to light"
    summary = bench.judging(lost, batch=True, forget_batches=True).run()
    assert len(handed_in(lost)) == 2 * QUESTIONS - had and len(bench.scores()) == 9
    assert any("It is given up" in notice for notice in bench.notices)
    assert summary.unasked == 0 and bench.judging(lost).run().written == 0


def test_a_batch_that_comes_to_light_again_is_collected_and_paid_for_once(bench: Bench) -> None:
    judge = Batching(says("8 7"), delay=0, lost={"batch_0": 1})
    with pytest.raises(UserError, match="--forget-batches"):
        bench.judging(judge, batch=True).run()
    judge.lost.clear()
    bench.judging(judge, batch=True).run()
    assert len(handed_in(judge)) == QUESTIONS and len(bench.scores()) == 9
    assert {score.tries for score in bench.scores() if score.label == EXITING} == {1}


def test_a_judge_without_batches_is_told_so(bench: Bench) -> None:
    with pytest.raises(UserError, match="scripted takes no batches: leave --batch out"):
        bench.judging(Scripted(says("8 7")), batch=True)


def test_what_is_written_down_and_damaged_is_named(bench: Bench) -> None:
    bench.judging(Batching(says("8 7"), delay=0), batch=True).run()
    (path,) = (bench.folder / "cache").glob("*.batches")
    path.write_text("{}\n")
    bench.forget_scores()
    (cache,) = (bench.folder / "cache").glob("*.jsonl")
    cache.unlink()
    with pytest.raises(UserError, match=r"\.batches:1: is no batch that benchctl wrote down"):
        bench.judging(Batching(says("8 7")), batch=True).run()
