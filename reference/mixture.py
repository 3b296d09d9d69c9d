"""A mixture of experts in OLMoE's layout: configuration, start from a dense model, loss, expert loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import OlmoeConfig, PreTrainedModel

from benchctl.decoding.modules.trainable import Tally
from benchctl.errors import UserError
from benchctl.options import setting
from benchctl.training.data.packing import Batch
from benchctl.training.models import common_settings
from benchctl.training.modules.objective import HeldOut, loss_weights, text_metrics
from benchctl.training.train_options import LAYERS_HELP, ModelShape, check_shape
from reference.objectives import next_token_loss


@dataclass(frozen=True)
class MoeShape(ModelShape):
    """`mlp` is the width of each expert; `experts_per_token` of the `experts` of a layer run for a token."""

    layers: int = setting(8, LAYERS_HELP, least=1)
    mlp: int = setting(128, "Inner width of the MLP of each expert.", least=1)
    experts: int = setting(16, "Experts of a layer.", least=1)
    experts_per_token: int = setting(2, "Experts of a layer that run for a token.", least=1)


def check_moe_shape(shape: MoeShape) -> None:
    """Raises UserError for sizes that no model can have."""
    check_shape(shape)
    if shape.experts_per_token > shape.experts:
        raise UserError(
            "shapes_do_not_fit", f"--experts-per-token {shape.experts_per_token} is more than --experts {shape.experts}"
        )


SHARED = (  # what a layer of a mixture of experts has in common with a dense one
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{letter}_proj" for letter in "qkvo"),
)


def olmoe_config(shape: MoeShape, tokens: dict[str, Any]) -> OlmoeConfig:
    """As OLMoE-1B-7B (Muennighoff et al., 2024, arXiv:2409.02060) but for the sizes and the tied embeddings.

    `norm_topk_prob` stays False as there: the weights of the chosen experts are not rescaled to add up to 1, so the
    router also learns how much all of them together count.
    """
    return OlmoeConfig(
        num_experts=shape.experts,
        num_experts_per_tok=shape.experts_per_token,
        norm_topk_prob=False,
        **common_settings(shape),
        **tokens,
    )


def can_take_over(shape: ModelShape, config: Any) -> bool:
    """Whether a model of this shape can begin with the embedding and the attention of one of this configuration."""
    own = (shape.hidden, shape.heads, shape.kv_heads, shape.hidden // shape.heads)
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    same = own == (config.hidden_size, heads, getattr(config, "num_key_value_heads", heads), width)
    return bool(same and shape.layers <= config.num_hidden_layers and config.model_type == "llama")


def take_over(model: PreTrainedModel, dense: PreTrainedModel) -> None:
    """Copies all that a mixture of experts has in common with a dense model: embedding, norms and attention.

    Its layers take those of layers spread evenly over the dense one. Sparse upcycling (Komatsuzaki et al., 2022,
    arXiv:2212.05055) also makes every expert a copy of the MLP; experts here are narrower and begin at random.
    """
    own: Any = model.base_model
    source: Any = dense.base_model
    own.embed_tokens.load_state_dict(source.embed_tokens.state_dict())
    own.norm.load_state_dict(source.norm.state_dict())
    for place, layer in enumerate(spread(len(own.layers), len(source.layers))):
        for name in SHARED:
            part = own.layers[place].get_submodule(name)
            part.load_state_dict(source.layers[layer].get_submodule(name).state_dict())


def spread(count: int, of: int) -> list[int]:
    """`count` of the numbers below `of`, evenly spread, both ends among them: spread(3, 9) is [0, 4, 8]."""
    return [round(place * (of - 1) / max(count - 1, 1)) for place in range(count)]


@dataclass(frozen=True)
class MixtureLoss:
    """Next-token loss of a mixture of experts, plus `share` of the loss that keeps its experts equally busy.

    `module` is a causal model of transformers with routers (OLMoE, Mixtral, ...) and its own head. Source of the
    balance: Fedus, Zoph, Shazeer, "Switch Transformers", 2021, arXiv:2101.03961, equations 4 to 6, for each layer.
    """

    token_bytes: Tensor
    share: float = 0.01

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        logits, imbalance = _mixture(module, batch)
        return next_token_loss(logits, batch) + self.share * imbalance * loss_weights(batch).sum()

    def measure(self, module: nn.Module, batch: Batch) -> HeldOut:
        """loss, LanguageModel's measures, and imbalance: 1 where all experts are equally busy, more otherwise."""
        logits, imbalance = _mixture(module, batch)
        weight = float(loss_weights(batch).sum())
        loss = next_token_loss(logits, batch) + self.share * imbalance * weight
        experts_per_token = int(_config(module).num_experts_per_tok)
        return {
            "loss": Tally(float(loss), weight),
            **text_metrics(logits, batch, self.token_bytes),
            "imbalance": Tally(float(imbalance) / experts_per_token * weight, weight),
        }


def _mixture(module: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits [rows, row_tokens, vocabulary] and the balance loss: the mean of the layers, padding left out.

    The model's own `aux_loss` adds the layers up before it compares the experts, so that experts idle in one layer and
    busy in another look balanced; and it takes a mask of two dimensions, where ours, which parts documents, has four.
    """
    from transformers.models.olmoe.modeling_olmoe import load_balancing_loss_func

    model: Any = module
    output = model.base_model(
        input_ids=batch.tokens,
        attention_mask=batch.mask,
        position_ids=batch.positions,
        use_cache=False,
        output_router_logits=True,
    )
    logits = model.get_output_embeddings()(output.last_hidden_state)
    experts = output.router_logits[0].shape[-1]
    chosen = int(_config(module).num_experts_per_tok)
    real = batch.documents >= 0
    balance: Any = load_balancing_loss_func
    of_layers = [balance((layer,), experts, chosen, real) for layer in output.router_logits]
    return logits, torch.stack(of_layers).mean()


def _config(module: nn.Module) -> Any:
    return module.config


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


def expert_load_metrics(loads: Tensor) -> dict[str, Tally]:
    """Tokens of the busiest and of the idlest expert of any layer, over the mean: 1 and 1 where all are equally busy.

    Loads 3 1 2 2 give 1.5 and 0.5.
    """
    tokens = loads.double()
    mean = float(tokens.mean())
    return {"busiest_expert": Tally(float(tokens.max()), mean), "idlest_expert": Tally(float(tokens.min()), mean)}
