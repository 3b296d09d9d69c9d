"""Decoding as a run does it: the only place in measuring that calls the decoding loop with a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchctl.decoding.batch import decode_batch
from benchctl.decoding.experts.tiers import Timer
from benchctl.decoding.loop import DecodeRequest, Generation, decode
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


@dataclass(frozen=True)
class Decoder:
    """The prepared methods of a run by label, and what they decode with."""

    target: Target
    methods: Mapping[str, Method]
    config: DecodingConfig
    clock: Callable[[], float]
    timer: Timer | None = None

    def request(self, prompt_ids: Sequence[int], seed: int = 0) -> DecodeRequest:
        """The request for a free answer to a prompt."""
        config = self.config
        return DecodeRequest(prompt_ids, config.max_new_tokens, config.sampling, self.clock, seed, timer=self.timer)

    def decode(self, label: str, requests: Sequence[DecodeRequest]) -> tuple[Generation, ...]:
        """The answers to a batch of prompts, or to the only prompt of a run without batches."""
        if self.config.batch_size > 1:
            return decode_batch(self.methods[label], self.target, requests)
        (request,) = requests
        return (decode(self.methods[label], self.target, request),)
