"""How a token is chosen from target logits: greedy, or drawn after temperature, top-k and top-p."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchctl.errors import UserError

LEAST_TEMPERATURE = 0.01  # below it float32 logits divided by the temperature may overflow, and draws are greedy anyway


def check_temperature(temperature: float) -> None:
    """Raises UserError for one that is neither 0 nor at least LEAST_TEMPERATURE."""
    if temperature and not temperature >= LEAST_TEMPERATURE:
        raise UserError(
            "temperature_too_low",
            f"The temperature {temperature:g} is below {LEAST_TEMPERATURE}, where logits divided by it may overflow. "
            f"Use 0, which is greedy, or at least {LEAST_TEMPERATURE}.",
        )


@dataclass(frozen=True)
class Sampling:
    """How every token of a run is drawn, warped in transformers' order: temperature (0 is greedy), top-k, top-p."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def generator(self, prompt_seed: int = 0) -> torch.Generator:
        """A generator of its own for one generation, so that order and neighbours change nothing."""
        mixed = (self.seed * 1_000_003 + prompt_seed * 7_919 + 1) % (2**63)
        return torch.Generator("cpu").manual_seed(mixed)

    def probs(self, logits: Tensor) -> Tensor:
        """Warped probabilities of ``logits`` [rows, vocabulary]; greedy gives one-hot rows.

        Float64 on the host: rejection subtracts nearly equal numbers, and decisions need host values anyway.
        """
        scores = logits.detach().to("cpu", torch.float64)
        if self.greedy:
            return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)
        scores = scores / self.temperature
        if 0 < self.top_k < scores.shape[-1]:
            kth = scores.topk(self.top_k, dim=-1).values[..., -1:]
            scores = scores.masked_fill(scores < kth, -torch.inf)
        if self.top_p < 1.0:
            # Mask what lies outside the smallest set whose probability reaches top_p; at least one token stays.
            # Ascending: the sum of a token and all less likely ones. At most 1 - top_p means the likelier ones suffice.
            # Example: probabilities (0.1, 0.3, 0.6) with top_p 0.8 have sums (0.1, 0.4, 1.0): the first is masked.
            ordered, order = scores.sort(dim=-1)
            outside = ordered.softmax(-1).cumsum(-1) <= 1.0 - self.top_p
            outside[..., -1] = False
            scores = scores.masked_fill(outside.scatter(-1, order, outside), -torch.inf)
        return scores.softmax(-1)

    def rows(self, logits: Tensor) -> WarpedRows:
        """``probs``, each row when it is asked for."""
        return WarpedRows(self, logits)

    def draw(self, logits: Tensor, generator: torch.Generator) -> int:
        """One token for the single row ``logits`` [1, vocabulary]."""
        if self.greedy:
            return likeliest(logits)[0]
        return draw(self.probs(logits)[-1], generator)

    def draw_each(self, logits: Tensor, generators: Sequence[torch.Generator]) -> list[int]:
        """One token for each row of ``logits`` [rows, vocabulary], drawn from its own generator."""
        if self.greedy:
            return likeliest(logits)
        return [draw(row, generator) for row, generator in zip(self.probs(logits), generators, strict=True)]


def likeliest(logits: Tensor) -> list[int]:
    """The likeliest token of each row of ``logits`` [rows, vocabulary], of equal ones the first.

    On a CPU numpy searches, which is faster than torch for a large vocabulary.
    """
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        on_host: list[int] = logits.detach().numpy().argmax(-1).tolist()
        return on_host
    tokens: list[int] = logits.argmax(-1).tolist()
    return tokens


class WarpedRows:
    """Warped probabilities [vocabulary] of each row of ``logits``, computed when asked for: a tree walk sees few."""

    def __init__(self, sampling: Sampling, logits: Tensor) -> None:
        self._sampling, self._logits = sampling, logits

    def __getitem__(self, row: int, /) -> Tensor:
        return self._sampling.probs(self._logits[row : row + 1])[0]


def draw(probs: Tensor, generator: torch.Generator) -> int:
    return int(torch.multinomial(probs, 1, generator=generator).item())


def draw_distinct(probs: Tensor, count: int, generator: torch.Generator) -> list[int]:
    """``count`` tokens drawn one after another without replacement by ``probs`` [vocabulary], in the order of draws.

    Fewer where fewer have a probability. It has the distribution of Gumbel-top-k (Kool et al. 1903.06059).
    """
    left, tokens = probs.clone(), list[int]()
    for _ in range(min(count, int(probs.count_nonzero()))):
        tokens.append(draw(left, generator))
        left[tokens[-1]] = 0.0
    return tokens
