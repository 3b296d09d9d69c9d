"""Small random models, as transformers builds them, made in memory from a seed: what methods are checked on."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from benchctl.conformance.reference import Naive, autoregressive, in_float64, noisy_copy
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import TargetTokenizer

_COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}

# Settings of the two families that every method is checked on. heads * head_dim differs from hidden_size, as in some
# published models.
LLAMA: dict[str, Any] = {"head_dim": 16}
MIXTRAL: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 24}
KINDS: Mapping[str, Mapping[str, Any]] = {"llama": LLAMA, "mixtral": MIXTRAL}
LAYERS = 4
CONTEXT_TOKENS = 64
VOCABULARY = 24  # small, so that texts repeat themselves and drafts are right now and then
FEW_TOKENS = 5  # a vocabulary so small that every answer can be enumerated
NEW_TOKENS = 24


def random_config(family: str, **settings: Any) -> Any:
    """Configuration of a tiny model of a family of transformers; ``settings`` are fields of its config."""
    return CONFIG_MAPPING[family](**{**_COMMON, **settings})


def random_model(config: Any, seed: int, dtype: torch.dtype) -> Any:
    """A random transformers model, with every gain and bias away from its initial 1 or 0 so that none can be lost."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        # The other implementations of experts refuse float64.
        options = {"attn_implementation": "sdpa", "experts_implementation": "eager"}
        model = AutoModelForCausalLM.from_config(config, **options)  # type: ignore[no-untyped-call]
        _roughen(model)
    return model.to(dtype).eval()


@torch.no_grad()
def _roughen(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.add_(torch.empty_like(parameter).uniform_(-0.5, 0.5))
        elif name.endswith("bias"):
            parameter.normal_(0.0, 0.3)
    if model.config.tie_word_embeddings:
        # A residual that stays close to its token's embedding makes a tied head repeat that token for ever.
        scale = float(getattr(model.model.embed_tokens, "scalar_embed_scale", 1.0))
        offset = 1.0 if model.config.model_type == "gemma" else 0.0  # its gain is 1 + w
        model.model.embed_tokens.weight.mul_(0.1 / scale)
        model.model.norm.weight.add_(offset).mul_(10.0 * scale).sub_(offset)


@dataclass(frozen=True)
class RandomModels:
    """A float64 target, a draft model that is the target with noise on its weights, and the oracle of the target.

    kind  the family: `llama`, or `mixtral`, a mixture of experts
    """

    kind: str
    target: Target
    draft: Target
    naive: Naive

    def with_stops(self, stop_ids: frozenset[int]) -> RandomModels:
        """The same, its answers ending at these ids."""
        twin = copy.copy(self.target)
        twin.tokenizer_or_none = TargetTokenizer(None, twin.config, stop_ids)
        return replace(self, target=twin)

    def truth(self, prompt: Sequence[int], limit: int) -> tuple[int, ...]:
        """The target's greedy answer, by full recomputation."""
        return tuple(autoregressive(self.naive, prompt, min(limit, CONTEXT_TOKENS - len(prompt))))


@cache
@torch.inference_mode(False)
def random_models(kind: str, vocabulary: int = VOCABULARY) -> RandomModels:
    """The target of this kind; the same object for the same arguments."""
    settings = {"num_hidden_layers": LAYERS, "vocab_size": vocabulary, "max_position_embeddings": CONTEXT_TOKENS}
    model = in_float64(random_model(random_config(kind, **{**KINDS[kind], **settings}), 1, torch.float64))
    return RandomModels(kind, Target(model, None), Target(noisy_copy(model), None), Naive(model))


def prompt_of(tokens: int) -> list[int]:
    """Random ids; the second half of a longer prompt repeats part of the first, as texts do."""
    ids: list[int] = torch.randint(3, VOCABULARY, (tokens,), generator=torch.Generator().manual_seed(tokens)).tolist()
    quarter = tokens // 4
    return [*ids[: tokens - quarter], *ids[:quarter]]
