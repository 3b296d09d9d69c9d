"""What the time of a method's tokens is made of, in shares of the baseline's time for a token: see predict.py."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchctl.analysis.stats import Floats
from benchctl.records import Row

PHASES = ("draft", "verify", "commit", "host")  # of profile rows, see decoding.phases
UNEXPLAINED = "unexplained"
_FEWEST_OTHERS = 20  # steps of another draft length than most, for a slope
_LARGEST_ERROR = 0.1  # of the predicted time of a step


@dataclass(frozen=True)
class Part:
    """What one thing adds to a token's time, as a share of the baseline's. `predicted`: the prediction knows of it."""

    name: str
    share: float
    predicted: bool


@dataclass(frozen=True)
class Account:
    """Its parts; and for each answer, in seconds, what the prediction knows of it and what the baseline takes for as
    many tokens, [answers] each."""

    parts: tuple[Part, ...]
    known_s: Floats
    baseline_s: Floats


@dataclass(frozen=True)
class Sums:
    """Answers of one method as numbers, each [answers] but for the steps: `depth` counts steps by the share of the
    layers they ran, `rows`, `step_s` and `step_drafted` are of all steps in a row."""

    steps: Floats
    tokens: Floats
    drafted: Floats
    depth: Floats
    seconds: Floats
    text_tokens: Floats
    phases: Mapping[str, Floats]
    rows: Sequence[int]
    step_s: Floats
    step_drafted: Floats

    @classmethod
    def of(cls, rows: Sequence[Row], layers: int) -> "Sums":
        """The first token is prefill's, and no step's."""
        return cls(
            steps=_floats(len(row.step_s) for row in rows),
            tokens=_floats(sum(row.committed) for row in rows),
            drafted=_floats(sum(row.drafted) for row in rows),
            depth=_floats(sum(row.layers[1:]) / layers for row in rows),
            seconds=_floats(sum(row.step_s) for row in rows),
            text_tokens=_floats(row.prompt_tokens + len(row.token_ids) / 2 for row in rows),
            phases={name: _floats(sum(row.phases.get(name, ())) for row in rows) for name in PHASES},
            rows=[count for row in rows for count in row.rows],
            step_s=_floats(seconds for row in rows for seconds in row.step_s),
            step_drafted=_floats(count for row in rows for count in row.drafted),
        )

    @property
    def total_tokens(self) -> float:
        return float(self.tokens.sum())

    @property
    def token_s(self) -> float:
        """Seconds per token."""
        return float(self.seconds.sum()) / self.total_tokens

    def step_phase_s(self, name: str) -> float:
        """Seconds per step."""
        return float(self.phases[name].sum() / self.steps.sum())


def by_phases(ours: Sums, theirs: Sums, split: Sums, plain: Sums) -> Account:
    """From free and profiled answers of method and baseline.

    Target steps are steps of the baseline, or of that share of its layers; wider passes what verification takes beyond
    that, of one row; commit and host what they take beyond the baseline's. The prediction of a method that drafts knows
    the first three. What is unexplained is how free rows differ from profiled ones.
    """
    verify_s, commit_s, host_s = (plain.step_phase_s(name) for name in ("verify", "commit", "host"))
    whole_s = sum(plain.phases.values(), np.zeros(len(plain.steps)))
    baseline_s = whole_s * split.total_tokens / plain.total_tokens
    unit_s = float(baseline_s.sum())
    phase = {name: float(split.phases[name].sum()) for name in PHASES}
    steps = float(split.steps.sum())
    drafts = bool(split.drafted.any())
    passes = split.steps if drafts else split.depth
    known_s = passes * verify_s + split.steps * (commit_s + host_s)
    target_s = float(known_s.sum())
    parts = [
        Part("target steps", target_s / unit_s, True),
        Part("drafting", phase["draft"] / unit_s, drafts),
        Part("wider passes", (phase["verify"] - float(passes.sum()) * verify_s) / unit_s, drafts),
        Part("commit", (phase["commit"] - steps * commit_s) / unit_s, False),
        Part("host", (phase["host"] - steps * host_s) / unit_s, False),
    ]
    rest = ours.token_s / theirs.token_s - sum(part.share for part in parts)
    if drafts:
        known_s = split.phases["draft"] + split.phases["verify"] + split.steps * (commit_s + host_s)
    return Account((*parts, Part(UNEXPLAINED, rest, False)), known_s, baseline_s)


def by_steps(ours: Sums, theirs: Sums, slope_s: float) -> Account:
    """The same from free answers alone, where a drafted token costs `slope_s`, drafting and verification together.

    The rest is what every step of a drafting method costs whatever it drafts, and of another one what it does beside
    running its layers.
    """
    step_s = float(theirs.seconds.sum() / theirs.steps.sum())
    baseline_s = theirs.seconds * ours.total_tokens / theirs.total_tokens
    unit_s = float(baseline_s.sum())
    drafts = bool(ours.drafted.any())
    passes_s = (ours.steps if drafts else ours.depth) * step_s
    drafting_s = slope_s * ours.drafted
    parts = [Part("target steps", float(passes_s.sum()) / unit_s, True)]
    if drafts:
        parts.append(Part("drafted tokens", float(drafting_s.sum()) / unit_s, True))
    rest = ours.token_s / theirs.token_s - sum(part.share for part in parts)
    parts.append(Part("every step" if drafts else "other work", rest, False))
    return Account(tuple(parts), passes_s + drafting_s, baseline_s)


def slope_of(step_s: Floats, drafted: Floats) -> float | str:
    """Seconds that a drafted token adds to a step, by least squares over steps [N]; or why that cannot be told.

    As many steps that draft 1, 2 and 3 tokens in 3, 5 and 7 s: 2 s.
    """
    counts = np.unique(drafted, return_counts=True)[1]
    if len(drafted) - counts.max() < _FEWEST_OTHERS:
        return (
            "nearly all its steps draft as many tokens, so what those cost cannot be told from what steps cost anyway"
        )
    away = drafted - drafted.mean()
    slope = float(away @ step_s / (away @ away))
    left = step_s - step_s.mean() - slope * away
    error = float(np.sqrt(left @ left / (len(left) - 2) / (away @ away)))
    if error * drafted.mean() > _LARGEST_ERROR * step_s.mean():
        return "its step times vary too much to tell what drafts cost"
    return slope


def _floats(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=np.float64)
