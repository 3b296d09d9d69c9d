"""Small random models made in memory from a seed, and the reference that methods are compared with on them.

The reference runs transformers' own model over the whole text for each question: no code of benchctl's decoding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache

from benchctl.decoding.model.families import family_of
from benchctl.decoding.model.kernels import Norm
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import TargetTokenizer


def in_float64(model: Any) -> Any:
    """The model, its norms changed to stay in float64; transformers' own go through float32, good for 1e-7 only."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(_norm, module)
    return model.requires_grad_(False)


def _norm(module: Any, x: Tensor) -> Tensor:
    gemma = "Gemma" in type(module).__name__
    gain: Tensor = 1.0 + module.weight if gemma else module.weight
    eps = module.eps if gemma else module.variance_epsilon
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain


def noisy_copy(model: Any, scale: float = 0.04, seed: int = 1) -> Any:
    """A draft model: the same weights, each off by about ``scale`` of itself, so that some of its guesses are right."""
    twin = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1 + scale * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
    return twin


class Naive:
    """A transformers model asked about one whole text at a time; it remembers its answers."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.layers = int(model.config.num_hidden_layers)
        self._answers: dict[Any, Tensor] = {}

    def argmax(self, text: Sequence[int]) -> int:
        """The greedy next token."""
        return int(self.logits(self.last_states(text)[-1]).argmax())

    def logits(self, states: Tensor) -> Tensor:
        """[..., vocabulary] through final norm and head."""
        config = self.model.config
        normed = family_of(config).final_norm(self.model)(states)
        answer: Tensor = self.model.get_output_embeddings()(normed) / getattr(config, "logits_scaling", 1.0)
        cap = getattr(config, "final_logit_softcapping", None)
        return answer if cap is None else cap * torch.tanh(answer / cap)

    def last_states(self, text: Sequence[int], depths: Sequence[int] | None = None) -> Tensor:
        """[layers + 1, width] residual of the last token before the first layer and after each; see states."""
        key = (tuple(text), None if depths is None else tuple(depths))
        if key not in self._answers:
            self._answers[key] = self.states(text, depths)[:, -1].clone()
        return self._answers[key]

    @torch.inference_mode()
    def states(self, text: Sequence[int], depths: Sequence[int] | None = None, cache: Any = None) -> Tensor:
        """[layers + 1, tokens, width] residuals in one parallel pass.

        ``depths`` [tokens] says how many layers each token runs: above, its residual is frozen, keys and values follow
        from it.
        """
        depth = torch.tensor([self.layers] * len(text) if depths is None else list(depths))
        seen: list[Tensor] = []

        def freeze(index: int) -> Callable[[Any, Any, Tensor], Tensor]:
            def hook(_module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
                if index == 0:
                    seen.append(inputs[0][0])
                kept = torch.where((depth > index)[:, None], output, inputs[0])
                seen.append(kept[0])
                return kept

            return hook

        layers = family_of(self.model.config).stack(self.model)
        handles = [layer.register_forward_hook(freeze(i)) for i, layer in enumerate(layers)]
        try:
            self.model(torch.tensor([list(text)]), past_key_values=cache, use_cache=cache is not None)
        finally:
            for handle in handles:
                handle.remove()
        return torch.stack(seen)

    def cached(self, text: Sequence[int], depths: Sequence[int] | None = None) -> Tensor:
        """[layers, 2 * kv_heads, tokens, head_dim]: keys, in transformers' order of dimensions, then values."""
        key = ("cached", tuple(text), None if depths is None else tuple(depths))
        if key not in self._answers:
            cache: Any = DynamicCache()
            self.states(text, depths, cache)
            self._answers[key] = torch.stack([torch.cat((layer.keys[0], layer.values[0])) for layer in cache.layers])
        return self._answers[key]


def autoregressive(naive: Naive, prompt: Sequence[int], limit: int) -> list[int]:
    """The answer, token by token, up to the limit."""
    text = list(prompt)
    while len(text) < len(prompt) + limit:
        text.append(naive.argmax(text))
    return text[len(prompt) :]


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
    return CONFIG_MAPPING[family](**copy.deepcopy({**_COMMON, **settings}))  # some configurations write into theirs


def random_model(config: Any, seed: int, dtype: torch.dtype) -> Any:
    """A random transformers model, with every gain and bias away from its initial 1 or 0 so that none can be lost."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        # The other implementations of experts refuse float64.
        model = AutoModelForCausalLM.from_config(config, experts_implementation="eager")  # type: ignore[no-untyped-call]
        _roughen(model)
    return model.to(dtype).eval()


@torch.no_grad()
def _roughen(model: Any) -> None:
    gains = {
        id(module.weight) for module in model.modules() if type(module).__name__.endswith(("RMSNorm", "LayerNorm"))
    }
    for name, parameter in model.named_parameters():
        if id(parameter) in gains:
            parameter.add_(torch.empty_like(parameter).uniform_(-0.5, 0.5))
        elif name.endswith("bias"):
            parameter.normal_(0.0, 0.3)
        elif name.endswith("sinks"):
            parameter.normal_(0.0, 2.0)  # some take most of a head's attention
    if model.config.tie_word_embeddings:
        # A residual that stays close to its token's embedding makes a tied head repeat that token for ever.
        embedding, norm = model.get_input_embeddings(), family_of(model.config).final_norm(model)
        scale = float(getattr(embedding, "scalar_embed_scale", 1.0))
        offset = 1.0 if model.config.model_type.startswith("gemma") else 0.0  # its gain is 1 + w
        embedding.weight.mul_(0.1 / scale)
        norm.weight.add_(offset).mul_(10.0 * scale).sub_(offset)


class _WatchedNorm(Norm):
    """The same norm, ``look`` being called first."""

    def __init__(self, norm: Norm, look: Callable[[], None]) -> None:
        super().__init__(norm.gain, norm.eps)
        self._norm, self._look = norm, look

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self._norm.tensors

    def holding(self, *tensors: Tensor) -> Norm:
        return self._norm.holding(*tensors)

    def __call__(self, x: Tensor) -> Tensor:
        self._look()
        return self._norm(x)


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

    def with_last_layer_watched(self, look: Callable[[], None]) -> RandomModels:
        """The same, ``look`` being called whenever the last layer runs."""
        *lower, last = self.target.blocks
        watched = replace(last, attention_norm=_WatchedNorm(last.attention_norm, look))
        return replace(self, target=self.target.with_blocks([*lower, watched]))

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
