"""Several processes that train one module: who I am, and the sums that keep all of us at the same weights.

Started by `torchrun`, which sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. On CPU the processes talk
through gloo, on GPUs through nccl. The code is the same; the tests exercise it with gloo only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn

from benchctl.errors import UserError

TIMEOUT = timedelta(days=2)  # the others wait while the first one writes the target's answers, measures and saves


@dataclass(frozen=True)
class World:
    """This process is number `rank` of `size`, and number `local_rank` on its machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Whether this process writes checkpoints and logs and measures."""
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """The device of this process: a GPU of its own where `name` is cuda."""
        if name.startswith("cuda") and self.size > 1:
            return torch.device("cuda", self.local_rank)
        return torch.device(name)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            distributed.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replaces every gradient by its sum over all processes; one that no process has stays None."""
        if self.size == 1:
            return
        for kind in sorted({parameter.dtype for parameter in parameters}, key=str):
            self._sum_gradients([parameter for parameter in parameters if parameter.dtype == kind])

    def same_weights(self, parameters: Sequence[nn.Parameter]) -> None:
        """Gives every process the weights of the first one."""
        if self.size > 1:
            for parameter in parameters:
                distributed.broadcast(parameter.data, src=0)

    def from_first(self, value: float, device: torch.device) -> float:
        """The value that the first process has."""
        if self.size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64, device=device)
        distributed.broadcast(shared, src=0)
        return float(shared)

    def _sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """All in one message: the gradients end to end, then a 1 for each that is there."""
        with torch.no_grad():
            there = [parameter.grad is not None for parameter in parameters]
            flat = [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters]
            message = self.sum(torch.cat([*flat, flat[0].new_tensor(there)]))
            sums = torch.split(message, [parameter.numel() for parameter in parameters] + [len(parameters)])
            for parameter, total, count in zip(parameters, sums[:-1], sums[-1].tolist(), strict=True):
                parameter.grad = total.view_as(parameter) if count else None


@contextmanager
def joined(device: str) -> Iterator[World]:
    """The world that this process belongs to: torchrun's if its variables are set, else a single one.

    `device` is cuda or cpu. Raises UserError when a variable is missing, a GPU is, or the others cannot be reached.
    """
    try:
        rank = int(os.environ.get("RANK", 0))
        size = int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ else 1
        world = World(rank, size, int(os.environ.get("LOCAL_RANK", rank)))
    except (KeyError, ValueError) as error:
        raise UserError(
            "processes_not_connected",
            f"RANK is set, but not what goes with it ({error}); start the processes with torchrun",
        ) from error
    if world.size == 1:
        yield world
        return
    # Optimizers import this module, and its functions keep the group that exists at that moment as a default. Imported
    # later, it would keep gloo's threads alive until Python ends, and one of them may then abort the process.
    import torch.distributed.nn.functional

    on_gpus = device.startswith("cuda")
    if on_gpus:
        there = torch.cuda.device_count()
        if world.local_rank >= there:
            raise UserError(
                "too_few_gpus",
                f"process {world.rank} needs a GPU of its own and there are {there}; start {there} processes",
            )
        torch.cuda.set_device(world.local_rank)
    try:
        distributed.init_process_group("nccl" if on_gpus else "gloo", timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            "processes_not_connected",
            f"the training processes cannot reach one another ({error}); start them with torchrun",
        ) from error
    try:
        yield world
        distributed.barrier()  # torchrun ends all where one dies: no process leaves while the first one still writes
    finally:
        distributed.destroy_process_group()
