"""The method under test: built from its label, prepared with untrained modules where it needs some, and observed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchctl.conformance.random_models import RandomModels
from benchctl.decoding.experts.offload import Timer
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import CarriesOver, Context, Method, UsesDraftModel, labelled_parts
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.folders import MadeFor, save_modules
from benchctl.decoding.modules.trainable import Trainable
from benchctl.decoding.sampling import Sampling
from benchctl.registry import build, canonical_label, method_options, parse_label

Look = Callable[[Stream, Sequence[int]], None]


@dataclass(frozen=True)
class MethodUnderTest:
    """A method by its label. ``folder`` takes the untrained modules of those that need some."""

    label: str
    folder: Path
    _modules: dict[tuple[str, str], str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def fresh(self) -> Method:
        return build(self.label)

    @property
    def canonical(self) -> str:
        return canonical_label(self.fresh(), parse_label(self.label))

    def prepared(self, models: RandomModels) -> Method:
        """A fresh method, ready for a target: with a noisy twin as draft model, with untrained modules if need be."""
        method = self.fresh()
        for label, part in {self.label: method, **labelled_parts(method)}.items():
            if isinstance(part, Trainable) and part.needs_modules:
                part.modules = self._untrained_modules(label, part, models.target)
            if isinstance(part, UsesDraftModel):
                part.use_draft_model(models.draft)
        method.prepare(models.target)
        return method

    def _untrained_modules(self, label: str, method: Trainable, target: Target) -> str:
        """A folder of modules; the same for the same label and target."""
        key = (label, target.weights_sha256)
        if key not in self._modules:
            folder = self.folder / str(len(self._modules))
            save_modules(folder, untrained(method, target), facts_of(label, method, target))
            self._modules[key] = str(folder)
        return self._modules[key]


def answer(
    method: Method,
    models: RandomModels,
    prompt: Sequence[int],
    limit: int,
    sampling: Sampling | None = None,
    forced: Sequence[int] | None = None,
) -> Generation:
    """What a prepared method says to a prompt, or does where that is ``forced``."""
    return decode(method, models.target, DecodeRequest(list(prompt), limit, sampling or Sampling(), forced=forced))


class Watched(Method):
    """A prepared method that is looked at after its prefill and after each step, before the loop truncates that.

    ``look`` is given the stream, and the text whose rows have to be committed by now.
    """

    def __init__(self, method: Method, look: Look) -> None:
        self._method = method
        self.exactness = method.exactness
        self._look = look

    def serve(self, target: Target, timer: Timer | None) -> AbstractContextManager[Target]:
        return self._method.serve(target, timer)

    def start(self, context: Context) -> int:
        if isinstance(self._method, CarriesOver):
            self._method.store = self._method.new_store()
        first = self._method.start(context)
        self._look(context.stream, context.tokens)
        return first

    def step(self, context: Context) -> Sequence[int]:
        tokens = self._method.step(context)
        self._look(context.stream, [*context.tokens, *tokens[:-1]])
        return tokens


QUIET = 0.25  # louder adapters would never say what the target says, and no draft be accepted; scores must be loud


def untrained(method: Trainable, target: Target, seed: int = 0) -> nn.Module:
    """Modules with weights away from their initial ones.

    Weights are mixed along their inputs only, so that renaming the target's tokens renames those of its heads.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        module = method.build(target.info, target.lm_head.weight)
        for weight in module.parameters():
            if weight.ndim == 2:
                outputs, inputs = weight.shape
                noise = torch.randn(inputs if weight.any() else outputs, inputs, dtype=torch.float64) / inputs**0.5
                noise = noise.to(weight.device)  # drawn by the CPU's generator
                level = 1.0 if outputs == 1 else QUIET
                weight.copy_(weight.double() + 0.5 * weight.double() @ noise if weight.any() else level * noise)
    return module


def facts_of(label: str, method: Any, target: Target, **more: Any) -> Mapping[str, Any]:
    """What training writes next to the weights."""
    name = parse_label(label).name
    info = target.info
    made = MadeFor("tiny", target.files_sha256, info.layers, info.hidden_size, info.vocabulary)
    options = {option.name: getattr(method, option.name) for option in method_options(name)}
    return {"method": method.modules_name(name), "options": options, "target": asdict(made), **more}
