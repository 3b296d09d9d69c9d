"""T5 as its paper has it, over a whole text at once, by transformers' weights: no cache; exits that freeze rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration

VOCABULARY = 24
LAYERS = 4
START = 5
ALPHA = 256.0  # of trained exits: the methods' default

Weights = dict[str, Tensor]  # of modules, by name


def tiny_t5(kind: str = "relu", *, vocabulary: int = VOCABULARY, **settings: Any) -> Any:
    """A random T5 in float64: more decoder layers than encoder layers, heads wider together than the residual.

    With tie_word_embeddings=False its head has weights of its own, as those of v1.1 and Flan have.
    """
    sizes = {"d_model": 32, "d_kv": 12, "d_ff": 40, "num_heads": 4, "num_layers": 2, "num_decoder_layers": LAYERS}
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": START}
    config = T5Config(vocab_size=vocabulary, feed_forward_proj=kind, **{**sizes, **buckets, **ids, **settings})
    with torch.random.fork_rng():
        torch.manual_seed({"relu": 2, "gated-gelu": 3}[kind])  # that do not say the same token for ever
        model = T5ForConditionalGeneration(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "layer_norm" in name:
                    parameter.add_(torch.empty_like(parameter).uniform_(-0.5, 0.5))
                elif "relative" in name:
                    parameter.normal_(0.0, 1.0)
                elif "shared" not in name:
                    parameter.normal_(0.0, 0.4)
            model.shared.weight.mul_(0.2)
            model.decoder.final_layer_norm.weight.mul_(6.0)
            if not settings.get("tie_word_embeddings", True):  # transformers 5 would tie it all the same
                model.lm_head.weight = nn.Parameter(0.2 * torch.randn_like(model.shared.weight))
    for module in model.modules():
        if type(module).__name__ == "T5LayerNorm":  # transformers' own goes through float32
            module.forward = MethodType(t5_norm, module)
    return model.double().requires_grad_(False).train(False)


class PlainT5:
    """Answers of the decoder to one prompt, from scratch for each question."""

    def __init__(self, model: Any) -> None:
        self.model, self.layers = model, len(model.decoder.block)

    def logits(self, states: Tensor) -> Tensor:
        """[..., vocabulary] through final norm and head."""
        normed = t5_norm(self.model.decoder.final_layer_norm, states)
        scale = self.model.config.d_model**-0.5 if self.model.config.scale_decoder_outputs else 1.0
        head: Tensor = self.model.lm_head.weight
        return (normed * scale) @ head.T

    def states(self, source: Sequence[int], text: Sequence[int], depths: Sequence[int] | None = None) -> Tensor:
        """[layers + 1, tokens, width]; above ``depths`` [tokens] a token's residual is frozen, as others see it."""
        encoded = self._encode(source)
        x = self.model.shared.weight[list(text)]
        depth = torch.tensor([self.layers] * len(text) if depths is None else list(depths))
        hidden = torch.full((len(text), len(text)), -torch.inf, dtype=x.dtype).triu(1)
        bias = self._bias(self.model.decoder, len(text), both_ways=False) + hidden
        seen = [x]
        for number, block in enumerate(self.model.decoder.block):
            own, cross, feed = block.layer
            normed = t5_norm(own.layer_norm, x)
            grown = x + _attend(own.SelfAttention, normed, normed, bias)
            grown = grown + _attend(cross.EncDecAttention, t5_norm(cross.layer_norm, grown), encoded, None)
            grown = grown + self._feed(feed, grown)
            x = torch.where((depth > number)[:, None], grown, x)
            seen.append(x)
        return torch.stack(seen)

    def answer(self, source: Sequence[int], limit: int) -> list[int]:
        """Greedy tokens of all layers."""
        text = [START]
        while len(text) <= limit:
            text.append(int(self.logits(self.states(source, text)[-1, -1]).argmax()))
        return text[1:]

    def _encode(self, source: Sequence[int]) -> Tensor:
        x = self.model.shared.weight[list(source)]
        bias = self._bias(self.model.encoder, len(source), both_ways=True)
        for block in self.model.encoder.block:
            own, feed = block.layer
            normed = t5_norm(own.layer_norm, x)
            x = x + _attend(own.SelfAttention, normed, normed, bias)
            x = x + self._feed(feed, x)
        return t5_norm(self.model.encoder.final_layer_norm, x)

    def _feed(self, layer: Any, x: Tensor) -> Tensor:
        part, normed = layer.DenseReluDense, t5_norm(layer.layer_norm, x)
        inner = part.act(part.wi_0(normed)) * part.wi_1(normed) if hasattr(part, "wi_0") else part.act(part.wi(normed))
        out: Tensor = part.wo(inner)
        return out

    def _bias(self, stack: Any, tokens: int, both_ways: bool) -> Tensor:
        """[heads, tokens, tokens], bucket by bucket."""
        config, table = self.model.config, stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight
        rows = [[self._bucket(config, key - query, both_ways) for key in range(tokens)] for query in range(tokens)]
        found: Tensor = table[torch.tensor(rows)].permute(2, 0, 1)
        return found

    @staticmethod
    def _bucket(config: Any, ahead: int, both_ways: bool) -> int:
        buckets, offset = config.relative_attention_num_buckets, 0
        if both_ways:
            buckets //= 2
            offset, ahead = (buckets if ahead > 0 else 0), -abs(ahead)
        apart, single = max(0, -ahead), buckets // 2
        if apart < single:
            return offset + apart
        grown = math.log(apart / single) / math.log(config.relative_attention_max_distance / single)
        return int(offset + min(buckets - 1, single + int(grown * (buckets - single))))


def t5_norm(module: Any, x: Tensor) -> Tensor:
    out: Tensor = module.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + module.variance_epsilon)
    return out


def spoken(model: Any, weights: Weights, layer: int, states: Tensor) -> Tensor:
    """Logits of an exit for states [..., width]: h + a/r up(silu(down(norm(h)))) through norm, a gain, and head."""
    scale = model.config.d_model**-0.5 if model.config.scale_decoder_outputs else 1.0
    down, up = (weights[f"exits.{layer}.change.{part}.weight"] for part in ("down", "up"))
    normed = t5_norm(model.decoder.final_layer_norm, states) * scale
    grown = ALPHA / len(down) * (F.silu(normed @ down.T) @ up.T)
    changed = t5_norm(model.decoder.final_layer_norm, states + grown) * scale
    logits: Tensor = (changed * weights.get(f"exits.{layer}.gain", torch.ones(()))) @ model.lm_head.weight.T
    return logits


def _attend(module: Any, x: Tensor, looked_at: Tensor, bias: Tensor | None) -> Tensor:
    heads = module.n_heads
    queries, keys, values = (
        part(given).view(given.shape[0], heads, -1).transpose(0, 1)
        for part, given in ((module.q, x), (module.k, looked_at), (module.v, looked_at))
    )
    scores = queries @ keys.mT
    weights = (scores if bias is None else scores + bias).softmax(-1)
    out: Tensor = module.o((weights @ values).transpose(0, 1).reshape(x.shape[0], -1))
    return out
