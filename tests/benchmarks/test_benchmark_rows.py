"""The benchmark of rows times passes and the products in them, form by form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from fakes_measuring import FakeClock
from tiny import tiny_folder

from benchctl.decoding.model.kernels import Linear
from benchctl.decoding.model.target import Target
from benchctl.measuring.passes import Passes
from benchmarks.rows import ROWS, Cost, Products, Took, costs_of, main, take


@pytest.mark.parametrize("form", ["fast", "plain", "float16"])
@torch.inference_mode()
def test_each_product_counts_once_whether_it_is_added_or_not(form: str) -> None:
    linear, x, clock = Linear(torch.ones(4, 4), None, form), torch.ones(1, 4), FakeClock()  # type: ignore[arg-type]
    products, original = Products(clock), Linear.__call__
    with products.on():
        linear(x)
        assert products.seconds == 1.0
        linear.add_to(x, x)
    assert (products.seconds, clock.now_s) == (2.0, 4.0)
    assert Linear.__call__ is original
    linear(x)
    assert clock.now_s == 4.0


@torch.inference_mode()
def test_a_pass_has_the_products_of_all_layers_and_of_the_head(tmp_path: Path) -> None:
    passes = Passes(Target.load(tiny_folder(tmp_path)), 8, 4)
    for rows in (1, 4):
        assert take(passes, rows, FakeClock()).products_s == 4 * 3 + 1


def test_shares_are_those_of_the_best_pass() -> None:
    best = dict.fromkeys(ROWS, Took(4.0, 3.0)) | {1: Took(2.0, 1.0)}
    one, two, *_ = costs_of("float16", best, (10_000_000, 100_000), 20, 6.0)
    assert one == Cost("float16", 1, 2000.0, 1.0, 0.5, 1.0, 10 / 6)
    assert (two.rows, two.relative, two.product_share, two.bandwidth_share) == (2, 2.0, 0.75, 0.5)
    assert next(iter(costs_of("auto", best, (1, 0), 20, None))).bandwidth_share == 0.0


def test_the_command_prints_and_writes_both_forms(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model")
    result = CliRunner().invoke(
        main, [str(folder), "--passes", "1", "--text", "8", "--out", str(tmp_path / "rows.json")]
    )
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "rows.json").read_text())
    assert [(cost["weights"], cost["rows"]) for cost in figures["costs"]] == [
        (weights, rows) for weights in ("auto", "float16") for rows in ROWS
    ]
    assert all(0 < cost["product_share"] < 1 < 1e3 * cost["ms"] for cost in figures["costs"])
    assert len(result.output.splitlines()) == 1 + 2 * len(ROWS)
    assert figures["model"]["name"] == "model" and str(tmp_path) not in json.dumps(figures["model"])


def test_a_model_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    assert CliRunner().invoke(main, [str(tmp_path / "nowhere")]).exit_code == 2
