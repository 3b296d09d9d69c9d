"""`benchctl doctor --method X --model M`: a method checked on a user's own target.

The target is in float64, where rounding decides only ties.
`examine` asks the same and more on random targets. Nothing is small here, so each question is asked of a few
prompts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from scipy import special, stats

from benchctl.conformance.checks import OWN_TOKENS, SHORT, WARM, chances_of, not_sampled, unlike
from benchctl.conformance.distributions import Drawing, Text, distribution, total_variation
from benchctl.conformance.findings import Deviation, Finding, Held, Result, Skipped, finding, shown
from benchctl.decoding.counting import count_step
from benchctl.decoding.loop import DecodeRequest, Generation, decode, open_context
from benchctl.decoding.method import CarriesOver, Method, PlainDrafter, Speculative
from benchctl.decoding.model.target import Target
from benchctl.decoding.verify import common_start
from benchctl.registry import BASELINE, build

_DECODED = 500  # draws that are decoded; of more than 10,000 draws, one in 20
_DRAWS_PER_DECODING = 20
SIGNIFICANCE = 1e-4  # probability that a method without a fault fails the G-test
POWER = 0.99  # probability that a deviation as large as `GTest.detectable` fails it
_FEWEST_EXPECTED = 5.0  # answers in a cell of the test


@dataclass(frozen=True)
class Case:
    """A prepared method on a float64 target, its draft model if it has one, and the ids of some prompts.

    new_tokens  of each greedy answer, at most
    draws       short answers that are drawn, see `draws`
    """

    label: str
    method: Method
    target: Target
    draft_model: Target | None
    prompts: tuple[Sequence[int], ...]
    new_tokens: int
    draws: int

    def answer(self, prompt: Sequence[int]) -> Generation:
        """The method's greedy answer."""
        return decode(self.method, self.target, DecodeRequest(prompt, self.new_tokens))

    def drawn(self, seed: int = 0) -> Text:
        """A short answer to the shortest prompt."""
        return decode(self.method, self.target, DecodeRequest(self.shortest, SHORT, WARM, seed=seed)).token_ids

    @property
    def shortest(self) -> Sequence[int]:
        return min(self.prompts, key=len)


def verify(case: Case, target: str) -> Iterator[Finding]:
    """A finding for each check, in order; ``target`` is what the target is called."""
    for name, check in CHECKS.items():
        yield finding(case.label, name, target, partial(check, case))


def greedy(case: Case) -> Result:
    """Greedy answers are the target's."""
    if case.method.exactness == "lossy":
        return Skipped(f"claims no exactness: {case.method.reason}")
    baseline, tokens = build(BASELINE), 0
    for number, prompt in enumerate(case.prompts, 1):
        got = case.answer(prompt).token_ids
        truth = decode(baseline, case.target, DecodeRequest(prompt, case.new_tokens)).token_ids
        if got != truth:
            at = common_start(got, truth)
            expected = f"{shown(truth[at:])} from token {at + 1} of prompt {number} on, as {BASELINE} has it"
            return Deviation(expected, shown(got[at:]), OWN_TOKENS)
        tokens += len(truth)
    return Held(_counted(tokens, "token", case))


@torch.inference_mode()
def steps(case: Case) -> Result:
    """Each step follows from the text before it.

    `plain_drafter`, or a fresh start of the method, shows what it must draft, accept and commit. Verification
    corrects the text whatever the draft was, so a wrong mask, a wrong position or a stale draft cache shows only here.
    A fresh start finds what a stale cache does, but not what every start does wrong.
    """
    method = case.method
    if not isinstance(method, Speculative):
        return Skipped("it does not draft and verify")
    drafter = method.plain_drafter(case.target, case.draft_model)
    if drafter is None and not method.drafts_from_text:
        return Skipped("what it drafts does not follow from the text alone, so its steps cannot be taken again")
    count = drafted = 0
    for number, prompt in enumerate(case.prompts, 1):
        got, at = case.answer(prompt), 1
        for place, step in enumerate(got.steps, 1):
            seen = _Round(step.drafted, step.accepted, len(step.tokens))
            dictated = _fresh(case, prompt, got, at) if drafter is None else _plain(drafter, case, prompt, got, at)
            if seen != dictated:
                action = "look at masks, positions and what the drafter's cache keeps of rejected tokens"
                return Deviation(f"{dictated} in step {place} of prompt {number}", str(seen), action)
            at, drafted = at + seen.committed, drafted + seen.drafted
        count += len(got.steps)
    if drafter is None and not drafted:
        return Skipped("nothing was drafted")
    way = "a fresh start of the same method" if drafter is None else "full recomputation"
    return Held(f"{_counted(count, 'step', case)}, by {way}")


@dataclass(frozen=True)
class _Round:
    """Tokens of one step."""

    drafted: int
    accepted: int
    committed: int

    def __str__(self) -> str:
        return f"{self.accepted} accepted of {self.drafted} drafted, {self.committed} committed"


def _plain(drafter: PlainDrafter, case: Case, prompt: Sequence[int], got: Generation, at: int) -> _Round:
    """The step that a greedy method must take after the first ``at`` tokens of the answer that it must give."""
    begun, rest = case.target.begin(prompt), got.token_ids[at:]
    limit = min(case.new_tokens, case.target.context_tokens - len(begun))
    proposal, stop_ids = drafter([*begun, *got.token_ids[:at]], limit - at - 1), case.target.stop_ids
    stop = next((place for place, token in enumerate(proposal, 1) if token in stop_ids), len(proposal))
    proposal = proposal[:stop]
    agreed = common_start(proposal, rest)
    return _Round(len(proposal), agreed, min(agreed + 1, len(rest)))


def _fresh(case: Case, prompt: Sequence[int], got: Generation, at: int) -> _Round:
    """The step that the method itself takes where it starts on the prompt and the first ``at`` tokens of its answer."""
    said, rest = got.token_ids[:at], got.token_ids[at:]
    if isinstance(case.method, CarriesOver):
        case.method.store = case.method.new_store()
    with case.method.serve(case.target, None) as served:
        context = open_context(served, DecodeRequest(prompt, case.new_tokens))
        context.tokens += said[:-1]
        case.method.start(context)
        context.tokens.append(said[-1])
        context.stream.runs.clear()
        step = count_step(context, case.method.step(context), context.stream.runs)
    return _Round(step.drafted, min(step.accepted, len(rest)), min(len(step.tokens), len(rest)))


def _counted(number: int, noun: str, case: Case) -> str:
    asked = len(case.prompts)
    return f"{number} {noun}{'s' * (number != 1)} of {asked} prompt{'s' * (asked != 1)}"


def sampled(case: Case) -> Result:
    """Short answers have the target's distribution, exactly.

    All ways that draws can go are tried.
    """
    if reason := not_sampled(case.method):
        return reason
    drawn = distribution(lambda _: case.drawn())
    distance = total_variation(drawn, chances(case))
    return unlike(distance) or Held(f"{len(drawn)} answers, total variation {distance:.1g}")


def draws(case: Case) -> Result:
    """Drawn answers have the target's frequencies.

    This is a G-test of answers drawn with different seeds. Enumeration does not see how numbers are drawn. Some answers
    are decoded. The others follow from their numbers where the method allows that: see Drawing.
    """
    if reason := not_sampled(case.method):
        return reason
    if not case.draws:
        return Skipped("no draws were asked for")
    drawing = Drawing(case.drawn, WARM.generator)
    decoded = max(min(case.draws, _DECODED), case.draws // _DRAWS_PER_DECODING)
    answers = [drawing.decode(seed) for seed in range(decoded)]
    more = [drawing.draw(seed) for seed in range(decoded, case.draws) if drawing.follows]
    follows = drawing.follows
    answers += more if follows else []
    expected, counts, number = chances(case), Counter(answers), f"{len(answers):,} draws"
    action = "draw from context.generator alone, once for each decision, and never from a number drawn before"
    if impossible := [text for text in counts if expected.get(text, 0.0) == 0.0]:
        return Deviation("only answers that the target can give", shown(impossible[0]), action)
    test = g_test(counts, expected)
    if test is None:
        return Skipped(f"{number} are too few, or all chances lie on one answer; ask for more")
    if test.p < SIGNIFICANCE:
        return Deviation("the target's frequencies", f"others, p = {test.p:.1g} in {number}", action)
    # A share q of answers that do not follow from their numbers is missed with probability (1 - q) ** checked.
    unseen = 1 - (1 - POWER) ** (1 / max(drawing.checked, 1)) if follows and more else 0.0
    how = f"{decoded:,} decoded" if follows else "all decoded, as not only its draws decide"
    detectable = f"a total variation of {min(unseen + test.detectable, 1.0):.2g} would have shown with {POWER:.0%}"
    return Held(f"p = {test.p:.2g} in {number}, {how}; {detectable}")


# By name. The first line of a docstring says what a pass means; `doctor` prints it.
CHECKS: dict[str, Callable[[Case], Result]] = {check.__name__: check for check in (greedy, steps, sampled, draws)}


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


def chances(case: Case) -> dict[Text, float]:
    """The probability of every short answer to the shortest prompt, each token's by a pass over the whole text."""
    return chances_of(partial(case.target.next_logits, case.shortest), case.target.stop_ids)
