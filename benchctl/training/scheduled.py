"""Training a whole model to do with the layers that a schedule of depths leaves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchctl.decoding.modules.trainable import Tally
from benchctl.methods.skip_decode.schedule import DepthSchedule, text_depths
from benchctl.training.data.packing import Batch
from benchctl.training.modules.objective import HeldOut, LanguageModel, loss_weights


@dataclass(frozen=True)
class ScheduledDepth:
    """Cross-entropy where every token runs the layers of its depth alone; see depth_schedule.text_depths.

    Source: Del Corro et al., SkipDecode, 2023, arXiv:2307.02628, which tunes the whole model under the schedule.
    """

    token_bytes: Tensor
    schedule: DepthSchedule

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        with self._scheduled(module, batch):
            return LanguageModel(self.token_bytes)(module, batch)

    def measure(self, module: nn.Module, batch: Batch) -> HeldOut:
        """LanguageModel's measures at these depths, and `depth`: layers run for the tokens of answers, as a share."""
        with self._scheduled(module, batch) as depths:
            measured = LanguageModel(self.token_bytes).measure(module, batch)
        counted = loss_weights(batch) == 1
        run = float((depths[:, :-1] * counted).sum())
        return {**measured, "depth": Tally(run, self.schedule.layers * float(counted.sum()))}

    @contextmanager
    def _scheduled(self, module: nn.Module, batch: Batch) -> Iterator[Tensor]:
        """While open, a pass over the batch keeps each token as it is where it does not run a layer; gives the depths.

        Nobody who runs a layer sees one who does not: depths fall along a document.
        """
        model: Any = module
        depths = text_depths(self.schedule, batch, chance=module.training).depths
        handles = [
            layer.register_forward_hook(_keeping(self.schedule.runs(index, depths)), with_kwargs=True)
            for index, layer in enumerate(model.base_model.layers)
        ]
        try:
            yield depths
        finally:
            for handle in handles:
                handle.remove()


def _keeping(runs: Tensor) -> Callable[..., Any]:
    """A hook after a layer that gives tokens where ``runs`` [rows, n] is false what they were before it."""

    def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        before = inputs[0] if inputs else named["hidden_states"]
        if isinstance(output, tuple):
            return (torch.where(runs.unsqueeze(-1), output[0], before), *output[1:])
        return torch.where(runs.unsqueeze(-1), output, before)

    return hook
