"""`benchctl verify`: a method checked on a user's own target, in float64.

`examine` asks the same and more on random targets. Nothing is small here, so each question is asked of a few prompts.
In float64 rounding decides nothing that is not a tie to the fifteenth digit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from scipy import special, stats

from benchctl.conformance.enumeration import distribution, total_variation
from benchctl.conformance.examine import guarded
from benchctl.conformance.findings import Deviation, Finding, Held, Result, Skipped, finding, shown
from benchctl.decoding.loop import DecodeRequest, Generation, decode, open_context
from benchctl.decoding.method import Method, Speculative
from benchctl.decoding.model.target import Target
from benchctl.decoding.sampling import Sampling
from benchctl.registry import BASELINE, build

Text = tuple[int, ...]

WHAT: dict[str, str] = {
    "greedy": "greedy answers are autoregressive's",
    "steps": "steps are those of a fresh start on the same text",
    "sampled": "all ways to draw a short answer have the target's chances",
    "draws": "answers really drawn have the target's frequencies",
}
_WARM = Sampling(temperature=1.5, top_k=2)
_SHORT = 4  # tokens of a drawn answer: sixteen answers, and room for drafts two tokens deep
_ROUNDING = 1e-6  # see checks.py
SIGNIFICANCE = 1e-4  # probability that a method without a fault fails the G-test
POWER = 0.99  # probability that a deviation as large as `GTest.detectable` fails it
_FEWEST_EXPECTED = 5.0  # answers in a cell of the test


@dataclass(frozen=True)
class Case:
    """A prepared method on a float64 target, and the ids of some prompts.

    new_tokens  of each greedy answer, at most
    draws       short answers that are drawn, see `draws`
    """

    label: str
    method: Method
    target: Target
    prompts: tuple[Sequence[int], ...]
    new_tokens: int
    draws: int

    def answer(self, prompt: Sequence[int]) -> Generation:
        """The method's greedy answer."""
        return decode(self.method, self.target, DecodeRequest(prompt, self.new_tokens))

    def drawn(self, seed: int = 0) -> Text:
        """A short answer to the shortest prompt."""
        return decode(self.method, self.target, DecodeRequest(self.shortest, _SHORT, _WARM, seed=seed)).token_ids

    @property
    def shortest(self) -> Sequence[int]:
        return min(self.prompts, key=len)


def verify(case: Case, target: str) -> Iterator[Finding]:
    """A finding for each check, in order; ``target`` is what the target is called."""
    checks: dict[str, Callable[[Case], Result]] = {"greedy": greedy, "steps": steps, "sampled": sampled, "draws": draws}
    for name, check in checks.items():
        yield finding(case.label, name, target, guarded(partial(check, case)))


def greedy(case: Case) -> Result:
    """Token by token what plain decoding says on the same target."""
    if case.method.exactness == "lossy":
        return Skipped(f"claims no exactness: {case.method.reason}")
    baseline, tokens = build(BASELINE), 0
    for number, prompt in enumerate(case.prompts, 1):
        got = case.answer(prompt).token_ids
        truth = decode(baseline, case.target, DecodeRequest(prompt, case.new_tokens)).token_ids
        if got != truth:
            at = next((at for at, (one, other) in enumerate(zip(got, truth, strict=False)) if one != other), len(truth))
            expected = f"{shown(truth[at:])} from token {at + 1} of prompt {number} on, as {BASELINE} has it"
            action = "commit only what the target's logits say, and its own token after that; or claim lossy"
            return Deviation(expected, shown(got[at:]), action)
        tokens += len(truth)
    return Held(_counted(tokens, "token", case))


def steps(case: Case) -> Result:
    """Each step drafts and accepts what the method does when it starts afresh on the text before that step.

    A fresh start computes everything from the text, so what a step took from a stale cache shows as another draft.
    """
    if not isinstance(case.method, Speculative) or not case.method.drafts_from_text:
        return Skipped("what it drafts does not follow from the text alone, so its steps cannot be taken again")
    count = drafted = 0
    for number, prompt in enumerate(case.prompts, 1):
        got, text = case.answer(prompt), 1
        for at, step in enumerate(got.steps, 1):
            fresh = _fresh_step(case, prompt, got.token_ids[:text], len(step.tokens))
            if fresh != (step.drafted, step.accepted):
                expected = f"{fresh[1]} accepted of {fresh[0]} drafted"
                seen = f"{step.accepted} accepted of {step.drafted} drafted"
                action = "look at masks, positions and what the drafter's cache keeps of rejected tokens"
                return Deviation(f"{expected} in step {at} of prompt {number}", seen, action)
            text, drafted = text + len(step.tokens), drafted + step.drafted
        count += len(got.steps)
    if not drafted:
        return Skipped("nothing was drafted")
    return Held(_counted(count, "step", case))


@torch.inference_mode()
def _fresh_step(case: Case, prompt: Sequence[int], said: Sequence[int], committed: int) -> tuple[int, int]:
    """Drafted and accepted tokens of the step after the answer ``said``, of which ``committed`` tokens count."""
    with case.method.serve(case.target, None) as served:
        context = open_context(served, DecodeRequest(prompt, case.new_tokens))
        context.tokens += [*served.read(prompt), *said[:-1]]
        case.method.start(context)
        context.tokens.append(said[-1])
        step = case.method.step(context)
    return step.drafted, min(step.accepted, committed)


def _counted(number: int, noun: str, case: Case) -> str:
    asked = len(case.prompts)
    return f"{number} {noun}{'s' * (number != 1)} of {asked} prompt{'s' * (asked != 1)}"


def sampled(case: Case) -> Result:
    """The exact distribution of short answers, by every way that draws can go, against the target's own."""
    if reason := _not_sampled(case.method):
        return reason
    found = distribution(lambda _: case.drawn())
    distance = total_variation(found, chances(case))
    if not distance < _ROUNDING:
        action = "draw with context.pick, Chain or sampling.draw, and give Draft the distribution drawn from"
        return Deviation("total variation 0 from the target's distribution", f"{distance:.3g}", action)
    return Held(f"{len(found)} answers, total variation {distance:.1g}")


def draws(case: Case) -> Result:
    """A G-test of answers drawn with seeds of their own: enumeration does not see how numbers are drawn."""
    if reason := _not_sampled(case.method):
        return reason
    if not case.draws:
        return Skipped("no draws were asked for")
    expected, counts = chances(case), Counter(case.drawn(seed) for seed in range(case.draws))
    action = "draw from context.generator alone, once for each decision, and never from a number drawn before"
    if impossible := [text for text in counts if expected.get(text, 0.0) == 0.0]:
        return Deviation("only answers that the target can give", shown(impossible[0]), action)
    test = g_test(counts, expected)
    if test is None:
        return Skipped(f"{case.draws:,} draws are too few, or all chances lie on one answer; ask for more")
    if test.p < SIGNIFICANCE:
        return Deviation("the target's frequencies", f"others, p = {test.p:.1g} in {case.draws:,} draws", action)
    detectable = f"a total variation of {min(test.detectable, 1.0):.2g} would have shown with {POWER:.0%}"
    return Held(f"p = {test.p:.2g} in {case.draws:,} draws; {detectable}")


@dataclass(frozen=True)
class GTest:
    """The p-value of ``draws`` answers in ``cells`` cells."""

    p: float
    cells: int
    draws: int

    @property
    def detectable(self) -> float:
        """The least total variation over the cells, whatever its direction, that fails with probability POWER.

        A deviation d of the chances c adds n * sum(d**2 / c) to the noncentrality of chi-squared after n draws; its
        total variation is v = sum(|d|) / 2. By Cauchy-Schwarz sum(d**2 / c) >= 4 v**2.
        """
        freedom = self.cells - 1
        noncentrality = special.chndtrinc(stats.chi2.isf(SIGNIFICANCE, freedom), freedom, 1 - POWER)
        return math.sqrt(noncentrality / (4 * self.draws))


def g_test(counts: Counter[Text], expected: dict[Text, float]) -> GTest | None:
    """The G-test (Sokal and Rohlf, Biometry) that ``counts`` were drawn from the probabilities ``expected``.

    Cells are merged, the rarest first, until each is expected five times: chi-squared does not hold for smaller ones.
    None where that leaves one cell.
    """
    total = counts.total()
    cells: list[tuple[float, float]] = []
    seen, due = 0.0, 0.0
    for text, chance in sorted(expected.items(), key=lambda item: item[1]):
        seen, due = seen + counts[text], due + chance * total
        if due >= _FEWEST_EXPECTED:
            cells.append((seen, due))
            seen, due = 0.0, 0.0
    if due and cells:  # what rounding leaves of the last and largest
        cells[-1] = (cells[-1][0] + seen, cells[-1][1] + due)
    if len(cells) < 2:
        return None
    g = 2 * sum(seen * math.log(seen / due) for seen, due in cells if seen)
    return GTest(float(stats.chi2.sf(max(g, 0.0), len(cells) - 1)), len(cells), total)


def _not_sampled(method: Method) -> Skipped | None:
    return None if method.exactness == "exact" else Skipped(f"claims {method.exactness}, not exactness under sampling")


@torch.inference_mode()
def chances(case: Case) -> dict[Text, float]:
    """The probability of every short answer, each token's by a pass over the whole text."""
    found: dict[Text, float] = {(): 1.0}
    for _ in range(_SHORT):
        longer: dict[Text, float] = {}
        for text, chance in found.items():
            if text and text[-1] in case.target.stop_ids:
                longer[text] = chance
                continue
            probs = _WARM.probs(case.target.next_logits(case.shortest, text)[None])[0]
            for token in probs.nonzero().flatten().tolist():
                longer[*text, token] = chance * float(probs[token])
        found = longer
    return found
