"""One optimiser step on tensors without memory: the code that trains, run to count its operations and its bytes.

torch's fake tensors have a shape and a dtype and nothing else, so the modules of a target with billions of parameters
are run through in seconds on any machine, and what is counted cannot drift from what the trainer does.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchctl.decoding.model.target import TargetInfo
from benchctl.decoding.modules.trainable import Trainable
from benchctl.errors import UserError
from benchctl.training.data.packing import Batch
from benchctl.training.modules.teacher import LessonMaker, ModuleObjective
from benchctl.training.optim import Optimizers, OptimizerSettings


@dataclass(frozen=True)
class Work:
    """What one optimiser step reads and how: `batch_tokens` in passes of `micro_rows` rows of `row_tokens`.

    `dtype` is that of the frozen target; in float32 the modules compute in it too, else in bfloat16 by autocast.
    """

    row_tokens: int
    micro_rows: int
    batch_tokens: int
    dtype: torch.dtype
    optimizer: OptimizerSettings

    @property
    def pass_tokens(self) -> int:
        return self.row_tokens * self.micro_rows

    @property
    def passes(self) -> int:
        """Forward and backward passes of a step, as the trainer counts them."""
        return max(1, self.batch_tokens // self.pass_tokens)


@dataclass(frozen=True)
class StepCost:
    """Parameters, bytes, and floating-point operations for each token read.

    layer_bytes     layers of the target in a form that modules can pass: copies, for methods that ask for them
    peak_bytes      most bytes held at once in the second step, for the optimiser's moments come with the first
    target_flops    forward of the frozen target
    module_flops    the modules' loss and its backward
    """

    target_parameters: int
    module_parameters: int
    target_bytes: int
    module_bytes: int
    layer_bytes: int
    gradient_bytes: int
    moment_bytes: int
    peak_bytes: int
    target_flops: float
    module_flops: float

    @property
    def activation_bytes(self) -> int:
        """What the peak holds besides weights, gradients and moments: states of the target, logits, their gradients."""
        held = self.target_bytes + self.module_bytes + self.layer_bytes + self.gradient_bytes + self.moment_bytes
        return self.peak_bytes - held


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors as they come and go."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = 0
        self.peak_bytes = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._enter(leaf.untyped_storage())
        return result

    def _enter(self, storage: Any) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._leave, size)

    def _leave(self, size: int) -> None:
        self.live_bytes -= size


def cost_of_step(method: Trainable, config: Any, work: Work) -> StepCost:
    """What a step of training the method's modules costs on a target of this transformers configuration.

    Raises UserError for a loss that needs the values of its tensors: their shapes are all there is.
    """
    with FakeTensorMode(), Ledger() as ledger, _readable(method):
        target = _target(config, work.dtype)
        target_bytes = ledger.live_bytes
        module = method.build(TargetInfo.of(config), target.lm_head.weight)
        module_bytes = ledger.live_bytes - target_bytes
        lessons, optimizers = LessonMaker(target, torch.device("cpu")), Optimizers(module, work.optimizer)
        objective = ModuleObjective(method, lessons)
        with _precision(work):
            with _counter() as counter:
                lessons(_batch(work))
            with torch.no_grad():
                objective(module, _batch(work))
        target_flops = float(counter.get_total_flops())
        layer_bytes = ledger.live_bytes - target_bytes - module_bytes
        _step(objective, module, optimizers, work, passes=1)
        moment_bytes = ledger.live_bytes - target_bytes - module_bytes - layer_bytes
        ledger.peak_bytes = ledger.live_bytes
        # From the second pass on, gradients are added to those that are there: more passes hold no more.
        pass_flops = _step(objective, module, optimizers, work, passes=min(2, work.passes))
    return StepCost(
        target_parameters=_parameters(target),
        module_parameters=_parameters(module),
        target_bytes=target_bytes,
        module_bytes=module_bytes,
        gradient_bytes=sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad),
        moment_bytes=moment_bytes,
        layer_bytes=layer_bytes,
        peak_bytes=ledger.peak_bytes,
        target_flops=target_flops / work.pass_tokens,
        module_flops=(pass_flops - target_flops) / work.pass_tokens,
    )


def _step(objective: ModuleObjective, module: nn.Module, optimizers: Optimizers, work: Work, passes: int) -> float:
    """One optimiser step of so many passes as the trainer does it; the operations of a pass."""
    for _ in range(passes):
        with _counter() as counter:
            with _precision(work):
                loss = objective(module, _batch(work)) / work.pass_tokens
            loss.backward()  # type: ignore[no-untyped-call]
    optimizers.clip(1.0)
    optimizers.step(1.0)
    return float(counter.get_total_flops())


def _precision(work: Work) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=work.dtype != torch.float32)


def _counter() -> FlopCounterMode:
    """torch's counter knows the attention kernels of CUDA; a CPU takes another one for the same call."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return FlopCounterMode(display=False, custom_mapping={kernel: _attention, backward: _attention_backward})


def _attention(query: Sequence[int], key: Sequence[int], *_: Any, **__: Any) -> int:
    """Two products, queries with keys and shares with values, of [rows, heads, n, width] each."""
    rows, heads, queries, width = query
    return 4 * rows * heads * queries * key[2] * width


def _attention_backward(grad: Sequence[int], query: Sequence[int], key: Sequence[int], *_: Any, **__: Any) -> int:
    """Five products: the scores again, and a gradient for each factor of both."""
    return _attention(query, key) * 5 // 2


def _target(config: Any, dtype: torch.dtype) -> Any:
    """The frozen model, without weights of any meaning."""
    options = {"dtype": dtype, "attn_implementation": "sdpa"}
    model = transformers.AutoModelForCausalLM.from_config(config, **options)  # type: ignore[no-untyped-call]
    return model.requires_grad_(False).eval()


def _batch(work: Work) -> Batch:
    """One document per row, every token of full weight."""
    shape = (work.micro_rows, work.row_tokens)
    tokens, documents = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    positions = torch.arange(work.row_tokens).expand(shape)
    return Batch(tokens, torch.ones(shape), documents, positions)


def _parameters(module: nn.Module) -> int:
    """Parameters, tied ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


@contextmanager
def _readable(method: Trainable) -> Iterator[None]:
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise UserError(
            f"{type(method).__name__} cannot be estimated: its loss, or the target, needs the values of tensors "
            f"({error.func}), and an estimate has only their shapes; train a few steps with --steps to measure instead"
        ) from error
