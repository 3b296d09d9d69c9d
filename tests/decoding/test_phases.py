"""A step split into its phases: each second goes where it was spent, and all of them add up to the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from fakes_measuring import Plain, Shallower
from runs import EXACT, LOSSY, OF_EXPERTS, pair, prepared, prompt_of, ticking
from tiny import tiny_target

from benchctl.decoding.batch import decode_batch
from benchctl.decoding.draft import Draft
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import Context, Method, Outcome, Speculative
from benchctl.decoding.model.target import Target
from benchctl.decoding.phases import PHASES, UNSPLIT, Marks
from benchctl.decoding.verify import Verdict
from benchctl.registry import build

PROMPT = tuple(prompt_of(13))


def profiled(method: Method, target: Target, *, profile: bool = True, tokens: int = 12) -> Generation:
    return decode(method, target, DecodeRequest(PROMPT, tokens, profile=profile, clock=ticking()))


def test_seconds_go_to_the_phase_that_was_under_way() -> None:
    """Readings at 0, 10 (prefill), 11, 14, 20, 21, 22 (a step ends) and 25, 31 (the next one)."""
    readings = iter([0.0, 10.0, 11.0, 14.0, 20.0, 21.0, 22.0, 25.0, 31.0])
    marks = Marks(readings.__next__, split=True)
    marks.mark()
    marks.mark()
    for phase in ("draft", "verify", "commit", "host"):
        marks.enter(phase)
    marks.mark()
    marks.enter("verify")
    marks.mark()
    assert marks.seconds(2) == [10.0, 12.0, 9.0]
    assert marks.phases(2) == {
        "draft": (3.0, 0.0), "verify": (6.0, 6.0), "commit": (1.0, 0.0), "host": (2.0, 3.0),
    }  # fmt: skip
    assert marks.phases(1) == {"draft": (3.0,), "verify": (6.0,), "commit": (1.0,), "host": (2.0,)}


def test_what_prefill_tells_is_no_phase_of_the_first_step() -> None:
    readings = iter([0.0, 1.0, 10.0, 13.0])
    marks = Marks(readings.__next__, split=True)
    marks.mark()
    marks.enter("verify")
    marks.mark()
    marks.mark()
    assert marks.phases(1) == {"draft": (0.0,), "verify": (0.0,), "commit": (0.0,), "host": (0.0,), UNSPLIT: (3.0,)}


@dataclass
class Slow(Speculative):
    """Moves the clock on by 5 while it drafts, 3 while it judges and 2 while it observes."""

    clock: Any = None

    def draft(self, context: Context, budget: int) -> Draft:
        self.clock.now_s += 5
        return Draft.chain([3, 4][: max(budget, 0)])

    def verify(self, context: Context, draft: Draft, target_logits: Any) -> Verdict:
        self.clock.now_s += 3
        return super().verify(context, draft, target_logits)

    def observe(self, context: Context, outcome: Outcome) -> None:
        self.clock.now_s += 2


class Standing:
    """A clock that stands still unless it is moved on."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Standing:
    """The target's layers take 7 seconds a pass, committing rows takes 1."""
    clock = Standing()

    def slowed(name: str, kind: type[Any], seconds: float) -> None:
        fast = getattr(kind, name)

        def slow(*arguments: Any, **options: Any) -> Any:
            clock.now_s += seconds
            return fast(*arguments, **options)

        monkeypatch.setattr(kind, name, slow)

    slowed("keep", Stream, 1.0)
    slowed("run", Target, 7.0)
    return clock


def test_drafting_verifying_and_committing_are_told_apart(clock: Standing) -> None:
    got = decode(Slow(clock=clock), tiny_target(), DecodeRequest(PROMPT, 4, profile=True, clock=clock))
    steps = len(got.steps)
    assert got.phases == {
        "draft": (7.0,) * steps, "verify": (10.0,) * steps, "commit": (1.0,) * steps, "host": (0.0,) * steps,
    }  # fmt: skip
    assert got.ttft_s == 8.0 and got.step_s == (18.0,) * steps


@pytest.mark.parametrize("label", ["autoregressive", "early_exit[exits=2,threshold=0]"])
def test_a_step_without_a_draft_verifies_and_commits(clock: Standing, label: str) -> None:
    """Those that leave early fill the layers above while they commit, with no pass."""
    got = decode(build(label), tiny_target(), DecodeRequest(PROMPT, 4, profile=True, clock=clock))
    assert got.phases == {"draft": (0.0,) * 3, "verify": (7.0,) * 3, "commit": (1.0,) * 3, "host": (0.0,) * 3}


@pytest.mark.parametrize(
    "label", ["early_exit[mode=draft,exits=2,threshold=2]", "deed[mode=draft,exits=2,threshold=2]"]
)
def test_layers_above_the_last_exit_verify_though_the_drafter_runs_them(clock: Standing, label: str) -> None:
    """Where no exit was sure the drafter itself took the rows through the rest of the target, and all of that counted
    as drafting: 94% of a step that drafted nothing, as if verifying took next to no time."""
    models = pair("llama")
    got = decode(prepared(label, models.target), models.target, DecodeRequest(PROMPT, 4, profile=True, clock=clock))
    assert not any(step.drafted for step in got.steps)
    drafting = (7.0, 7.0, 0.0)  # for the last token that is asked for there is nothing to draft
    assert got.phases == {"draft": drafting, "verify": (7.0,) * 3, "commit": (1.0,) * 3, "host": (0.0,) * 3}


@pytest.mark.parametrize("label", [*EXACT, *LOSSY, *OF_EXPERTS])
def test_the_phases_of_every_method_add_up_to_its_steps_and_change_nothing_else(label: str) -> None:
    """The clock ticks once a reading, so a second that was counted twice or lost would show."""
    models = pair("mixtral" if label in OF_EXPERTS else "llama")
    found = [
        profiled(prepared(label, models.target, models.draft), models.target, profile=profile)
        for profile in (False, True)
    ]
    free, split = found
    assert (split.token_ids, split.steps, split.layers) == (free.token_ids, free.steps, free.layers)
    assert tuple(split.phases) == PHASES and free.phases == {}
    for step, seconds in enumerate(split.step_s):
        assert sum(phase[step] for phase in split.phases.values()) == pytest.approx(seconds)
    assert min(split.phases["verify"]) >= 1.0 and min(split.phases["commit"]) >= 1.0
    assert any(split.phases["draft"]) or not any(step.drafted for step in split.steps)


@pytest.mark.parametrize("label", ["autoregressive", "two_model", "m2r2_dynamic[threshold=0.5]"])
def test_nobody_reads_the_clock_within_a_step_that_is_not_split(label: str) -> None:
    """So the hook costs a headline nothing but calls that do nothing."""
    models = pair("llama")
    got = profiled(prepared(label, models.target, models.draft), models.target, profile=False)
    assert (got.ttft_s, set(got.step_s)) == (1.0, {1.0})


def test_a_step_that_tells_of_no_phase_is_not_split() -> None:
    """To call it all host, or all verify, would be a number that nobody measured."""
    got = profiled(Plain(), tiny_target())
    assert got.phases[UNSPLIT] == got.step_s
    assert not any(second for phase in PHASES for second in got.phases[phase])


def test_phases_of_a_batch_are_those_of_its_steps_up_to_each_answer_s_end() -> None:
    target = pair("llama").with_stops(*range(3, 9))
    clock = ticking()
    requests = [DecodeRequest(prompt_of(tokens), 12, clock=clock, profile=True) for tokens in (13, 2, 7, 5)]
    got = decode_batch(Shallower(), target, requests)
    assert len({len(one.steps) for one in got}) > 1
    longest = max(got, key=lambda one: len(one.steps))
    for one in got:
        steps = len(one.steps)
        assert one.phases == {name: seconds[:steps] for name, seconds in longest.phases.items()}
        assert one.step_s == longest.step_s[:steps] == (5.0,) * steps
    assert {name: set(seconds) for name, seconds in longest.phases.items()} == {
        "draft": {0.0}, "verify": {1.0}, "commit": {1.0}, "host": {3.0},
    }  # fmt: skip
