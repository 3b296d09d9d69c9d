"""Modules that nobody trained, for any trainable method and any target, with the facts that training adds to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.folder import MadeFor
from benchctl.decoding.modules.trainable import Trainable
from benchctl.registry import method_options, parse_label

QUIET = 0.25  # louder adapters would never say what the target says, and no draft be accepted; scores must be loud


def untrained(method: Trainable, target: Target, seed: int = 0) -> nn.Module:
    """Modules with weights away from their initial ones.

    Each is mixed along its inputs only, so that renaming the target's tokens renames those of its heads; what is zero
    becomes a little noise, and has no tokens among its outputs.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        module = method.build(target.info, target.lm_head.weight)
        for weight in module.parameters():
            if weight.ndim == 2:
                outputs, inputs = weight.shape
                noise = torch.randn(inputs if weight.any() else outputs, inputs, dtype=torch.float64) / inputs**0.5
                level = 1.0 if outputs == 1 else QUIET
                weight.copy_(weight.double() + 0.5 * weight.double() @ noise if weight.any() else level * noise)
    return module


def facts_of(label: str, method: Any, target: Target, **more: Any) -> Mapping[str, Any]:
    """What training writes beside the weights."""
    name = parse_label(label).name
    info = target.info
    made = MadeFor("tiny", target.weights_sha256, info.layers, info.hidden_size, info.vocabulary)
    options = {option.name: getattr(method, option.name) for option in method_options(name)}
    return {"method": method.modules_name(name), "options": options, "target": asdict(made), **more}
