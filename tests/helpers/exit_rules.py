"""Trained exits written as plainly as they can be, as rules for the oracles, and folders of modules nobody trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from oracles import ExitRule, Naive
from runs import Pair
from torch import Tensor, nn
from untrained import facts_of, untrained

from benchctl.decoding.method import Method
from benchctl.decoding.modules.exits import Exits
from benchctl.decoding.modules.trainable import Trainable, save_modules
from benchctl.registry import build

ALPHA = 256.0  # the methods' default


def noisy_exits(label: str, models: Pair) -> Exits:
    """Modules of a label, in float64: no change is zero, no gain is one; their loudness makes up for alpha."""
    method = build(label)
    assert isinstance(method, Trainable)
    module = untrained(method, models.target).double().requires_grad_(False)
    assert isinstance(module, Exits)
    generator = torch.Generator().manual_seed(7)
    for name, weight in module.named_parameters():
        if name.endswith(".up.weight"):
            weight.mul_(weight.shape[1] / ALPHA)
        if name.endswith(".gain"):
            weight.mul_(1 + 0.3 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return module


def with_modules(label: str, models: Pair, module: nn.Module, folder: Path) -> Method:
    """The method of a label, ready, with these modules in a folder."""
    method = build(label)
    save_modules(folder, module, facts_of(label, method, models.target))
    assert isinstance(method, Trainable)
    method.modules = str(folder)
    method.prepare(models.target)
    return method


def speaker(naive: Naive, module: nn.Module) -> Callable[[int, Tensor], Tensor]:
    """Logits [vocabulary] for a layer and the state [width] after it: head(gain * norm(h + a/r U silu(D norm(h))))."""
    weights, norm = {name: value.double() for name, value in module.state_dict().items()}, naive.model.model.norm

    def speak(layer: int, state: Tensor) -> Tensor:
        down, up = (weights[f"exits.{layer}.change.{part}.weight"] for part in ("down", "up"))
        normed = norm(state + ALPHA / len(down) * (up @ F.silu(down @ norm(state))))
        gain = weights.get(f"exits.{layer}.gain", torch.ones_like(normed))
        logits: Tensor = naive.model.lm_head(normed * gain)
        return logits

    return speak


def classifier(module: nn.Module) -> Callable[[int, Tensor], float]:
    """Chance of agreement for a layer and the state [width] after it."""
    weights = {name: value.double() for name, value in module.state_dict().items()}

    def classify(layer: int, state: Tensor) -> float:
        score = weights[f"classifier.{layer}.weight"][0] @ state + weights[f"classifier.{layer}.bias"][0]
        return float(1 / (1 + torch.exp(-score)))

    return classify


def rule_of(naive: Naive, module: Exits, confidence: str, threshold: float) -> ExitRule:
    """Leaving by these modules, in plain algebra."""
    classify = classifier(module) if confidence == "classifier" else None
    return ExitRule(module.layers, confidence, threshold, classify, speaker(naive, module) if module.exits else None)
