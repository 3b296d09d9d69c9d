"""The judging of results: what is asked, what is written, what it costs, and what a stop leaves behind."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from fakes_judges import COST_USD, MARK, MOST_USD, Bench, MadeUpPrompt, Scripted, rows_of, says
from fixtures_records import BASELINE, DRAFTED, EXITING, RUN, failed, write
from refusals import refused

from benchctl.errors import UserError
from benchctl.judging.asking import Asker
from benchctl.judging.items import check_same_prompts
from benchctl.judging.judge import Message, NoReply, Reply, Usage
from benchctl.records.scores import scores_path
from benchctl.records.writer import read


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, rows_of(3))


def shown(content: str) -> str:
    """Whose answer a question shows first."""
    return "base" if content.index("base") < content.index("other") else "other"


def fair(messages: object, tries: int) -> Reply:
    """The baseline's answers are worth 9, the others 4."""
    content = messages[-1].content  # type: ignore[index]
    return Reply("9 4" if shown(content) == "base" else "4 9", Usage(1000, 4))


def test_each_pair_is_asked_in_both_orders_and_equal_answers_are_ties_that_nobody_is_asked_about(bench: Bench) -> None:
    """The summary, the scores and the progress say the same of what it cost."""
    judge = Scripted(fair)
    summary = bench.judging(judge).run()
    assert sorted(map(shown, judge.asked)) == ["base"] * 3 + ["other"] * 3
    judged = [score for score in bench.scores() if score.label == EXITING]
    assert [(score.score, score.baseline_score, score.baseline) for score in judged] == [(4.0, 9.0, BASELINE)] * 6
    assert {score.order for score in judged} == {"baseline_first", "baseline_second"}
    ties = [score for score in bench.scores() if score.label == DRAFTED]
    assert [(score.identical, score.score, score.order, score.cost_usd) for score in ties] == [(True, None, "", 0)] * 3
    assert (summary.ties, summary.written, len(judge.asked)) == (3, 9, 6)
    assert [progress.done for progress in bench.progress] == list(range(1, 10))
    costs = [summary.spent.usd, sum(score.cost_usd or 0 for score in bench.scores()), bench.progress[-1].spent.usd]
    assert costs == [pytest.approx(6 * COST_USD)] * 3


def test_without_its_scores_a_judging_is_replayed_from_the_cache_without_a_key(bench: Bench) -> None:
    """The judge is not even looked for: who replays a shipped cache has no key."""
    bench.judging(Scripted(fair)).run()
    before, judge = bench.scores(), Scripted(fair)
    summary = bench.judging(judge).run()
    assert (judge.asked, judge.reached, summary.written, summary.stored, bench.scores()) == ([], 0, 0, 9, before)
    bench.forget_scores()
    summary = bench.judging(judge).run()
    assert (judge.asked, judge.reached, summary.spent.usd) == ([], 0, 0.0)
    assert [(score.score, score.order) for score in bench.scores()] == [(score.score, score.order) for score in before]
    assert all(score.cached and score.cost_usd == 0 for score in bench.scores() if not score.identical)


def test_the_same_question_of_two_repeats_is_asked_once_and_billed_once(tmp_path: Path) -> None:
    rows = rows_of(2)
    bench = Bench(tmp_path, [*rows, *(replace(row, repeat=1) for row in rows)])
    judge = Scripted(fair)
    bench.judging(judge).run()
    assert len(judge.asked) == 4
    judged = [score for score in bench.scores() if score.label == EXITING]
    assert sorted((score.repeat, score.cost_usd, score.cached) for score in judged) == [
        *[(0, COST_USD, False)] * 4,
        *[(1, 0.0, True)] * 4,
    ]


def test_a_round_measured_again_is_not_judged_again(tmp_path: Path) -> None:
    """It has the answers of the one that it stands for, of which only the times were in doubt: judged as well, a prompt
    that a load fell upon counted twice in every mean."""
    rows = rows_of(2)
    again = [replace(row, repeat=RUN.repeats) for row in rows if row.prompt_id == "p0"]
    assert again
    forced = [replace(row, mode="replay", text="forced") for row in rows]
    bench = Bench(tmp_path, [*(replace(row, invalid="loud") for row in rows), *again, *forced])
    judge = Scripted(fair)
    bench.judging(judge).run()
    assert not any("forced" in content for content in judge.asked)
    judged = [score for score in bench.scores() if score.label == EXITING]
    assert sorted((score.prompt_id, score.repeat) for score in judged) == [("p0", 0), ("p0", 0), ("p1", 0), ("p1", 0)]


@pytest.mark.parametrize(
    ("fails", "repeats"), [(EXITING, {EXITING: 2, DRAFTED: 0}), (BASELINE, {EXITING: 2, DRAFTED: 2})]
)
def test_a_repeat_that_cannot_be_judged_is_judged_by_its_retry(
    tmp_path: Path, fails: str, repeats: dict[str, int]
) -> None:
    """Such an answer was never judged. Both answers of a pair are of the same try."""
    rows = rows_of(1)
    again = [replace(row, repeat=RUN.repeats, text=f"{row.text} again") for row in rows]
    bench = Bench(tmp_path, [*(failed(row) if row.label == fails else row for row in rows), *again])
    judge = Scripted(fair)
    summary = bench.judging(judge).run()
    assert {score.label: score.repeat for score in bench.scores()} == repeats
    assert len(judge.asked) == 2
    assert all("base 0 again" in content and "other 0 again" in content for content in judge.asked)
    assert (summary.judgements, summary.left_out) == (3, {})


@pytest.mark.parametrize("fails", [EXITING, BASELINE])
def test_answers_alone_are_judged_with_the_baselines_of_the_same_try(tmp_path: Path, fails: str) -> None:
    """A score without the baseline's of its try has no difference, and no command could add it."""
    rows = rows_of(1)
    again = [replace(row, repeat=RUN.repeats, text=f"{row.text} again") for row in rows]
    bench = Bench(tmp_path, [*(failed(row) if row.label == fails else row for row in rows), *again])
    bench.judging(Scripted(says("7"), protocol="single")).run()
    judged = {(score.label, score.repeat) for score in bench.scores()}
    assert {(EXITING, RUN.repeats), (BASELINE, RUN.repeats)} <= judged
    assert all((BASELINE, repeat) in judged for _, repeat in judged)


def test_repeated_judgements_are_each_asked(bench: Bench) -> None:
    judge = Scripted(fair)
    bench.judging(judge, samples=3).run()
    assert len(judge.asked) == 18
    assert {score.sample for score in bench.scores() if score.label == EXITING} == {0, 1, 2}


def test_replies_that_cannot_be_read_are_asked_for_again_then_counted_and_never_scored(bench: Bench) -> None:
    judge = Scripted(says("I would rather not."))
    summary = bench.judging(judge, tries=3).run()
    judged = [score for score in bench.scores() if score.label == EXITING]
    assert (len(judge.asked), summary.unreadable) == (18, 6)
    assert all(score.score is None and score.unreadable and score.tries == 3 for score in judged)
    assert all(score.cost_usd == pytest.approx(3 * COST_USD) for score in judged)


def test_more_tries_ask_again_what_could_not_be_read_and_the_last_line_counts(bench: Bench) -> None:
    """Unreadable judgements were once settled for ever, whatever --tries was given later."""
    judge = Scripted(lambda messages, tries: says("no" if tries < 4 else "8 7")(messages, tries))
    assert bench.judging(judge, tries=3).run().unreadable == 6
    assert bench.judging(judge, tries=3).run().written == 0
    forecast = bench.judging(judge, tries=6).forecast()
    assert (forecast.questions, forecast.stored) == (6, 3)
    summary = bench.judging(judge, tries=6).run()
    assert (summary.written, summary.unreadable, len(judge.asked)) == (6, 0, 6 * 5)
    judged = [score for score in bench.scores() if score.label == EXITING]
    assert {(score.tries, score.unreadable, score.cost_usd) for score in judged} == {(5, "", 2 * COST_USD)}
    assert len(judged) == 6 and len(scores_path(bench.results).read_text().splitlines()) == 3 + 6 + 6
    assert bench.judging(judge, tries=9).run().written == 0


@pytest.mark.parametrize(("read_prompt", "unreadable", "unfinished"), [("p9", 6, 6), ("p0", 4, 0)])
def test_a_repeated_judging_is_unfinished_only_where_no_reply_at_all_was_read(
    bench: Bench, read_prompt: str, unreadable: int, unfinished: int
) -> None:
    """With nothing left to ask it ended with exit code 0; where only unreadable ones were asked again, with 1."""

    def say(messages: Sequence[Message], tries: int) -> Reply:
        return Reply("8 7" if read_prompt in messages[-1].content else "no", Usage(1000, 4))

    first, settled, again = (bench.judging(Scripted(say), tries=tries).run() for tries in (3, 3, 4))
    assert (first.written, settled.written, again.written) == (9, 0, unreadable)
    for summary in (first, settled, again):
        assert (summary.unreadable, summary.readable, summary.unfinished) == (unreadable, 6 - unreadable, unfinished)


def test_what_another_judging_wrote_while_the_judge_was_reached_is_not_written_again(bench: Bench) -> None:
    """A judgement that is in a file of scores twice makes it one that cannot be read."""
    other = bench.judging(Scripted(fair))

    class Slow(Scripted):
        def reach(self) -> None:
            other.run()

    judge = Slow(fair)
    summary = bench.judging(judge).run()
    assert (judge.asked, summary.written, summary.stored) == ([], 0, len(bench.scores()))
    assert len(scores_path(bench.results).read_bytes().splitlines()) == len(bench.scores()) == 9


def test_every_reply_is_in_the_cache_before_anything_else_happens_with_it(bench: Bench) -> None:
    """Also what costs a try: a kill between the two tries once paid for the first one again."""

    def dies_when_read(reply: str) -> None:
        raise KeyboardInterrupt

    judge = Scripted(fair)
    judge.read = dies_when_read  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bench.judging(judge).run()
    assert len(judge.asked) == 1
    after = Scripted(fair)
    bench.judging(after).run()
    assert set(judge.asked) & set(after.asked) == set() and len(after.asked) == 5


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_judging_that_is_stopped_anywhere_goes_on_and_pays_nothing_twice(tmp_path: Path, concurrency: int) -> None:
    bench = Bench(tmp_path, rows_of(6))
    asked: list[str] = []
    for stop_at in range(1, 12):

        def stop(progress: object, at: int = stop_at) -> None:
            if len(bench.progress) >= at:
                raise KeyboardInterrupt

        bench.progress.clear()
        bench.on_progress = stop
        judge = Scripted(fair)
        with suppress(KeyboardInterrupt):
            bench.judging(judge, concurrency=concurrency).run()
        asked += judge.asked
    bench.on_progress = lambda progress: None
    last = Scripted(fair)
    bench.judging(last, concurrency=concurrency).run()
    asked += last.asked
    assert len(asked) == len(set(asked)) == 12
    assert len(bench.scores()) == 18


def test_an_error_that_no_try_mends_stops_the_judging_and_keeps_what_is_in_flight(tmp_path: Path) -> None:
    """Three questions are in flight when the fourth is refused; their replies are paid for, so they are kept."""
    bench = Bench(tmp_path, rows_of(8))
    turned_away = threading.Event()

    def wrong(messages: list[Message], tries: int) -> Reply:
        content = messages[-1].content
        if "p0" in content:
            return fair(messages, tries)
        if "p3" in content:
            turned_away.set()
            raise UserError("no_credit", "no credit left")
        assert turned_away.wait(10)
        return fair(messages, tries)

    judge = Scripted(wrong)  # type: ignore[arg-type]
    with refused("no_credit"):
        bench.judging(judge, concurrency=8).run()
    kept = sum(score.score is not None for score in bench.scores())
    answered = sum("p3" not in content for content in judge.asked)
    assert kept == answered and len(judge.asked) < 16


def test_the_first_question_is_asked_alone(bench: Bench) -> None:
    """A wrong key or model fails once then, and not as often as questions may be in flight."""

    def refuse(messages: object, tries: int) -> Reply:
        raise UserError("unknown_model", "unknown model")

    judge = Scripted(refuse)
    with refused("unknown_model"):
        bench.judging(judge, concurrency=6).run()
    assert len(judge.asked) == 1


def test_the_budget_is_never_passed_and_says_what_it_left(bench: Bench) -> None:
    """At their dearest, 1300 prompt tokens, two questions fit into 0.0031; the third could not be paid for sure."""
    judge = Scripted(fair)
    summary = bench.judging(judge, max_usd=0.0031).run()
    assert (len(judge.asked), summary.unasked) == (2, 4)
    assert summary.spent.usd is not None and summary.spent.usd <= 0.0031
    more = Scripted(fair)
    assert bench.judging(more, max_usd=1.0).run().unasked == 0
    assert len(more.asked) == 4


def test_with_many_in_flight_the_budget_waits_for_what_they_turn_out_to_cost(tmp_path: Path) -> None:
    """Eight questions at their dearest are above the budget, at what they cost they are not: all are asked."""
    bench = Bench(tmp_path, rows_of(4))
    judge = Scripted(fair)
    summary = bench.judging(judge, max_usd=8 * COST_USD + 0.0004, concurrency=8).run()
    assert summary.spent.usd == pytest.approx(8 * COST_USD)
    assert (len(judge.asked), summary.unasked) == (8, 0)


@pytest.mark.parametrize("may_be_billed", [True, False])
def test_a_failed_request_counts_in_full_only_if_it_may_have_been_billed(
    bench: Bench, may_be_billed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests for which no connection was made once counted as billed."""
    monkeypatch.setattr(Asker, "pause", lambda self, seconds: None)

    def fails_once(messages: object, tries: int) -> Reply:
        if tries == 0:
            raise NoReply("no_judge_reply", "cut", may_be_billed=may_be_billed, may_pass=True)
        return fair(messages, tries)

    summary = bench.judging(Scripted(fails_once)).run()
    doubtful_usd = 6 * MOST_USD if may_be_billed else 0.0
    assert summary.spent.doubtful_usd == pytest.approx(doubtful_usd)
    assert summary.spent.usd == pytest.approx(doubtful_usd + 6 * COST_USD)


def test_an_interrupt_does_not_wait_for_a_pause(bench: Bench) -> None:
    """Ctrl-C once waited for every request that slept before its next try, up to a minute each."""
    failing, first = threading.Event(), threading.Lock()

    def busy_after_the_first(messages: object, tries: int) -> Reply:
        if first.acquire(blocking=False):
            return fair(messages, tries)
        failing.set()
        raise NoReply("no_judge_reply", "busy", may_pass=True, pause_s=60.0)

    def interrupt_when_failing() -> None:
        failing.wait(10)
        time.sleep(0.2)  # by then they pause
        os.kill(os.getpid(), signal.SIGINT)

    def interrupt(progress: object) -> None:
        if len(bench.progress) == 4:  # three ties, and the first question
            threading.Thread(target=interrupt_when_failing).start()

    judge = Scripted(busy_after_the_first)
    bench.on_progress = interrupt
    begun_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        bench.judging(judge, concurrency=4).run()
    assert failing.is_set() and time.monotonic() - begun_s < 20
    assert sum(score.score is not None for score in bench.scores()) == 1


def test_without_a_price_or_a_budget_tokens_are_counted(bench: Bench) -> None:
    summary = bench.judging(Scripted(fair), price=None).run()
    assert (summary.spent.usd, summary.spent.prompt_tokens) == (None, 6000)
    assert {score.cost_usd for score in bench.scores() if score.label == EXITING} == {None}


def test_a_forecast_asks_and_writes_nothing_and_knows_what_is_there(bench: Bench) -> None:
    judge = Scripted(fair)
    forecast = bench.judging(judge).forecast()
    assert (forecast.judgements, forecast.questions, forecast.ties) == (9, 6, 3)
    assert forecast.usd == pytest.approx(6 * COST_USD)
    assert judge.asked == [] and bench.scores() == [] and not (bench.folder / "cache").exists()
    bench.judging(judge, max_usd=0.0031).run()
    left = bench.judging(judge).forecast()
    assert (left.questions, left.stored) == (4, 5)


def test_a_forecast_counts_tokens_as_earlier_bills_did(bench: Bench) -> None:
    """The fake bills 500 tokens where 1000 are estimated."""
    half = Scripted(lambda messages, tries: replace(fair(messages, tries), usage=Usage(500, 4)))
    bench.judging(half, max_usd=0.0031).run()
    bench.forget_scores()
    forecast = bench.judging(half).forecast()
    assert forecast.usage.prompt_tokens == 500 * forecast.questions


def test_questions_longer_than_the_judge_takes_are_left_out_and_counted(bench: Bench) -> None:
    class Small(Scripted):
        @property
        def context_tokens(self) -> int:
            return 1000

    judge = Small(fair)
    assert bench.judging(judge).forecast().too_long == 6
    summary = bench.judging(judge).run()
    assert (judge.reached, judge.asked, summary.too_long, summary.unfinished) == (0, [], 6, 6)


def test_answers_alone_are_graded_with_the_baselines_own_and_shared_where_equal(bench: Bench) -> None:
    judge = Scripted(says("7"), protocol="single")
    bench.judging(judge).run()
    assert len(judge.asked) == 6  # of the baseline and the drafted one, which is the same, and of the other
    scores = bench.scores()
    assert {score.label for score in scores} == {BASELINE, DRAFTED, EXITING}
    assert {(one.score, one.baseline_score, one.baseline, one.order) for one in scores} == {(7.0, None, "", "")}


def two_turns(prompt_id: str) -> list:  # type: ignore[type-arg]
    base, _, other = (replace(row, prompt_id=prompt_id) for row in rows_of(1))
    return [row for first in (base, other) for row in (first, replace(first, turn=1, text=f"{first.text} again"))]


def test_a_second_turn_is_judged_with_the_first_as_context(tmp_path: Path) -> None:
    prompts = {("koala", "p0"): MadeUpPrompt(("First?", "Second?"))}
    bench = Bench(tmp_path, two_turns("p0"), prompts)
    judge = Scripted(fair)
    bench.judging(judge).run()
    first, second = [content for content in judge.asked if shown(content) == "base"]
    assert "Second?" not in first
    for part in ("First?", "base 0\n", "Second?", "base 0 again", "other 0\n", "other 0 again"):
        assert part in second
    assert {(score.turn, score.template.split("@")[0]) for score in bench.scores()} == {
        (0, "pairwise-v2"),
        (1, "pairwise-turns-v2"),
    }


@pytest.mark.parametrize(("category", "seen"), [("math", True), ("writing", False)])
@pytest.mark.parametrize("protocol", ["single", "pairwise"])
def test_reference_answers_are_shown_where_an_answer_is_right_or_wrong(
    tmp_path: Path, protocol: Literal["single", "pairwise"], category: str, seen: bool
) -> None:
    """Pairs were once judged without them; their prompt with one is another, so that scores tell which was asked."""
    prompts = {("koala", "p0"): MadeUpPrompt(("First?", "Second?"), ("It is 4.", "It is 5."), category)}
    bench = Bench(tmp_path, two_turns("p0"), prompts)
    judge = Scripted(says("7" if protocol == "single" else "7 8"), protocol=protocol)
    bench.judging(judge).run()
    own = "-reference" if seen and protocol == "pairwise" else ""
    named = {(score.turn, score.template.partition("@")[0]) for score in bench.scores()}
    assert named == {(0, f"{protocol}{own}-v2"), (1, f"{protocol}-turns{own}-v2")}
    assert all(("It is 4." in content) == seen for content in judge.asked)
    assert all(("It is 5." in content) == (seen and "Second?" in content) for content in judge.asked)


@pytest.mark.parametrize("again", [False, True], ids=["draws", "repeats itself"])
def test_no_answer_knows_the_mark_around_it_and_the_cache_does_not_depend_on_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """An answer with `[End of assistant A's answer]` in it once ended itself. Where a judge repeats itself the mark is
    a hash of all texts, so that it stays one."""
    marks: list[list[str]] = []

    class Marked(Scripted):
        repeats_itself = again

        def ask(self, messages: Sequence[Message], sample: int) -> Reply:
            marks.append(MARK.findall(messages[-1].content))
            return super().ask(messages, sample)

    for _ in range(2):
        bench.judging(Marked(fair)).run()
        bench.forget_scores()
    assert len(marks) == 6 and all(len(each) == 4 and len(set(each)) == 1 for each in marks)
    first = {each[0] for each in marks}
    shutil.rmtree(bench.folder / "cache")
    bench.judging(Marked(fair)).run()
    assert len(marks) == 12 and len(first) == 6 and ({each[0] for each in marks} == first) == again


def test_a_judge_that_repeats_itself_is_asked_once(bench: Bench) -> None:
    """An unreadable reply of a model at temperature 0 was asked for three times, each time the same."""

    class Same(Scripted):
        repeats_itself = True

    judge = Same(says("no"))
    assert (bench.judging(judge).run().unreadable, len(judge.asked)) == (6, 6)
    assert (bench.judging(judge, tries=9).run().written, len(judge.asked)) == (0, 6)


@pytest.mark.parametrize(
    ("billed", "refused", "usd", "notices"),
    [
        (Usage(10**400, 4), 6, 6 * MOST_USD, 1),
        (Usage(1000, 10**9), 6, 6 * MOST_USD, 1),
        (Usage(4000, 4), 0, 2 * 0.004, 1),
        (Usage(1300, 4), 0, 6 * MOST_USD, 0),
    ],
    ids=["no number of tokens", "more than was asked for", "above the bound", "at the bound"],
)
def test_absurd_bills_are_refused_and_one_above_the_budget_is_told(
    bench: Bench, billed: Usage, refused: int, usd: float, notices: int
) -> None:
    """10**400 tokens once ended in an OverflowError, and $2000 of a budget of $0.02 were spent without a word."""
    most_usd = bench.judging(Scripted(fair)).forecast().most_usd
    summary = bench.judging(Scripted(says("8 7", billed)), max_usd=most_usd).run()
    assert most_usd == pytest.approx(6 * MOST_USD)
    assert summary.unasked == (4 if billed == Usage(4000, 4) else 0)
    assert (summary.spent.refused_bills, len(bench.notices)) == (refused, notices)
    assert summary.spent.usd == pytest.approx(usd)


def test_answers_without_the_baselines_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = rows_of(2)
    bench = Bench(tmp_path, [failed(rows[0]), *rows[1:]])
    summary = bench.judging(Scripted(fair)).run()
    assert summary.left_out == {"the baseline's answer": 2}
    assert {score.prompt_id for score in bench.scores()} == {"p1"}


def test_results_without_the_baseline_are_refused_and_their_labels_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [row for row in rows_of(2) if row.label != BASELINE])
    with refused("unknown_baseline", f"'{BASELINE}'", "two_model", "early_exit"):
        bench.judging(Scripted(fair))


def test_another_baseline_may_be_named(bench: Bench) -> None:
    bench.judging(Scripted(fair), baseline=EXITING).run()
    assert {(score.label, score.baseline) for score in bench.scores()} == {(BASELINE, EXITING), (DRAFTED, EXITING)}


def test_prompts_that_differ_between_files_are_refused(bench: Bench) -> None:
    suite = replace(RUN.suites[0], sha256="other")
    second = write(bench.folder / "second.jsonl", rows_of(1), replace(RUN, suites=(suite,)))
    with refused("other_prompts", "koala", "first.jsonl", "second.jsonl"):
        check_same_prompts([read(bench.results), read(second)])


def test_an_answer_to_a_prompt_that_is_not_there_is_refused(bench: Bench) -> None:
    del bench.prompts["koala", "p1"]
    with refused("other_prompts", "turn 1 of prompt p1 of koala"):
        bench.judging(Scripted(fair))


def test_a_changed_answer_gets_a_score_of_its_own(bench: Bench) -> None:
    """A file measured anew under the same name once kept the scores of the texts that it no longer held."""
    bench.judging(Scripted(fair)).run()
    rows = [replace(row, text=row.text.replace("other 0", "other new")) for row in bench.rows]
    write(bench.results, rows)
    judge = Scripted(fair)
    assert bench.judging(judge).run().written == 2
    assert all("other new" in content for content in judge.asked)


def test_two_judgings_of_one_file_at_once_are_refused(bench: Bench) -> None:
    def again(messages: object, tries: int) -> Reply:
        bench.judging(Scripted(fair)).run()
        raise AssertionError("two wrote at once")

    with refused("file_in_use", "benchctl judge"):
        bench.judging(Scripted(again)).run()


def test_price_of_a_judge_that_is_not_paid_is_nothing(bench: Bench) -> None:
    class Free(Scripted):
        paid = False

    summary = bench.judging(Free(fair), price=None, max_usd=0.0).run()
    assert (summary.unasked, summary.spent.usd) == (0, 0.0)
