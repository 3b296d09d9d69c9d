"""What methods are compared with: decoding written as plainly as it can be, by full recomputation.

Nothing here uses a cache, a mask, a position or anything of benchctl's decoding: each question runs transformers' own
model over the whole text. That is slow, and shares no mistake with the code under test.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache


def in_float64(model: Any) -> Any:
    """The model, its norms changed to stay in float64; transformers' own go through float32, good for 1e-7 only."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(_norm_gemma if "Gemma" in type(module).__name__ else _norm, module)
    return model.requires_grad_(False)


def _norm(module: Any, x: Tensor) -> Tensor:
    gain: Tensor = module.weight
    return _unit(x, module.variance_epsilon) * gain


def _norm_gemma(module: Any, x: Tensor) -> Tensor:
    gain: Tensor = 1.0 + module.weight
    return _unit(x, module.eps) * gain


def _unit(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


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
        answer: Tensor = self.model.lm_head(self.model.model.norm(states))
        return answer

    def last_states(self, text: Sequence[int], depths: Sequence[int] | None = None) -> Tensor:
        """[layers + 1, width] residual of the last token before the first layer and after each; see states."""
        key = (tuple(text), None if depths is None else tuple(depths))
        if key not in self._answers:
            self._answers[key] = self.states(text, depths)[:, -1].clone()
        return self._answers[key]

    @torch.inference_mode()
    def states(self, text: Sequence[int], depths: Sequence[int] | None = None, cache: Any = None) -> Tensor:
        """[layers + 1, tokens, width] residuals in one parallel pass.

        ``depths`` [tokens] says how many layers each token runs: above, its residual is frozen, and what the others see
        of it there are the keys and values of the frozen residual.
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

        handles = [layer.register_forward_hook(freeze(i)) for i, layer in enumerate(self.model.model.layers)]
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


def autoregressive(naive: Naive, prompt: Sequence[int], limit: int, stops: frozenset[int] = frozenset()) -> list[int]:
    """The answer, token by token, up to the limit or the first stop token."""
    text = list(prompt)
    while len(text) < len(prompt) + limit:
        text.append(naive.argmax(text))
        if text[-1] in stops:
            break
    return text[len(prompt) :]
