"""`benchctl doctor`: how well this machine can measure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from benchctl.measuring.machine.advice import Examination
    from benchctl.measuring.machine.gpu import GpuMoment

_WIDTH = 80
_MARGIN = 18


def show_machine(device: str, threads: int, as_json: bool) -> None:
    """Examine the machine and print what was found. Raises UserError for a GPU that is not there."""
    from benchctl.measuring.check import choose_device
    from benchctl.measuring.machine.advice import examine_machine
    from benchctl.measuring.settings import ModelSettings

    chosen, _ = choose_device(ModelSettings(device=device))
    found = examine_machine(chosen, threads)
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
        return
    for name, text in _facts(found):
        click.echo(_line(name, text))
    for advice in found.advice:
        click.echo(textwrap.fill(advice[0].upper() + advice[1:], _WIDTH, initial_indent="* ", subsequent_indent="  "))
    if not found.advice:
        click.echo("Nothing to mend was found.")


def _facts(found: Examination) -> Iterator[tuple[str, str]]:
    facts, seen = found.facts, found.seen
    yield "cpu", f"{facts['cpu']}, {facts['cores']} usable"
    yield "memory", f"{int(str(facts['memory_bytes'])) / 2**30:.1f} GiB"
    yield "system", str(facts["os"])
    if facts["gpu"]:
        yield "gpu", f"{facts['gpu']}, driver {facts['gpu_driver']}"
    if found.gpu is not None:
        yield "gpu now", _gpu(found.gpu)
    threads = "1 thread" if found.threads == 1 else f"{found.threads} threads"
    yield "measured on", threads if found.device == "cpu" else found.device
    yield (
        "sentinel",
        f"{found.sentinel_s * 1e6:.1f} us a product, the slowest twentieth {seen.sentinel_spread:.0%} longer",
    )
    yield "memory bandwidth", f"{found.memory_bandwidth_mb_s / 1e3:.1f} GB/s"
    yield "FLOP rate", f"{found.flops_per_s / 1e9:,.0f} GFLOP/s ({found.flop_dtype})"
    if seen.foreign_cores is not None:
        yield "others", f"used {seen.foreign_cores:.1f} cores"
    if seen.waited_share is not None:
        yield "waited for a core", f"{seen.waited_share:.0%} of the time"


def _gpu(gpu: GpuMoment) -> str:
    shown = [
        (gpu.sm_clock_mhz, "{:.0f} MHz"),
        (gpu.memory_clock_mhz, "memory {:.0f} MHz"),
        (gpu.power_w, "{:.0f} W"),
        (gpu.temperature_c, "{:.0f} °C"),
        (gpu.foreign_processes, "{:.0f} other processes"),
    ]
    return ", ".join(pattern.format(value) for value, pattern in shown if value is not None)


def _line(name: str, text: str) -> str:
    head = f"{name:<{_MARGIN}}"
    return textwrap.fill(text, _WIDTH, initial_indent=head, subsequent_indent=" " * _MARGIN, break_on_hyphens=False)
