"""How evenly the experts of a mixture are used: a starved expert is weight that is carried and never asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchctl.decoding.modules.trainable import Tally
from benchctl.training.data.packing import Batch


@torch.no_grad()
def expert_loads(model: PreTrainedModel, batches: Sequence[Batch]) -> Tensor:
    """Tokens sent to each expert [layers, experts], padding left out."""
    config: Any = model.config
    body: Any = model.base_model
    loads = torch.zeros(config.num_hidden_layers, config.num_experts, dtype=torch.int64)
    for batch in (batch.to(model.device) for batch in batches):
        output = body(
            input_ids=batch.tokens,
            attention_mask=batch.mask,
            position_ids=batch.positions,
            use_cache=False,
            output_router_logits=True,
        )
        read = batch.documents.flatten() >= 0
        for layer, router_logits in enumerate(output.router_logits):
            chosen = router_logits[read].topk(config.num_experts_per_tok, dim=-1).indices
            loads[layer] += torch.bincount(chosen.flatten(), minlength=config.num_experts).cpu()
    return loads


def load_yardsticks(loads: Tensor) -> dict[str, Tally]:
    """Tokens of the busiest and of the idlest expert of any layer, over the mean: 1 and 1 where all are equally busy.

    Loads 3 1 2 2 give 1.5 and 0.5.
    """
    tokens = loads.double()
    mean = float(tokens.mean())
    return {"busiest_expert": Tally(float(tokens.max()), mean), "idlest_expert": Tally(float(tokens.min()), mean)}
