"""How DFlash's layers draft a block behind the features of a target.

Chen et al. 2026, arXiv 2602.06036; z-lab/dflash, model.py. A context row is norm(fc [states of several target layers])
of a committed token; each layer makes keys and values of it, once. Block rows are [last token, MASK, MASK, ..]: they
run through the layers, see all context rows and all rows of the block, and the target's LM head reads each mask row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from benchctl.decoding.kv.cache import Cache, Layout
from benchctl.decoding.model.families.family import ACTIVATIONS, read_attention, read_mlp
from benchctl.decoding.model.kernels import Linear, Norm
from benchctl.decoding.model.layers import Layer, finish, run_layers
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.draft_vocabulary import DraftVocabulary

from .layers import BlockLayer, DflashModule


class Drafter:
    """A drafter at work on one text after another: ``start``, then ``read`` and calls by turns."""

    def __init__(
        self,
        module: DflashModule,
        target: Target,
        vocabulary: DraftVocabulary,
        block: int,
        mask: Tensor,
        rotary: Tensor,
    ) -> None:
        """``block`` rows, of which the masks have the embedding ``mask``; ``rotary`` [positions, head_dim / 2]."""
        sizes, form = module.sizes, target.form
        self._target, self._rotary, self._block = target, rotary, block
        self._masks = mask.expand(block - 1, -1)
        self._fc = Linear(module.fc.weight, None, form)
        self._hidden_norm, self._norm = (Norm(norm.weight, sizes.eps) for norm in (module.hidden_norm, module.norm))
        self._layers: list[Layer] = []
        for weights, window in zip(module.layers, sizes.windows, strict=True):
            layer = cast(BlockLayer, weights)
            attention = read_attention(
                layer.self_attn,
                heads=sizes.num_attention_heads,
                kv_heads=sizes.num_key_value_heads,
                head_dim=sizes.head_dim,
                rotated=sizes.head_dim,
                window=window,
                form=form,
            )
            before, after = (
                Norm(norm.weight, sizes.eps) for norm in (layer.input_layernorm, layer.post_attention_layernorm)
            )
            mlp = read_mlp(layer.mlp, ACTIVATIONS[sizes.hidden_act], form)
            self._layers.append(Layer(before, attention, after, mlp))
        queries = sizes.num_attention_heads * sizes.head_dim
        attentions = [layer.attention for layer in self._layers]
        self._fills = [(replace(each, heads=0, query_norm=None), each.qkv.tail(queries)) for each in attentions]
        self._lm_head = vocabulary.lm_head(target)
        self._markov = module.markov

    def start(self, capacity: int) -> None:
        """Forget earlier texts; at most ``capacity`` tokens follow."""
        attention, like = self._layers[0].attention, self._target.embedding.new_empty(0, dtype=self._target.dtype)
        capacity += self._block
        self._cache = Cache(len(self._layers), attention.kv_heads, attention.head_dim, capacity, like)
        self.length = 0  # tokens of the text whose features were read

    def read(self, features: Sequence[Tensor]) -> None:
        """Make keys and values of further tokens of the text, by their features [rows, width] per tap."""
        context = self._hidden_norm(self._fc(torch.cat(list(features), -1)))
        end = self.length + len(context)
        layout = Layout(self.length, range(self.length, end), None, self._rotary)
        for index, (attention, keys_values) in enumerate(self._fills):
            held = finish(attention, keys_values(context), layout.rotary)[1]
            self._cache.write(index, self.length, held)
        self.length = end

    def __call__(self, token: int) -> Tensor:
        """[masks, k] logits over the draft vocabulary behind ``token``, which follows the text that was read.

        The block is shorter where the target's context ends.
        """
        base, rows = self.length, min(self._block, len(self._rotary) - self.length)
        layout = Layout(base, range(base, base + rows), [range(rows)] * rows, self._rotary)
        x = torch.cat((self._target.embed([token], [base]), self._masks[: rows - 1]))
        states = run_layers(self._layers, 0, x, self._cache, layout)
        self._cache.truncate(base)
        return self._lm_head(self._norm(states[1:]))

    def after(self, token: int, draft_logits: Tensor) -> Tensor:
        """Logits [1, k] of a mask row, corrected for the ``token`` before it."""
        if self._markov is None:
            return draft_logits
        corrected: Tensor = draft_logits + self._markov(torch.tensor(token, device=draft_logits.device))
        return corrected
