"""Weight products and norms against torch's own."""

from __future__ import annotations

from functools import partial
from typing import get_args
from unittest.mock import MagicMock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchctl.decoding.model import kernels
from benchctl.decoding.model.kernels import Form, LayerNorm, Linear, Norm, in_form, may_copy
from benchctl.decoding.modules.low_rank import Delta, LowRank

# Below and above the size from which weights are packed for several rows.
SHAPES = {"small": (48, 32), "large": (520, 264), "wide head": (4096, 64), "from memory": (516, 520)}


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bias", [False, True], ids=["without bias", "with bias"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("amd", [False, True], ids=["other processors", "AMD"])
def test_every_row_count_gives_the_product_of_torch(
    shape: tuple[int, int], bias: bool, amd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_AMD", amd)
    weight = randn(*shape, seed=1)
    offset = randn(shape[0], seed=2) if bias else None
    linear = Linear(weight, offset)
    for rows in range(21):
        x = randn(rows, shape[1], seed=rows)
        torch.testing.assert_close(linear(x), F.linear(x, weight, offset), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("amd", [False, True], ids=["other processors", "AMD"])
def test_one_row_of_a_large_weight_takes_the_faster_kernel(amd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On AMD a pass of one row of smollm2 took longer than one of four rows, so that any drafter looked fast."""
    monkeypatch.setattr(kernels, "_AMD", amd)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    plain = MagicMock(wraps=torch.mm)
    monkeypatch.setattr(torch, "mm", plain)
    Linear(randn(516, 520))(randn(1, 520))
    assert plain.call_count == (0 if amd else 1)


@pytest.mark.parametrize("rows", [1, 5, 20])
def test_float64_products_are_exactly_those_of_torch(rows: int) -> None:
    weight, bias = randn(520, 264, dtype=torch.float64), randn(520, dtype=torch.float64)
    x = randn(rows, 264, dtype=torch.float64, seed=3)
    assert torch.equal(Linear(weight, bias)(x), F.linear(x, weight, bias))


@pytest.mark.parametrize("rows", [1, 5, 20])
def test_without_copies_products_are_exactly_those_of_torch(rows: int) -> None:
    weight, x = randn(520, 264), randn(rows, 264, seed=3)
    assert torch.equal(Linear(weight, None, "plain")(x), F.linear(x, weight))


def test_weight_reads_as_before_whatever_its_layout() -> None:
    weight = randn(520, 264)
    linear = Linear(weight)
    assert (linear.out_features, linear.in_features) == (520, 264)
    assert torch.equal(linear.weight, weight)


@pytest.mark.parametrize("form", get_args(Form))
@pytest.mark.parametrize("bias", [False, True], ids=["without bias", "with bias"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_some_outputs_alone_are_those_of_the_whole_product(shape: tuple[int, int], bias: bool, form: Form) -> None:
    weight, offset, ids = randn(*shape), randn(shape[0]) if bias else None, torch.tensor([1, 5, 17, 40])
    whole = Linear(weight, offset, form)
    some = whole.rows(ids)
    assert some.out_features == 4
    for rows in (1, 5, 20):
        x = randn(rows, shape[1], seed=rows)
        torch.testing.assert_close(some(x), whole(x)[:, ids], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_some_outputs_keep_the_precision_of_the_weights(dtype: torch.dtype) -> None:
    weight, x = randn(520, 264, dtype=dtype), randn(3, 264, dtype=dtype, seed=1)
    got = Linear(weight).rows(torch.tensor([3, 500]))(x)
    assert got.dtype == dtype and torch.equal(got, F.linear(x, weight[[3, 500]]))


def test_rows_that_are_a_slice_of_a_larger_tensor_are_read_right() -> None:
    weight, wide = randn(520, 264), randn(6, 528)
    for rows in (1, 6):
        x = wide[:rows, ::2]
        torch.testing.assert_close(Linear(weight)(x), F.linear(x, weight), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("form", get_args(Form))
@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("bends", [False, True])
@pytest.mark.parametrize("rows", [0, 3])
def test_a_trained_change_decodes_as_it_was_trained(rows: int, bends: bool, replaces: bool, form: Form) -> None:
    trained = LowRank(48, 32, 8, 2.0, torch.device("cpu"), bends)
    torch.nn.init.normal_(trained.up.weight, generator=torch.Generator().manual_seed(1))
    x, result = randn(rows, 48), randn(rows, 32, seed=2)
    change = trained(x).detach()
    wanted = change if replaces else result + change
    delta, close = Delta(trained, form, replaces), 1e-2 if form == "float16" else 1e-5
    torch.testing.assert_close(delta.of(x), change, rtol=close, atol=close)
    delta.add_to(result, x)
    torch.testing.assert_close(result, wanted, rtol=close, atol=close)


def test_products_leave_their_input_alone() -> None:
    x = randn(6, 264)
    before = x.clone()
    Linear(randn(520, 264), randn(520))(x)
    assert torch.equal(x, before)


def test_weights_of_two_gibibytes_are_copied_and_larger_ones_are_not() -> None:
    assert may_copy(2**31)
    assert not may_copy(2**31 + 1)


@pytest.mark.parametrize("form", get_args(Form))
def test_a_trained_module_keeps_its_outputs_in_each_form(form: Form) -> None:
    module = nn.Sequential(
        nn.Linear(520, 264), nn.SiLU(), nn.ModuleDict({"last": nn.Linear(264, 32, bias=False)})["last"]
    )
    x, close = randn(3, 520), 1e-2 if form == "float16" else 1e-5
    expected = module(x)
    in_form(module, form)
    assert [type(part) for part in module] == [kernels.Product, nn.SiLU, kernels.Product]
    torch.testing.assert_close(module(x), expected, rtol=close, atol=close)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_norm_is_computed_in_float32(dtype: torch.dtype) -> None:
    """Large values: their squares overflow float16, and bfloat16 sums would lose most terms."""
    gain, x = randn(512).to(dtype), (300.0 * randn(3, 512, seed=1)).to(dtype)
    wide = x.float()
    expected = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(dtype) * gain
    assert Norm(gain, 1e-5)(x).dtype == dtype
    torch.testing.assert_close(Norm(gain, 1e-5)(x), expected, rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("form", get_args(Form))
@pytest.mark.parametrize("bias", [False, True], ids=["without bias", "with bias"])
def test_the_tail_of_a_product_is_its_last_outputs(bias: bool, form: Form) -> None:
    linear = Linear(randn(520, 264), randn(520, seed=2) if bias else None, form)
    tail = linear.tail(300)
    assert tail.out_features == 220
    for rows in (1, 6, 20):
        x = randn(rows, 264, seed=rows)
        torch.testing.assert_close(tail(x), linear(x)[:, 300:], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_stacked_norms_give_each_row_its_own(dtype: torch.dtype) -> None:
    norms = [Norm(randn(16, dtype=dtype, seed=seed), 1e-5) for seed in range(3)]
    x = randn(3, 16, dtype=dtype, seed=9)
    expected = torch.cat([norm(row) for norm, row in zip(norms, x.unsqueeze(1), strict=True)])
    torch.testing.assert_close(Norm.stacked(norms)(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_layer_norms_are_torch_s_also_scaled_and_stacked(dtype: torch.dtype) -> None:
    norms, theirs = list[LayerNorm](), list[nn.LayerNorm]()
    for seed in range(3):
        module = nn.LayerNorm(16, eps=1e-3, dtype=dtype).requires_grad_(False)
        module.weight.copy_(randn(16, dtype=dtype, seed=seed))
        module.bias.copy_(randn(16, dtype=dtype, seed=seed + 5))
        norms.append(LayerNorm(module.weight, module.bias, module.eps))
        theirs.append(module)
    x, gain = 3 * randn(3, 16, dtype=dtype, seed=9), randn(16, dtype=dtype, seed=10)
    close = partial(torch.testing.assert_close, rtol=1e-6, atol=0.1 if dtype is torch.bfloat16 else 1e-5)
    torch.testing.assert_close(norms[0](x), theirs[0](x), rtol=0, atol=0)
    close(norms[0].scaled(gain)(x), theirs[0](x) * gain)
    expected = torch.cat([norm(row) for norm, row in zip(theirs, x.unsqueeze(1), strict=True)])
    close(Norm.stacked(norms)(x), expected)
    heads = x.unsqueeze(1).repeat(1, 2, 1)
    close(Norm.stacked(norms, per_head=True)(heads), expected.unsqueeze(1).repeat(1, 2, 1))
