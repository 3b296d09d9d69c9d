"""The random targets that methods are held to their claims on, each with a draft model and a plain oracle."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from benchctl.conformance.plain import Naive, autoregressive, in_float64, noisy_copy
from benchctl.conformance.random_models import LLAMA, MIXTRAL, random_config, random_model
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import TargetTokenizer

KINDS: Mapping[str, Mapping[str, Any]] = {"llama": LLAMA, "mixtral": MIXTRAL}
LAYERS = 4
CONTEXT_TOKENS = 64
VOCABULARY = 24  # small, so that texts repeat themselves and drafts are right now and then
FEW_TOKENS = 5  # a vocabulary so small that every answer can be enumerated
NEW_TOKENS = 24


@dataclass(frozen=True)
class Ground:
    """A float64 target, a draft model that is the target with noise on its weights, and the oracle of the target.

    kind  the family: `llama`, or `mixtral`, a mixture of experts
    """

    kind: str
    target: Target
    draft: Target
    naive: Naive

    def with_stops(self, stop_ids: frozenset[int]) -> Ground:
        """The same, its answers ending at these ids."""
        twin = copy.copy(self.target)
        twin.tokenizer_or_none = TargetTokenizer(None, twin.config, stop_ids)
        return replace(self, target=twin)

    def truth(self, prompt: Sequence[int], limit: int) -> tuple[int, ...]:
        """The target's greedy answer, by full recomputation."""
        return tuple(autoregressive(self.naive, prompt, min(limit, CONTEXT_TOKENS - len(prompt))))


@cache
@torch.inference_mode(False)
def ground(kind: str, vocabulary: int = VOCABULARY) -> Ground:
    """The target of this kind; the same object for the same arguments."""
    settings = {"num_hidden_layers": LAYERS, "vocab_size": vocabulary, "max_position_embeddings": CONTEXT_TOKENS}
    model = in_float64(random_model(random_config(kind, **{**KINDS[kind], **settings}), 1, torch.float64))
    return Ground(kind, Target(model, None), Target(noisy_copy(model), None), Naive(model))


def prompt_of(tokens: int) -> list[int]:
    """Random ids; the second half of a longer prompt repeats part of the first, as texts do."""
    ids: list[int] = torch.randint(3, VOCABULARY, (tokens,), generator=torch.Generator().manual_seed(tokens)).tolist()
    quarter = tokens // 4
    return [*ids[: tokens - quarter], *ids[:quarter]]
