"""The mixture of experts: built on another model's tokenizer, read by decoding, its experts counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from fixtures_training import COMMON, SHAPE, done, train_tiny_target, write_data

from benchctl.decoding.target import Target
from benchctl.training.experts import expert_loads, load_yardsticks
from benchctl.training.models import TokenIds, build_model
from benchctl.training.packing import Batch
from benchctl.training.shapes import ModelShape


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moe")
    data = write_data(folder / "data")
    target = train_tiny_target(data, folder / "dense")
    sizes = (*SHAPE, "--mlp", 16, "--experts", 4, "--experts-per-token", 2, "--batch-tokens", 2048)
    out = folder / "mixture"
    done("train", "moe", "--model", target, "--data", data, "--out", out, "--steps", 2, *sizes, *COMMON)
    return out


def test_it_loads_as_a_target_with_the_tokenizer_of_the_other_model(moe: Path) -> None:
    """Target.load compares every logit of a probe with transformers' own."""
    mixture, dense = Target.load(moe), Target.load(moe.parent / "dense")
    assert mixture.info.family == "olmoe"
    assert mixture.tokenizer.sha256 == dense.tokenizer.sha256
    assert mixture.stop_ids == dense.stop_ids


def test_its_embeddings_are_tied_and_its_experts_counted(moe: Path) -> None:
    config = json.loads((moe / "config.json").read_text())
    assert (config["tie_word_embeddings"], config["num_experts"], config["norm_topk_prob"]) == (True, 4, False)
    held_out = json.loads((moe / "training.json").read_text())["outcome"]["held_out"]
    assert held_out["experts"]["busiest_expert"] >= 1 >= held_out["experts"]["idlest_expert"] >= 0
    assert held_out["text"]["imbalance"] > 0


def test_loads_count_every_token_that_is_not_padding_once_per_chosen_expert() -> None:
    shape = ModelShape(layers=2, hidden=16, heads=2, kv_heads=1, mlp=8, positions=16, experts=4)
    model = build_model(shape, TokenIds(20, None, None, None), seed=0).eval()  # type: ignore[no-untyped-call]
    documents = torch.tensor([[0, 0, 0, 1, 1, -1]])
    batch = Batch(torch.arange(6)[None], torch.ones(1, 6), documents, torch.tensor([[0, 1, 2, 0, 1, 0]]))
    loads = expert_loads(model, [batch, batch])
    assert loads.shape == (2, 4)
    assert loads.sum(1).tolist() == [20, 20]  # two batches of five tokens, two experts each


def test_the_busiest_and_the_idlest_expert_are_told_against_the_mean() -> None:
    told = load_yardsticks(torch.tensor([[3, 1, 2, 2]]))
    assert (told["busiest_expert"].share, told["idlest_expert"].share) == (1.5, 0.5)
