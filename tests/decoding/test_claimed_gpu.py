"""Whatever runs on a GPU, on a GPU in name only: nothing mixes its tensors with the CPU's, and answers are equal."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from claimed_gpu import ClaimedGpu, MixedDevices, OnGpu
from fixtures_run import make_settings, measure_file, measured
from plain_t5 import tiny_t5
from runs import EXACT, LOSSY, OF_EXPERTS, pair, prepared, prompt_of
from tiny import VARIANTS, tiny_model
from torch import Tensor

from benchctl.decoding.batch import decode_batch, why_not_batched
from benchctl.decoding.kv import cache
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Method
from benchctl.decoding.model.target import Target
from benchctl.decoding.sampling import Sampling
from benchctl.registry import build, parse_label

FIRST = {parse_label(label).name: label for label in (*EXACT, *LOSSY, *OF_EXPERTS)[::-1]}.values()
REST = [pytest.param(label, marks=pytest.mark.slow) for label in (*EXACT, *LOSSY, *OF_EXPERTS) if label not in FIRST]
SAMPLINGS = (Sampling(), Sampling(temperature=1.0, top_p=0.9, top_k=8))


@pytest.fixture(autouse=True)
def streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams and pinned memory, which a CPU has none of."""
    for name in ("Stream", "Event", "current_stream", "synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU in name only")
    for name in ("max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 1)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)


@pytest.fixture
def gpu() -> Iterator[ClaimedGpu]:
    with ClaimedGpu() as claimed:
        yield claimed


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_family_gives_the_same_answer(variant: str) -> None:
    """The prompt's rows take the fused attention, the others the batched products."""
    model, request = tiny_model(variant), DecodeRequest(list(range(1, 21)), 8)
    with ClaimedGpu() as gpu:
        target = Target(copy.deepcopy(model).to("cuda"), None)
        gpu.host_indices = 0  # reading may use some
        answer = decode(build("autoregressive"), target, request)
    assert isinstance(target.blocks[-1].attention.qkv.weight, OnGpu) and gpu.host_indices == 0
    assert answer.token_ids == decode(build("autoregressive"), Target(model, None), request).token_ids


def test_so_does_one_with_an_encoder() -> None:
    model, request = tiny_t5(), DecodeRequest(list(range(3, 20)), 8)
    with ClaimedGpu():
        answer = decode(build("autoregressive"), Target(copy.deepcopy(model).to("cuda"), None), request)
    assert answer.token_ids == decode(build("autoregressive"), Target(model, None), request).token_ids


def answers(method: Method, target: Target, requests: Sequence[DecodeRequest]) -> list[tuple[int, ...]]:
    """To each request alone, and to two of them as a batch where the method decodes batches."""
    generations = [decode(method, target, request) for request in requests]
    if why_not_batched(method) is None:
        generations += decode_batch(method, target, [requests[0]] * 2)
    return [generation.token_ids for generation in generations]


@pytest.mark.parametrize("label", [*FIRST, *REST])
def test_every_method_gives_the_same_answer(label: str) -> None:
    models = pair("mixtral", 3) if label in OF_EXPERTS else pair("llama")
    requests = [DecodeRequest(prompt_of(20), 12, sampling) for sampling in SAMPLINGS]
    on_cpu = answers(prepared(label, models.target, models.draft), models.target, requests)
    with ClaimedGpu() as gpu:
        target, draft = (Target(copy.deepcopy(each).to("cuda"), None) for each in (models.model, models.draft_model))
        method = prepared(label, target, draft)
        gpu.host_indices = 0
        assert answers(method, target, requests) == on_cpu
    assert gpu.host_indices == 0


def test_a_run_gives_the_same_rows_verdicts_and_scores(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading with the comparison to transformers, the guard of the weights, and all controls of an answer."""
    settings = replace(
        make_settings(run_folder, tmp_path / "cpu.jsonl"), methods=("two_model", "early_exit[threshold=0]")
    )
    on_cpu = measure_file(settings)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    models = replace(settings.models, device="cuda", dtype="float32")
    with ClaimedGpu():
        on_gpu = measure_file(replace(settings, models=models, out=tmp_path / "gpu.jsonl"))
    assert (on_gpu.run.device, on_gpu.run.step_bytes) == ("cuda", on_cpu.run.step_bytes)
    assert {row.verdict for row in measured(on_gpu)} >= {"identical", "lossy"}
    for ours, theirs in zip(measured(on_gpu), measured(on_cpu), strict=True):
        assert (ours.error, ours.token_ids, ours.verdict) == (None, theirs.token_ids, theirs.verdict)
        assert ours.fidelity == pytest.approx(theirs.fidelity, rel=1e-3) and "failed_controls" not in ours.fidelity


def left_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    built = cache.Layout._build
    monkeypatch.setattr(cache.Layout, "_build", lambda self, *how: built(self, *how).cpu())


@pytest.mark.usefixtures("gpu")
def test_a_mask_that_was_left_on_the_cpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the tests above would find nothing."""
    left_on_the_cpu(monkeypatch)
    with pytest.raises(MixedDevices):
        decode(build("autoregressive"), Target(tiny_model("llama").to("cuda"), None), DecodeRequest([1, 2, 3], 2))


def test_what_a_gpu_refuses_and_what_it_takes(gpu: ClaimedGpu) -> None:
    ours, theirs = torch.ones(3, device="cuda"), torch.ones(3)
    for mixed in (
        lambda: ours + theirs,
        lambda: torch.cat((ours, theirs)),
        lambda: ours.index_select(0, torch.tensor([1])),
        lambda: torch.multinomial(ours, 1, generator=torch.Generator()),
        lambda: ours.numpy(),
    ):
        with pytest.raises(MixedDevices):
            mixed()
    assert (ours * torch.tensor(2.0)).tolist() == [2.0] * 3
    assert ours[torch.tensor([1])].device.type == "cuda" and gpu.host_indices == 1
    assert ours.cpu().device.type == "cpu" and isinstance(theirs.to(ours.device), OnGpu)
