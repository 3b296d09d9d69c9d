"""Whether our forward says what transformers' own says: asked of every model when it is loaded.

What a configuration, an adapter or a new version of transformers adds to a family must end in a refusal, never in
numbers about another model. A probe this short cannot see windows or rotary scaling beyond it: tests/test_families.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchctl.decoding.model.families import context_tokens

_TOKENS = 24
SPLIT = 20  # more rows than the batched attention takes, then fewer: both ways of attending are checked
# The share of the logits' spread that rounding may move; a part left out or read wrongly moves far more.
_ROUNDING = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.1}


@dataclass(frozen=True)
class Probe:
    """Token ids spread over the vocabulary, and transformers' own logits [rows, vocabulary] for them.

    A model with an encoder gets them as prompt and as answer.
    """

    ids: list[int]
    their_logits: Tensor

    @classmethod
    @torch.inference_mode()
    def take(cls, model: Any) -> Probe:
        """Ask the transformers model."""
        rows = min(_TOKENS, context_tokens(model.config))
        ids = torch.linspace(0, model.config.vocab_size - 1, rows).long()
        both = ids[None].to(model.device)
        decoder = {"decoder_input_ids": both} if model.config.is_encoder_decoder else {}
        return cls(ids.tolist(), model(both, **decoder, use_cache=False).logits[0])

    @torch.inference_mode()
    def error(self, forward: Callable[[list[int]], Tensor]) -> float | None:
        """None when ``forward`` (ids -> logits) agrees up to rounding; otherwise the error as a share of the spread.

        The error is the median over rows, since half precision may send a row to another expert in either forward.
        """
        theirs = self.their_logits.double()
        off = (forward(self.ids).double() - theirs).square().mean(-1).sqrt() / theirs.std(-1)
        error = float(off.median())
        return None if error < _ROUNDING[self.their_logits.dtype] else error  # nan is refused too
