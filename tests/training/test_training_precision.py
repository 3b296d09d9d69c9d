"""bfloat16 where it helps: processors that have its products, and those that only emulate them."""

from __future__ import annotations

import json
import platform
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from fixtures_training import COMMON, SHAPE, done, write_data

from benchctl.training.jobs import target_dtype
from benchctl.training.train_options import TrainOptions
from benchctl.training.trainer import bf16_helps

OPTIONS = TrainOptions(data=(), out=Path(), device="cuda")


def cpu(monkeypatch: pytest.MonkeyPatch, machine: str = "x86_64", avx512: bool = False, amx: bool = False) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)


def gpu(monkeypatch: pytest.MonkeyPatch, has_bf16: bool) -> None:
    """One that emulates bfloat16 in any case."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or has_bf16
    )


def test_a_cpu_helps_that_has_instructions_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for avx512, amx in ((False, False), (True, False), (False, True)):
        cpu(monkeypatch, avx512=avx512, amx=amx)
        assert bf16_helps("cpu") is (avx512 or amx)
    cpu(monkeypatch, machine="aarch64", avx512=True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not bf16_helps("cpu")


def test_a_gpu_that_emulates_it_gets_float32_unless_bfloat16_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_bf16, kept in ((True, "bfloat16"), (False, "float32")):
        gpu(monkeypatch, has_bf16)
        assert (bf16_helps("cuda:0"), target_dtype(OPTIONS)) == (has_bf16, kept)
    assert target_dtype(TrainOptions(data=(), out=Path(), device="cuda", dtype="bfloat16")) == "bfloat16"


@pytest.mark.slow
def test_a_run_falls_back_to_float32_and_says_so_there_and_in_its_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = write_data(tmp_path / "data")
    words = ("reference", "target", "--data", data, "--steps", 1, *SHAPE, "--mlp", 64, "--vocabulary", 300, *COMMON)
    words += ("--batch-tokens", 2048, "--dtype")
    cpu(monkeypatch)
    notice = "no bfloat16 products: training in float32; --dtype bfloat16 insists"
    for asked, told, bf16 in (("auto", True, False), ("bfloat16", False, True)):
        out = tmp_path / asked
        assert (notice in done(*words, asked, "--out", out)) is told
        assert json.loads((out / "training.json").read_text())["settings"]["bf16"] is bf16
        assert ("bfloat16 autocast" in (out / "README.md").read_text()) is bf16
