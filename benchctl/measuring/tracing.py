"""Records routing traces: which experts the answers to a bench need, layer by layer, and how long computing takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from benchctl import bundled as packs
from benchctl import registry
from benchctl.decoding.experts.offload import Offload, mixtures_of
from benchctl.decoding.experts.trace import Generation, Trace
from benchctl.decoding.loop import Limits, decode
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.model.tokenizer import load_tokenizer
from benchctl.decoding.sampling import Sampling
from benchctl.errors import UserError
from benchctl.measuring.check import choose_device
from benchctl.measuring.choices import Choice, Models, choose_method
from benchctl.measuring.clock import Clock, Timer
from benchctl.measuring.prompts.files import Prompt
from benchctl.measuring.settings import ModelSettings


@runtime_checkable
class Offloading(Protocol):
    """A method that may decode on a target whose experts are offloaded; None where it does not."""

    @property
    def offload(self) -> Offload | None: ...


@dataclass(frozen=True)
class Recording:
    """What to record: the first turn of each prompt, decoded greedily by a method that offloads experts."""

    model: str
    label: str
    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 1


def record(recording: Recording, progress: Callable[[int], None] = lambda done: None) -> Trace:
    """The trace of a recording; one generation before it warms up and is thrown away.

    Raises UserError for a model that does not load, for one that the method cannot run on, and for a method that
    offloads nothing.
    """
    torch.set_num_threads(recording.threads)
    choice = choose_method(recording.label, Models(recording.model, ""))
    device, dtype = choose_device(ModelSettings(dtype=recording.dtype, device=recording.device))
    path = packs.resolve(recording.model)
    choice = choice.fit(TargetInfo.of(load_tokenizer(path).config))
    if not hasattr(type(choice.method), "offload"):  # of the class: an instance may have it only once it is prepared
        raise _loads_none(choice)
    target = Target.load(path, dtype=dtype, device=device)
    method = choice.method
    choice.prepare(target, _no_model, "")
    offload = method.offload if isinstance(method, Offloading) else None
    if offload is None:
        raise _loads_none(choice)
    clock, timer = Clock(recording.device), Timer()
    generations: list[Generation] = []
    decode_s = stall_s = 0.0
    for number, prompt in enumerate((recording.prompts[0], *recording.prompts)):
        ids = target.tokenizer.encode_chat([{"role": "user", "content": prompt.turns[0]}])
        answer = decode(method, target, ids, Limits(recording.max_new_tokens), Sampling(), clock, timer=timer)
        if number:
            generations.append(offload.visits)
            decode_s += sum(answer.step_s)
            stall_s += answer.counters["stall_s"]
        progress(number)
    trace = _trace(recording, choice, target, offload, tuple(generations))
    return replace(trace, tpot_s=decode_s / max(trace.tokens, 1), stall_s=stall_s / max(trace.tokens, 1))


def _loads_none(choice: Choice) -> UserError:
    return UserError(f"{choice.label} loads no experts. Name a method that does: expert_offload or m2r2[mode=aot].")


def _trace(
    recording: Recording, choice: Choice, target: Target, offload: Offload, generations: tuple[Generation, ...]
) -> Trace:
    label, name = registry.parse_label(choice.label).without_places.text, Path(recording.model).name
    return Trace(
        source=f"{label} on {name}, {recording.dtype}, {recording.device}, {recording.threads} thread(s)",
        synthetic=False,
        layers=target.layers,
        experts=max(found.router.shape[0] for found in mixtures_of(target).values()),
        top_k=offload.top_k,
        expert_bytes=offload.expert_bytes,
        generations=generations,
    )


def _no_model(name: str) -> Target:
    raise UserError(f"a trace is recorded without a draft model, but the method asks for '{name}'")
