"""Memory that training a method's modules on a frozen target needs, by formula: nothing is read but a configuration."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from benchctl import bundled
from benchctl.decoding.model.families import check_family
from benchctl.decoding.model.target import DTYPES, TargetInfo
from benchctl.decoding.model.tokenizer import from_pretrained
from benchctl.registry import parse_label
from benchctl.training.modules.job import BATCH_TOKENS, trainable
from benchctl.training.optim import Stage, is_matrix
from benchctl.training.train_options import TeacherOptions

WIDE = 4  # bytes of a float32, in which modules, their gradients and their moments are kept
LOGIT_COPIES = 3  # of each pass in float32: the logits, their log-softmax, their gradient


@dataclass(frozen=True)
class Estimate:
    """Parameters, bytes by what they hold, and tokens of one optimiser step. Activations are those of one pass."""

    target_parameters: int
    module_parameters: int
    memory_bytes: dict[str, int]
    step_tokens: int


def estimate(options: TeacherOptions, label: str) -> Estimate:
    """What `train_modules` with these options holds in memory.

    With P trained parameters in float32: weights 4 P, gradients 4 P, moments 8 P (AdamW; Muon keeps 4 for each value of
    a matrix). With n tokens a pass, L layers of width d and vocabulary V: (L + 1) n d values of residuals, and 3 n V of
    logits for each head or exit, of which one is counted. Raises UserError for a method without modules and for a
    model of an unknown family.
    """
    config = from_pretrained(AutoConfig, bundled.resolve(options.model))
    check_family(config)
    info = TargetInfo.of(config)
    kind = AutoModelForSeq2SeqLM if info.is_encoder_decoder else AutoModelForCausalLM
    with torch.device("meta"):  # shapes without memory
        target = kind.from_config(config)  # type: ignore[no-untyped-call]
        lm_head = torch.empty(info.vocabulary, info.hidden_size)
        module = trainable(parse_label(label)).build(info, lm_head)
    size = DTYPES["bfloat16" if options.dtype == "auto" else options.dtype].itemsize
    trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    gradients = sum(parameter.numel() for _, parameter in trained) * WIDE
    single = sum(p.numel() for name, p in trained if options.optimizer == "muon" and is_matrix(name, p)) * WIDE
    tokens = options.micro_rows * options.row_tokens
    passes = Stage(1.0, options.row_tokens, options.micro_rows).micro_batches(options.batch_tokens or BATCH_TOKENS)
    memory_bytes = {
        "target": _parameters(target) * size,
        "modules": _parameters(module) * WIDE,
        "gradients": gradients,
        "optimizer": 2 * gradients - single,
        "residuals": (info.layers + 1) * tokens * info.hidden_size * size,
        "logits": LOGIT_COPIES * tokens * info.vocabulary * WIDE,
    }
    return Estimate(_parameters(target), _parameters(module), memory_bytes, passes * tokens)


def _parameters(module: nn.Module) -> int:
    """Parameters, tied ones once."""
    return sum(parameter.numel() for parameter in module.parameters())
