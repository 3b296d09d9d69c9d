"""A target with float16 weights: float32 arithmetic over rounded matrices, and an identity of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from plain_t5 import tiny_t5
from refusals import refused
from tiny import tiny_config, tiny_folder, tiny_model
from untrained import facts_of, untrained

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model import kernels
from benchctl.decoding.model.kernels import Linear
from benchctl.decoding.model.loading import check_weights, form_sha256, round_weights
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.adapters import Adapters
from benchctl.decoding.modules.folders import load_modules, save_modules
from benchctl.measuring.run import traffic_of
from benchctl.measuring.weights import WeightGuard
from benchctl.methods.medusa import Medusa
from benchctl.methods.skip_decode import SkipDecode


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def in_float64(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product with rounded weights, without any rounding of its own."""
    product = x.double() @ weight.half().double().t()
    return product if bias is None else product + bias.double()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bias", [False, True], ids=["without bias", "with bias"])
@pytest.mark.parametrize("shape", [(48, 32), (520, 1100), (4099, 64)], ids=str)
def test_products_are_those_of_rounded_weights_for_every_number_of_rows(
    shape: tuple[int, int], bias: bool, threads: int
) -> None:
    weight, offset = randn(*shape, seed=1), randn(shape[0], seed=2) if bias else None
    linear = Linear(weight, offset, "float16")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for rows in (*range(1, 18), 32, 64, 300):
            x, residual = randn(rows, shape[1], seed=9), randn(rows, shape[0], seed=3)
            expected = in_float64(x, weight, offset)
            scale = shape[1] ** 0.5  # the spread of a result
            torch.testing.assert_close(linear(x).double(), expected, rtol=0, atol=1e-5 * scale)
            added = linear.add_to(residual, x).double()
            torch.testing.assert_close(added, expected + residual.double(), rtol=0, atol=1e-5 * scale)
    finally:
        torch.set_num_threads(before)


def test_rows_that_are_a_slice_of_a_larger_tensor_are_read_right_and_left_alone() -> None:
    weight, wide = randn(520, 264), randn(6, 528)
    before = wide.clone()
    found = Linear(weight, None, "float16")(wide[:, ::2])
    torch.testing.assert_close(found.double(), in_float64(wide[:, ::2], weight, None), rtol=0, atol=1e-4)
    assert torch.equal(wide, before)


def test_weights_are_held_once_in_two_bytes_and_read_back_rounded() -> None:
    weight = randn(520, 264)
    linear = Linear(weight, None, "float16")
    assert linear.weight.dtype == torch.float32
    assert torch.equal(linear.weight, weight.half().float())
    assert linear.weight_bytes == 2 * 520 * 264
    assert not any(isinstance(value, torch.Tensor) for value in vars(linear).values())
    assert Linear(weight).weight_bytes == 4 * 520 * 264


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def half(folder: Path) -> Target:
    return Target.load(folder, weights="float16")


@pytest.mark.parametrize("family", ["llama_biases", "qwen3", "gemma"])
def test_a_target_is_the_model_with_rounded_matrices_and_gains_and_biases_as_they_were(
    family: str, tmp_path: Path
) -> None:
    """Against transformers in float64."""
    folder = tiny_folder(tmp_path / family, family)
    rounded = tiny_model(family, vocab_size=320).double()
    for weight in rounded.parameters():
        if weight.ndim > 1:
            weight.data = weight.data.half().double()
    target, ids = Target.load(folder, weights="float16"), list(range(5, 35))
    expected = rounded(torch.tensor([ids])).logits[0].detach()
    with torch.inference_mode():
        stream = Stream(target, len(ids))
        stream.push(ids)
        stream.advance()
        found = stream.logits().double()
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4 * float(expected.std()))
    assert target.dtype == torch.float32 and target.embedding.dtype == torch.float16
    assert stream.cache.kv[0].dtype == torch.float32


def test_the_form_is_part_of_the_identity_and_the_files_stay_the_same(folder: Path, half: Target) -> None:
    whole = Target.load(folder)
    assert whole.weights_sha256 == whole.files_sha256 == half.files_sha256
    assert half.weights_sha256 == form_sha256(whole.weights_sha256, "float16") != whole.weights_sha256
    assert form_sha256("", "float16") == ""


def test_a_step_reads_two_bytes_for_each_number_of_a_matrix_and_four_of_a_gain(folder: Path, half: Target) -> None:
    whole_bytes, cache_bytes = traffic_of(Target.load(folder))
    gains_bytes = 4 * 32 * (2 * 3 + 1)
    assert traffic_of(half) == ((whole_bytes - gains_bytes) // 2 + gains_bytes, cache_bytes)


def test_modules_made_for_the_files_serve_both_forms(folder: Path, half: Target, tmp_path: Path) -> None:
    whole = Target.load(folder)
    save_modules(tmp_path / "heads", untrained(Medusa(), whole), facts_of("medusa", Medusa(), whole))
    heads = str(tmp_path / "heads")
    same = zip(*(load_modules(Medusa(), "medusa", each, heads).parameters() for each in (whole, half)), strict=True)
    assert all(torch.equal(*pair) for pair in same)
    other = tiny_folder(tmp_path / "other", seed=1)
    with refused("modules_of_other_target"):
        load_modules(Medusa(), "medusa", Target.load(other, weights="float16"), heads)


def test_a_few_outputs_of_a_tied_head_are_taken_without_unpacking_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """specee asks for four at each token: unpacking made it ten times as slow."""
    tied = Target.load(tiny_folder(tmp_path / "tied", "qwen2"), weights="float16")
    states, ids = randn(3, tied.config.hidden_size), torch.tensor([7, 0, 5, 7])
    expected = tied.lm_head(states)[:, ids]
    monkeypatch.setattr(kernels, "unpacked", lambda half: pytest.fail("all weights of the head were unpacked"))
    torch.testing.assert_close(tied.head_rows(ids)(states), expected, rtol=1e-5, atol=1e-5)


def test_adapted_layers_keep_the_form(half: Target) -> None:
    adapters = untrained(SkipDecode(), half)
    assert isinstance(adapters, Adapters)
    products = [block.attention.qkv for block in adapters.merge(half).blocks]
    assert [product.weight_bytes for product in products] == [2 * 128 * 32] * 3


@pytest.mark.parametrize(
    ("config", "dtype", "device"),
    [
        (tiny_config("llama"), "bfloat16", "cpu"),
        (tiny_config("llama"), "float64", "cpu"),
        (tiny_config("llama"), "float32", "cuda"),
        (tiny_config("mixtral"), "float32", "cpu"),
        (tiny_config("olmoe"), "float32", "cpu"),
        (tiny_t5().config, "float32", "cpu"),
    ],
    ids=["bfloat16", "float64", "cuda", "mixtral", "olmoe", "t5"],
)
def test_what_cannot_be_kept_so_is_refused(config: Any, dtype: str, device: str) -> None:
    check_weights("auto", config, dtype, device)
    with refused("weights_unsupported"):
        check_weights("float16", config, dtype, device)


def test_a_machine_without_the_packed_product_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_weights("float16", tiny_config("llama"), "float32", "cpu")
    monkeypatch.setattr(type(torch.backends.quantized), "supported_engines", ["qnnpack"], raising=False)
    with refused("weights_unsupported", "FBGEMM"):
        check_weights("float16", tiny_config("llama"), "float32", "cpu")


def test_weights_beyond_float16_are_refused_and_named() -> None:
    """FBGEMM would replace them by the largest number it has."""
    model = tiny_model("llama")
    round_weights(model, "x")
    model.model.layers[1].mlp.up_proj.weight.data[0, 0] = 65520.0
    with refused("weights_overflow", "layers.1.mlp.up_proj"):
        round_weights(model, "x")


def test_changed_packed_weights_are_noticed(folder: Path) -> None:
    target = Target.load(folder, weights="float16")
    guard = WeightGuard(target)
    guard.check("x")
    product = target.blocks[1].attention.out
    product._half = Linear(product.weight * 2, None, "float16")._half
    with refused("weights_changed"):
        guard.check("x")
