"""Decoding as a run does it: the only place in measuring that calls the decoding loop with a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchctl.decoding.batch import BatchPrompt, decode_batch
from benchctl.decoding.experts.tiers import Timer
from benchctl.decoding.loop import Generation, Limits, decode
from benchctl.decoding.method import Method
from benchctl.decoding.model.target import Target
from benchctl.decoding.sampling import Sampling
from benchctl.measuring.prompts.fit import Filler


@dataclass(frozen=True)
class DecodingConfig:
    """What all generations of a run have in common, whatever the method.

    cut         a prompt that does not fit into the context keeps its last tokens; otherwise its generation fails
    batch_size  prompts decoded together; 1 means no batches
    filler      text before every prompt
    """

    max_new_tokens: int
    sampling: Sampling
    cut: bool = False
    batch_size: int = 1
    filler: Filler = Filler()

    @property
    def limits(self) -> Limits:
        return Limits(max_new_tokens=self.max_new_tokens)


@dataclass(frozen=True)
class Decoder:
    """The prepared methods of a run by label, and what they decode with."""

    target: Target
    methods: Mapping[str, Method]
    config: DecodingConfig
    clock: Callable[[], float]
    timer: Timer | None = None

    def decode(self, label: str, prompts: Sequence[BatchPrompt], *, profile: bool = False) -> tuple[Generation, ...]:
        """The answers to a batch of prompts, or to the only prompt of a run without batches."""
        method, limits, sampling = self.methods[label], self.config.limits, self.config.sampling
        if self.config.batch_size > 1:
            return decode_batch(method, self.target, prompts, limits, sampling, self.clock, self.timer, profile)
        (prompt,) = prompts
        conditions = limits, sampling, self.clock, prompt.seed, self.timer, prompt.forced, profile
        return (decode(method, self.target, prompt.ids, *conditions),)
