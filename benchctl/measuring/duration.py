"""How long a run takes, by a few layers of the target's shapes: calibrated in a second, before any weights are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchctl.decoding.kv.cache import Cache, Layout
from benchctl.decoding.model.footprint import read_bytes
from benchctl.decoding.model.kernels import Form, Linear, Norm
from benchctl.decoding.model.layers import Experts, Layer, Mlp, run_layers
from benchctl.decoding.model.target import Target, outline
from benchctl.measuring.check import STATIC, CheckedRun, plan_of
from benchctl.measuring.clock import Clock
from benchctl.measuring.memory import prompt_tokens

FASTER, SLOWER = 4.0, 2.0  # the range: answers half as long by methods twice as fast; drafts that are rejected
_CALIBRATED_BYTES = 1 << 28  # beyond most caches: what fits into them is calibrated as a whole
_ROWS, _TIMES = 64, 3


@dataclass(frozen=True)
class Duration:
    """Seconds of a run with its warm-up, if every answer is full and every method as fast as the baseline.

    ``step_s`` is a step of the baseline. Both are None where other layers than our own run: their pace is not known.
    """

    generations: int
    new_tokens: int
    seconds: float | None = None
    step_s: float | None = None


def duration(checked: CheckedRun) -> Duration:
    """The time of a checked run. Loading and verdicts are left out."""
    settings, repeat = checked.settings, checked.settings.repeat
    torch.set_num_threads(settings.models.threads)
    plan = plan_of(checked)
    jobs = sum(map(len, plan.by_batch())) + repeat.warm_up * len(plan.warm_up(1))
    generations = len(plan) + repeat.warm_up * sum(map(len, plan.warm_up(1)))
    turns = prompt_tokens(checked)
    context_tokens = checked.tokenizer.context_tokens
    room = context_tokens - min(turns)
    if room < 1 and settings.prompts.long_prompts == "cut":
        room = (context_tokens - len(checked.filler.ids)) // 2
    new_tokens = min(settings.answers.max_new_tokens, room)
    if checked.is_of_engines or checked.executor != STATIC:
        return Duration(len(plan), len(plan) * new_tokens)
    target = outline(checked.tokenizer.config, checked.dtype)
    form: Form = "float16" if settings.models.weights == "float16" else target.form
    step_s, row_s = calibrate(target, form, checked.device, Clock(checked.device))
    seconds = jobs * new_tokens * step_s + generations * sum(turns) / len(turns) * row_s
    return Duration(len(plan), len(plan) * new_tokens, seconds, step_s)


@torch.inference_mode()
def calibrate(target: Target, form: Form, device: str, clock: Callable[[], float]) -> tuple[float, float]:
    """Seconds of a step of one row of an outlined ``target``, and those of each row of a prompt, LM head included.

    As many of its layers are made as fill 256 MiB, at least one. The other layers and the head take as long as layers
    of their size.
    """
    weights = target.parameters * (2 if form == "float16" else target.dtype.itemsize)
    in_layers = sum(map(read_bytes, target.blocks))
    count = min(target.layers, max(1, -(-_CALIBRATED_BYTES * target.layers // weights)))
    layers = [_made(block, device, form) for block in target.blocks[:count]]
    attention = layers[0].attention
    like = torch.ones(1, dtype=target.dtype, device=device)
    angles = torch.complex128 if target.dtype is torch.float64 else torch.complex64
    rotary = torch.ones(_ROWS, attention.head_dim // 2, dtype=angles, device=device)

    def pass_s(rows: int) -> float:
        residual = torch.ones(rows, target.info.hidden_size, dtype=target.dtype, device=device)
        seconds = []
        for _ in range(_TIMES + 1):  # the first one touches the memory
            cache = Cache(count, attention.kv_heads, attention.head_dim, _ROWS, like)
            started_s = clock()
            run_layers(layers, 0, residual, cache, Layout(0, range(rows), None, rotary))
            seconds.append(clock() - started_s)
        return min(seconds[1:]) * in_layers / sum(map(read_bytes, target.blocks[:count]))

    return pass_s(1) * (1 + target.lm_head.weight.nbytes / in_layers), pass_s(_ROWS) / _ROWS


def _made(block: Layer, device: str, form: Form) -> Layer:
    """A layer with numbers, of the shapes of an outlined one; norms of heads and cross attention are left out.

    It rotates by table 0.
    """

    def numbers(outlined: Tensor) -> Tensor:
        return torch.full(outlined.shape, 1 / outlined.shape[-1], dtype=outlined.dtype, device=device)

    def linear(outlined: Linear) -> Linear:
        return Linear(numbers(outlined.weight), None, form)

    def post(outlined: Callable[[Tensor], Tensor] | None) -> Callable[[Tensor], Tensor] | None:
        return outlined.changed(numbers) if isinstance(outlined, Norm) else outlined

    def dense(outlined: Mlp) -> Mlp:
        return replace(outlined, gate_up=linear(outlined.gate_up), down=linear(outlined.down), post=post(outlined.post))

    attention, mlp = block.attention, block.mlp
    attention = replace(
        attention,
        qkv=linear(attention.qkv),
        out=linear(attention.out),
        query_norm=None,
        key_norm=None,
        sinks=None if attention.sinks is None else numbers(attention.sinks),
        rope=0,
        post=post(attention.post),
    )
    if isinstance(mlp, Experts):
        made: Mlp | Experts = replace(
            mlp,
            router=numbers(mlp.router),
            gate_up=numbers(mlp.gate_up),
            down=numbers(mlp.down),
            router_bias=None,
            gate_up_bias=None,
            down_bias=None,
            shared=None if mlp.shared is None else dense(mlp.shared),
            shared_gate=None if mlp.shared_gate is None else numbers(mlp.shared_gate),
            post=post(mlp.post),
        )
    else:
        made = dense(mlp)
    return Layer(block.attention_norm.changed(numbers), attention, block.mlp_norm.changed(numbers), made)
