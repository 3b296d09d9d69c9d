"""Learn then Test: how low a threshold may be so that, with high chance, its risk stays below a bound.

Angelopoulos, Bates, Candes, Jordan, Lei: "Learn then Test", 2021, arXiv:2110.01052: one hypothesis "the risk is above
delta" for each threshold, tested one after the other from the safest on, each at level epsilon, until one stands
(fixed-sequence testing: whatever the risks are, no more than a share epsilon of calibrations end at a threshold whose
risk is above delta). Calibrating early exit so is CALM's, Schuster et al. 2022, arXiv:2207.07061, section 4.
P-values: Hoeffding and Bentkus, as in Bates et al. 2021, arXiv:2101.02703, for losses between 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy.special import bdtr

# Chosen before any data are seen, as the guarantee asks; finer above, where cosines and sure exits lie (ours).
_FINE = (0.999, 0.995, 0.99, 0.98, 0.97, 0.95, 0.925, 0.9, 0.875, 0.85)
THRESHOLDS = (*_FINE, *(round(0.8 - 0.05 * step, 2) for step in range(17)))


@dataclass(frozen=True)
class Risk:
    """What is promised: a risk of at most ``delta``, in all but a share ``epsilon`` of calibrations."""

    delta: float
    epsilon: float

    def __post_init__(self) -> None:
        for name in ("delta", "epsilon"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie between 0 and 1")

    @classmethod
    def read(cls, text: str) -> Risk:
        """Of `delta,epsilon`, such as 0.1,0.05. Raises ValueError for anything else."""
        delta, comma, epsilon = text.partition(",")
        if not comma:
            raise ValueError("give two numbers, delta and epsilon, such as 0.1,0.05")
        return cls(float(delta), float(epsilon))

    @property
    def fewest(self) -> int:
        """So many losses, all of them 0, are needed to show anything: (1 - delta)^n <= epsilon."""
        return math.ceil(math.log(self.epsilon) / math.log1p(-self.delta))


@dataclass(frozen=True)
class Tested:
    """A threshold: its mean loss, and the chance of one as low if its risk were above delta."""

    threshold: float
    risk: float
    p_value: float


@dataclass(frozen=True)
class Calibration:
    """The thresholds tested, from the highest on; the last of them may be one that could not be shown to be safe."""

    promised: Risk
    tested: tuple[Tested, ...]

    @property
    def chosen(self) -> Tested | None:
        """The lowest that was shown to be safe; None where not even the highest was."""
        safe = [tested for tested in self.tested if tested.p_value <= self.promised.epsilon]
        return safe[-1] if safe else None


def learn_then_test(
    thresholds: Sequence[float],
    losses_at: Callable[[float], Sequence[float]],
    promised: Risk,
    report: Callable[[Tested], None] = lambda tested: None,
) -> Calibration:
    """Tests ``thresholds``, the safest first, until one cannot be shown to be safe.

    ``losses_at`` gives the losses, 0 to 1, of independent prompts at a threshold, the same prompts at each.
    """
    tested: list[Tested] = []
    for threshold in thresholds:
        losses = losses_at(threshold)
        tested.append(Tested(threshold, sum(losses) / len(losses), p_value(losses, promised.delta)))
        report(tested[-1])
        if tested[-1].p_value > promised.epsilon:
            break
    return Calibration(promised, tuple(tested))


def p_value(losses: Sequence[float], delta: float) -> float:
    """At most the chance of a mean loss as low as this, if the risk were above ``delta``: the smaller of two bounds.

    Hoeffding's, exp(-n kl(mean, delta)), and Bentkus's, e P(Binomial(n, delta) <= ceil(n mean)).
    """
    count, total = len(losses), sum(losses)
    hoeffding = math.exp(-count * _divergence(min(total / count, delta), delta))
    return min(1.0, hoeffding, math.e * float(bdtr(math.ceil(total), count, delta)))


def disagreement(answer: Sequence[int], reference: Sequence[int]) -> float:
    """1 - the share of the longer text that comes before the first difference, as `compare` counts token agreement.

    Example: 5 6 7 8 and 5 6 9 give 0.5.
    """
    pairs = zip(answer, reference, strict=False)
    shorter, longer = sorted((len(answer), len(reference)))
    return 1.0 - next((at for at, (one, other) in enumerate(pairs) if one != other), shorter) / longer


def _divergence(low: float, high: float) -> float:
    """kl(low || high) of two coins, in nats."""
    heads = low * math.log(low / high) if low else 0.0
    return heads + ((1 - low) * math.log((1 - low) / (1 - high)) if low < 1 else 0.0)
