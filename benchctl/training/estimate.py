"""Expected memory and time of training a method's modules on a frozen target: computed, never measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import transformers

from benchctl import bundled as packs
from benchctl.decoding.model.families import check_family
from benchctl.decoding.model.target import DTYPES
from benchctl.decoding.model.tokenizer import from_pretrained
from benchctl.errors import UserError
from benchctl.registry import parse_label
from benchctl.training.dry_run import StepCost, Work, cost_of_step
from benchctl.training.modules.job import BATCH_TOKENS, trainable
from benchctl.training.optim import OptimizerSettings, optimizer_name
from benchctl.training.options import TrainOptions

GB = 1e9
RESERVE_BYTES = 1.5 * GB  # ours: CUDA's context, its libraries' workspaces, gaps between allocations
TOKENS = 10_000_000
UTILISATION = 0.4  # ours: share of the peak rate that the whole step reaches; 0.3 to 0.5 is usual for such models


@dataclass(frozen=True)
class Gpu:
    """A GPU by what its maker publishes: operations a second, and bytes of memory.

    `bfloat16_flops` are those of dense matrices with float32 sums. `float32_flops` are without TF32, as torch computes.
    """

    name: str
    bfloat16_flops: float
    float32_flops: float
    memory_bytes: float

    def peak_flops(self, dtype: torch.dtype) -> float:
        """The rate at which a run computes whose target is kept in `dtype`, see Work."""
        return self.float32_flops if dtype == torch.float32 else self.bfloat16_flops


# NVIDIA's data sheets; their larger figures are for matrices that are half zeros.
GPUS = (
    Gpu("H100 SXM 80 GB", 989e12, 67e12, 80 * GB),
    Gpu("A100 80 GB", 312e12, 19.5e12, 80 * GB),
    Gpu("RTX 4090 24 GB", 165e12, 82.6e12, 24 * GB),
)


def _llama(layers: int, width: int, mlp: int, kv_heads: int, vocabulary: int, tied: bool = False) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": mlp,
        "num_attention_heads": 32,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
    }


# The published configurations, so that these can be estimated without a network or a licence to click on.
SHAPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0": _llama(22, 2048, 5632, kv_heads=4, vocabulary=32000),
        "meta-llama/Llama-3.2-1B": _llama(16, 2048, 8192, kv_heads=8, vocabulary=128256, tied=True),
        "meta-llama/Llama-2-7b-hf": _llama(32, 4096, 11008, kv_heads=32, vocabulary=32000),
        "mistralai/Mistral-7B-v0.1": _llama(32, 4096, 14336, kv_heads=8, vocabulary=32000),
        "meta-llama/Llama-3.1-8B": _llama(32, 4096, 14336, kv_heads=8, vocabulary=128256),
    }
)


@dataclass(frozen=True)
class Estimate:
    """What training costs. `tokens` are all that the run reads, repeated ones included."""

    label: str
    model: str
    work: Work
    cost: StepCost
    tokens: int
    utilisation: float

    @property
    def flops(self) -> float:
        """Floating-point operations of the whole run."""
        return self.tokens * (self.cost.target_flops + self.cost.module_flops)

    def seconds(self, gpu: Gpu) -> float:
        """Expected time on one GPU, from its peak rate and the utilisation."""
        return self.flops / (gpu.peak_flops(self.work.dtype) * self.utilisation)

    def fits(self, gpu: Gpu) -> bool:
        """Whether the peak and the reserve are within the GPU's memory."""
        return self.cost.peak_bytes + RESERVE_BYTES <= gpu.memory_bytes


def estimate(options: TrainOptions, label_text: str, utilisation: float = UTILISATION) -> Estimate:
    """Expected cost of `train_modules` with these options on one GPU, for `options.steps` or else `TOKENS` tokens.

    Only the configuration of the model is read, and no data. Raises UserError for a method without modules, for an
    unknown model, and as `cost_of_step` does.
    """
    method = trainable(parse_label(label_text))
    batch_tokens = options.batch_tokens or BATCH_TOKENS
    work = Work(
        row_tokens=options.row_tokens,
        micro_rows=options.micro_rows,
        batch_tokens=batch_tokens,
        dtype=DTYPES["bfloat16" if options.dtype == "auto" else options.dtype],
        optimizer=OptimizerSettings(optimizer_name(options.optimizer or "adamw")),
    )
    tokens = TOKENS if options.steps is None else options.steps * work.passes * work.pass_tokens
    cost = cost_of_step(method, config_of(options.model), work)
    return Estimate(label_text, options.model, work, cost, tokens, utilisation)


def config_of(model: str) -> Any:
    """The transformers configuration of a model. Raises UserError where there is none, or of an unknown family."""
    if model in SHAPES:
        return transformers.LlamaConfig(**SHAPES[model])
    config = from_pretrained(transformers.AutoConfig, packs.resolve(model))
    check_family(config)
    if config.is_encoder_decoder:
        raise UserError(
            f"{model} has an encoder, and estimates are for targets without one; train a few steps with --steps to "
            "measure instead"
        )
    return config


def render(found: Estimate) -> str:
    """The estimate as text of at most 80 columns."""
    return "\n".join([*_memory_lines(found), "", *_time_lines(found)])


def _memory_lines(found: Estimate) -> list[str]:
    cost, work, precision = found.cost, found.work, _precision(found)
    passes = f"{work.micro_rows} x {work.row_tokens:,} tokens a pass"
    parts = (
        (f"target, {cost.target_parameters:,} parameters, {precision}, frozen", cost.target_bytes),
        (f"modules, {cost.module_parameters:,} parameters", cost.module_bytes),
        *([("layers that the modules pass", cost.layer_bytes)] if cost.layer_bytes else []),
        ("gradients", cost.gradient_bytes),
        (f"moments of {work.optimizer.name}", cost.moment_bytes),
        (f"states, logits and their gradients, {passes}", cost.activation_bytes),
        ("peak", cost.peak_bytes),
    )
    title = (f"{found.label} on {found.model}", "computed from the shapes of tensors, not measured", "")
    return [*title, *(f"{name:<68}{size / GB:>9.2f} GB" for name, size in parts)]


def _time_lines(found: Estimate) -> list[str]:
    cost = found.cost
    work = f"{cost.target_flops / GB:.3g} GFLOP in the target, {cost.module_flops / GB:.3g} in the modules"
    head = f"one GPU at {found.utilisation:.0%} of its {_precision(found)} peak"
    rows = [
        f"{gpu.name:<40}{'fits' if found.fits(gpu) else 'too small':>12}{_duration(found.seconds(gpu)):>27}"
        for gpu in GPUS
    ]
    return [f"{work}, for each token read", f"{head:<40}{'memory':>12}{f'{found.tokens:,} tokens':>27}", *rows]


def _precision(found: Estimate) -> str:
    return str(found.work.dtype).removeprefix("torch.")


def _duration(seconds: float) -> str:
    """Seconds, minutes or hours, in two or three digits."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
