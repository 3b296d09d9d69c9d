"""What a pass of one row costs, next to one of four rows."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tiny import tiny_target
from tiny_encoder import random_folder
from torch import Tensor

from benchctl.decoding.model.kernels import Linear
from benchctl.decoding.model.target import Target
from benchctl.measuring.passes import one_row_cost


def test_a_slow_product_of_one_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """On AMD's processors one row took MKL's plain product, and 1.5 times as long as four rows: any method that
    verifies several rows looked fast."""
    target, product, now_s = tiny_target(), Linear.__call__, [0.0]
    seconds = {1: 0.003, 4: 0.002}

    def timed(self: Linear, x: Tensor) -> Tensor:
        now_s[0] += seconds.get(len(x), 0.0)
        return product(self, x)

    monkeypatch.setattr(Linear, "__call__", timed)
    assert one_row_cost(target, lambda: now_s[0]) == pytest.approx(1.5)


def test_a_real_pass_is_timed_and_not_that_of_an_encoder_or_of_experts(tmp_path: Path) -> None:
    """Four rows read the weights of more experts than one row."""
    cost = one_row_cost(tiny_target(), time.perf_counter)
    assert cost is not None and 0.1 < cost < 10
    assert one_row_cost(Target.load(random_folder(tmp_path)), time.perf_counter) is None
    assert one_row_cost(tiny_target("mixtral"), time.perf_counter) is None
