"""What a pass of so many rows costs, with float32 and with float16 weights: `python -m benchmarks.rows MODEL`.

Verification of a draft is such a pass. Forms and numbers of rows take turns; each figure is of the best pass, since
other load of a machine only adds time. Products are timed within the pass.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import click
import torch

from benchctl import bundled
from benchctl.decoding.model.kernels import Linear
from benchctl.decoding.model.target import Target
from benchctl.errors import UserError
from benchctl.measuring.machine.meter import bandwidth_mb_s
from benchctl.measuring.passes import Passes
from benchctl.measuring.run import model_info, traffic_of
from benchctl.measuring.settings import Weights
from benchmarks.origin import circumstances

ROWS = (1, 2, 4, 8, 16, 32)
FORMS = get_args(Weights)
Clock = Callable[[], float]


@dataclass(frozen=True)
class Took:
    """Seconds of one pass, and of the products with weights in it."""

    seconds: float
    products_s: float


@dataclass(frozen=True)
class Cost:
    """The best pass of so many rows: embedding, layers, head, and the likeliest tokens on the host.

    relative          milliseconds / those of one row
    product_share     of the pass
    bandwidth_share   of measured memory bandwidth: bytes of weights, keys and values / seconds of the pass
    product_bandwidth_share  the same of the products alone: bytes of weights / seconds
    """

    weights: str
    rows: int
    ms: float
    relative: float
    product_share: float
    bandwidth_share: float
    product_bandwidth_share: float


class Products:
    """Adds up the seconds of products with weights."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._within = clock, False
        self.seconds = 0.0

    @contextmanager
    def on(self) -> Iterator[None]:
        """While open, products are timed."""
        originals = {name: getattr(Linear, name) for name in ("__call__", "add_to")}
        for name, original in originals.items():
            setattr(Linear, name, self._timed(original))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(Linear, name, original)

    def _timed(self, original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def call(*arguments: Any) -> torch.Tensor:
            if self._within:  # add_to may ask for the product itself
                return original(*arguments)
            self._within = True
            begin_s = self._clock()
            try:
                return original(*arguments)
            finally:
                self.seconds += self._clock() - begin_s
                self._within = False

        return call


def take(passes: Passes, rows: int, clock: Clock) -> Took:
    products = Products(clock)
    with products.on():
        begin_s = clock()
        passes.run(rows)
        return Took(clock() - begin_s, products.seconds)


@torch.inference_mode()
def measure(model: str, forms: Sequence[str], threads: int, text_tokens: int, passes: int, clock: Clock) -> list[Cost]:
    """The costs of each form, by rows. ``text_tokens`` lie before the rows. Raises UserError as Target.load does."""
    torch.set_num_threads(threads)
    bandwidth = bandwidth_mb_s("cpu", threads)
    path = bundled.resolve(model)
    arms = {weights: Passes(Target.load(path, weights=weights), text_tokens, max(ROWS)) for weights in forms}
    took: dict[tuple[str, int], list[Took]] = {(weights, rows): [] for weights in forms for rows in ROWS}
    for _ in range(passes):
        for rows in ROWS:
            for weights in forms:
                took[weights, rows].append(take(arms[weights], rows, clock))
    return [
        cost
        for weights, arm in arms.items()
        for cost in costs_of(
            weights,
            {rows: min(took[weights, rows], key=lambda one: one.seconds) for rows in ROWS},
            traffic_of(arm.target),
            text_tokens,
            bandwidth,
        )
    ]


def costs_of(
    weights: str, best: dict[int, Took], traffic: tuple[int, int], text_tokens: int, bandwidth: float | None
) -> Iterator[Cost]:
    """``traffic`` is that of measuring.run.traffic_of, ``bandwidth`` in megabytes per second; 0 where it is unknown."""
    step_bytes, token_bytes = traffic
    for rows, took in best.items():
        of_all, of_products = (
            size / seconds / (bandwidth * 1e6) if bandwidth else 0.0
            for size, seconds in (
                (step_bytes + token_bytes * text_tokens, took.seconds),
                (step_bytes, took.products_s),
            )
        )
        relative, share = took.seconds / best[ROWS[0]].seconds, took.products_s / took.seconds
        yield Cost(weights, rows, 1e3 * took.seconds, relative, share, of_all, of_products)


@click.command()
@click.argument("model")
@click.option("--weights", multiple=True, type=click.Choice(FORMS), default=FORMS, show_default=True, help="Forms.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="CPU threads.")
@click.option("--text", type=click.IntRange(1), default=200, show_default=True, help="Tokens before the rows.")
@click.option("--passes", type=click.IntRange(1), default=20, show_default=True, help="Of which the best counts.")
@click.option("--out", type=click.Path(path_type=Path), help="File for all figures: .json.")
def main(model: str, weights: tuple[str, ...], threads: int, text: int, passes: int, out: Path | None) -> None:
    """Print what a pass of 1 to 32 rows costs, what its products take, and how much of the memory's speed it uses."""
    try:
        costs = measure(model, weights, threads, text, passes, time.perf_counter)
    except UserError as problem:
        raise click.UsageError(str(problem)) from problem
    click.echo("weights  rows       ms  relative  products  bandwidth  of products")
    for cost in costs:
        shares = f"{cost.product_share:>8.0%}  {cost.bandwidth_share:>9.0%}  {cost.product_bandwidth_share:>11.0%}"
        click.echo(f"{cost.weights:<7}  {cost.rows:>4}  {cost.ms:>7.2f}  {cost.relative:>8.2f}  {shares}")
    if out:
        figures = circumstances() | {
            "model": asdict(model_info(model, Target.load(bundled.resolve(model)))),
            "threads": threads,
            "text_tokens": text,
            "passes": passes,
            "costs": [asdict(cost) for cost in costs],
        }
        out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
