"""A method held to its claim on a user's own target: float64 equality, replayed steps, the distribution it draws from.

`examine` asks the same and more on random targets; here nothing is made small, so each question is asked of a few
prompts. In float64 rounding decides nothing that is not a tie to the fifteenth digit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from benchctl.conformance.chances import distribution, total_variation
from benchctl.conformance.drawing import Drawing
from benchctl.conformance.examine import guarded
from benchctl.conformance.findings import Deviation, Finding, Held, Result, Skipped, finding, shown
from benchctl.conformance.frequencies import POWER, Text, g_test
from benchctl.conformance.replay import replay
from benchctl.conformance.replayed import drafter_of
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import Method
from benchctl.decoding.model.target import Target
from benchctl.decoding.sampling import Sampling
from benchctl.registry import BASELINE, build, parse_label

WHAT: dict[str, str] = {
    "greedy": "greedy answers are autoregressive's",
    "steps": "steps are those that its drafts and the text dictate",
    "sampled": "all ways to draw a short answer have the target's chances",
    "draws": "answers really drawn have the target's frequencies",
}
_WARM = Sampling(temperature=1.5, top_k=2)
_SHORT = 4  # tokens of a drawn answer: sixteen answers, and room for drafts two tokens deep
_ROUNDING = 1e-6  # see claims.py
_DECODED = 500  # answers drawn, if so many are asked for; of many more, one in ..
_DRAWS_PER_DECODING = 20


@dataclass(frozen=True)
class Case:
    """A prepared method on a float64 target, with the draft model it has, if any, and the ids of some prompts.

    new_tokens  of each greedy answer, at most
    draws       short answers that are drawn, see `draws`
    """

    label: str
    method: Method
    target: Target
    draft: Target | None
    prompts: tuple[Sequence[int], ...]
    new_tokens: int
    draws: int

    def answer(self, prompt: Sequence[int]) -> Generation:
        """What the method says, greedily."""
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
    """Drafted and accepted, step by step, as drafting by full recomputation gives them: see replay.py."""
    if case.target.encoder is not None:
        return Skipped("replayed steps are for targets without an encoder")
    drafter = drafter_of(parse_label(case.label).name, case.method, case.target, case.draft)
    if isinstance(drafter, str):
        return Skipped(drafter)
    count = 0
    for number, prompt in enumerate(case.prompts, 1):
        got = case.answer(prompt)
        limit = min(case.new_tokens, case.target.context_tokens - len(prompt))
        rounds = [(step.drafted, step.accepted) for step in got.steps]
        dictated = replay(prompt, got.token_ids, limit, drafter)
        if rounds != dictated:
            pairs = enumerate(zip(rounds, dictated, strict=False))
            at = next((at for at, (one, other) in pairs if one != other), min(len(rounds), len(dictated)))
            action = "look at masks, positions and what the drafter's cache keeps of rejected tokens"
            return Deviation(f"{_round(dictated, at)} in step {at + 1} of prompt {number}", _round(rounds, at), action)
        count += len(rounds)
    return Held(_counted(count, "step", case))


def _counted(number: int, noun: str, case: Case) -> str:
    asked = len(case.prompts)
    return f"{number} {noun}{'s' * (number != 1)} of {asked} prompt{'s' * (asked != 1)}"


def _round(rounds: Sequence[tuple[int, int]], at: int) -> str:
    return f"{rounds[at][1]} accepted of {rounds[at][0]} drafted" if at < len(rounds) else "no step"


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
    """A G-test of answers drawn with seeds of their own: what enumeration replaces, the numbers drawn, is in play.

    Some are decoded; the others follow from their numbers, where the method lets them: see drawing.py.
    """
    if reason := _not_sampled(case.method):
        return reason
    if not case.draws:
        return Skipped("no draws were asked for")
    drawing = Drawing(case.drawn, _WARM.generator)
    decoded = max(min(case.draws, _DECODED), case.draws // _DRAWS_PER_DECODING)
    answers = [drawing.decode(seed) for seed in range(decoded)]
    more = [drawing.draw(seed) for seed in range(decoded, case.draws) if drawing.follows]
    if drawing.follows:
        return _frequencies(case, [*answers, *more], decoded, drawing.checked)
    return _frequencies(case, answers, 0, 0)


def _frequencies(case: Case, answers: Sequence[Text], followed: int, checked: int) -> Result:
    """Of all answers, which follow from their numbers as so many decoded ones do (0 if not all of these do), of which
    `checked` could have shown otherwise: see Drawing."""
    expected, counts, number = chances(case), Counter(answers), f"{len(answers):,} draws"
    action = "draw from context.generator alone, once for each decision, and never from a number drawn before"
    if impossible := [text for text in counts if expected.get(text, 0.0) == 0.0]:
        return Deviation("only answers that the target can give", shown(impossible[0]), action)
    test = g_test(counts, expected)
    if test is None:
        return Skipped(f"{number} are too few, or all chances lie on one answer; ask for more")
    if test.fails:
        return Deviation("the target's frequencies", f"others, p = {test.p:.1g} in {number}", action)
    # Answers that do not follow from their numbers would be seen among those decoded, wrong frequencies by the test.
    unseen = 1 - (1 - POWER) ** (1 / max(checked, 1)) if 0 < followed < len(answers) else 0.0
    how = f"{followed:,} decoded" if followed else "all decoded, as not only its draws decide"
    finds = f"a total variation of {min(unseen + test.finds, 1.0):.2g} would have shown with {POWER:.0%}"
    return Held(f"p = {test.p:.2g} in {number}, {how}; {finds}")


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
