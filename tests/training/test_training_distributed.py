"""Two processes train like one. On GPUs the code is the same with nccl instead of gloo; that is not tested here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fixtures_training import BATCHES, COMMON, write_data
from refusals import refused
from tiny import tiny_folder
from tiny_training import tiny_settings, tiny_trainer
from torch import nn

from benchctl.training.checkpoint import load_checkpoint
from benchctl.training.distributed import World, joined

WORKER = str(Path(__file__).parents[1] / "helpers" / "tiny_training.py")
TIMEOUT_S = 240


def run_two(*words: str) -> None:
    """Two processes through torchrun, on a port that it finds free; the tests of this folder run with one thread."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*command, *words], check=True, timeout=TIMEOUT_S)


def steps_of_ranks(folder: Path) -> list[int]:
    return [int((folder / f"steps-of-rank-{rank}").read_text()) for rank in (0, 1)]


@pytest.mark.slow
def test_two_processes_end_with_the_weights_of_one(tmp_path: Path) -> None:
    """Stages, accumulation and unequal loss weights; in float64 only the order of the sums differs."""
    settings = tiny_settings(optimizer="adamw")
    tiny_trainer(tmp_path / "one", settings, dtype=torch.float64).train()
    run_two(WORKER, str(tmp_path / "two"), "--steps", "12", "--optimizer", "adamw", "--double")
    one, two = load_checkpoint(tmp_path / "one"), load_checkpoint(tmp_path / "two")
    assert one is not None and two is not None
    assert steps_of_ranks(tmp_path / "two") == [12, 12]
    assert (two.position.step, two.position.tokens, two.position.rows) == (12, one.position.tokens, one.position.rows)
    for name, expected in one.weights.items():
        assert expected.dtype == torch.float64
        assert torch.allclose(two.weights[name], expected, rtol=0, atol=1e-12), name
    assert len((tmp_path / "two" / "log.jsonl").read_text().splitlines()) == 4, "only the first process logs"


@pytest.mark.slow
def test_two_processes_stop_at_the_same_step_when_the_time_is_over(tmp_path: Path) -> None:
    """The clock of the second one runs twice as fast. It does not leave while the first one still writes its result."""
    run_two(WORKER, str(tmp_path), "--seconds", "2", "--slow", "0.02", "--linger", "0.5")
    first, second = steps_of_ranks(tmp_path)
    assert first == second > 1


@pytest.mark.slow
def test_two_processes_train_a_draft_model_and_measure_it(tmp_path: Path) -> None:
    """The first one alone measures the draft model at the end, on answers that both have waited for before."""
    data, target = write_data(tmp_path / "data"), tiny_folder(tmp_path / "target")
    words = ["draft", "--model", target, "--data", data, "--out", tmp_path / "draft", "--steps", 2, *BATCHES, *COMMON]
    run_two("-m", "benchctl", "train", *map(str, words), "--self-distil", "6", "--answer-tokens", "6")
    held_out = json.loads((tmp_path / "draft" / "training.json").read_text())["outcome"]["held_out"]
    assert 0 <= held_out["instruct, drafting"]["acceptance_4"] <= 1


@pytest.mark.slow
def test_processes_that_read_different_checkpoints_do_not_train_together(tmp_path: Path) -> None:
    class Behind(World):
        def from_first(self, value: float, device: torch.device) -> float:
            return value - 1

    tiny_trainer(tmp_path, tiny_settings()).train()
    again = tiny_trainer(tmp_path, tiny_settings(), world=Behind())
    assert again.resume()
    with refused("processes_disagree", "step 11", "step 12"):
        again.train()


def test_resumed_processes_draw_numbers_of_their_own(tmp_path: Path) -> None:
    """All of them went on with the random numbers of the first one."""
    tiny_trainer(tmp_path, tiny_settings()).train()
    drawn = []
    for rank in (0, 1, 1, 2):
        assert tiny_trainer(tmp_path, tiny_settings(), world=World(rank, 4)).resume()
        drawn.append(float(torch.rand(())))
    assert drawn[1] == drawn[2] and len(set(drawn)) == 3


def test_a_gradient_that_only_another_process_has_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process sends its gradients end to end, then which of the three are there."""
    both, there, nowhere = (nn.Parameter(torch.zeros(1, 2)) for _ in range(3))
    both.grad = torch.tensor([[1.0, 2.0]])
    sent = torch.tensor([10.0, 20.0, 30.0, 40.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda message: message.add_(sent))
    World(rank=0, size=2).sum_gradients([both, there, nowhere])
    assert both.grad.tolist() == [[11.0, 22.0]]
    assert there.grad is not None and there.grad.tolist() == [[30.0, 40.0]]
    assert nowhere.grad is None


@pytest.mark.parametrize(
    ("environment", "device", "id", "facts"),
    [
        ({"RANK": "0"}, "cpu", "processes_not_connected", ("'WORLD_SIZE'", "torchrun")),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "cuda", "too_few_gpus", ("process 1",)),
    ],
)
def test_half_an_environment_is_refused_and_processes_without_a_gpu_of_their_own(
    environment: dict[str, str], device: str, id: str, facts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with refused(id, *facts), joined(device):
        pass
