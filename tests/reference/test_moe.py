"""Training a whole target as a mixture of experts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from fixtures_training import COMMON, SHAPE, done, refused, train_tiny_target, write_data
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from benchctl.decoding.model.target import Target
from benchctl.training.data.chats import ChatFormat
from benchctl.training.data.packing import Batch
from benchctl.training.data.reading import read_corpus
from benchctl.training.models import build_model
from reference.mixture import MoeShape, expert_load_metrics, expert_loads, olmoe_config, spread
from reference.recipe import corpus_data

SIZES = (*SHAPE[2:], "--layers", 2, "--mlp", 16, "--experts", 4, "--experts-per-token", 2, "--batch-tokens", 2048)


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moe")
    data = write_data(folder / "data")
    target = train_tiny_target(data, folder / "dense")
    out = folder / "mixture"
    done("reference", "moe", "--model", target, "--data", data, "--out", out, "--steps", 2, *SIZES, *COMMON)
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
    measured = json.loads((moe / "training.json").read_text())["outcome"]["held_out"]
    data = corpus_data(read_corpus([str(moe.parent / "data")]), ChatFormat.load(moe))
    routed = {name: routed_alone(moe, batches) for name, batches in data.held_out.items()}
    loads = sum(chosen.sum(1) for chosen, _ in routed.values())
    assert isinstance(loads, torch.Tensor)
    shares = {"busiest_expert": float(loads.max() / loads.mean()), "idlest_expert": float(loads.min() / loads.mean())}
    assert measured["experts"] == pytest.approx(shares, rel=0.02)  # the weights on disk are rounded
    chosen, probabilities = routed["text"]
    balance = 4 * (chosen.mean(1) / 2 * probabilities.mean(1)).sum(1)  # Switch Transformers, equations 4 to 6
    assert measured["text"]["imbalance"] == pytest.approx(float(balance.mean()), abs=2e-4)


@torch.no_grad()
def routed_alone(folder: Path, batches: Sequence[Batch]) -> tuple[torch.Tensor, torch.Tensor]:
    """By transformers, each document by itself: which experts are asked, and the router's probabilities, both
    [layers, tokens, experts]."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    seen = []
    for batch in batches:
        for tokens, documents in zip(batch.tokens, batch.documents, strict=True):
            for number in range(int(documents.max()) + 1):
                output = model(tokens[documents == number][None], output_router_logits=True)
                seen.append(torch.stack(output.router_logits))
    router_logits = torch.cat(seen, dim=1)
    asked = torch.zeros_like(router_logits).scatter(-1, router_logits.topk(2).indices, 1.0)
    return asked, router_logits.softmax(-1)


def test_loads_count_every_token_that_is_not_padding_once_per_chosen_expert() -> None:
    shape = MoeShape(layers=2, hidden=16, heads=2, kv_heads=1, mlp=8, positions=16, experts=4)
    model = build_model(olmoe_config(shape, {"vocab_size": 20, "pad_token_id": None}), seed=0).eval()  # type: ignore[no-untyped-call]
    documents = torch.tensor([[0, 0, 0, 1, 1, -1]])
    batch = Batch(torch.arange(6)[None], torch.ones(1, 6), documents, torch.tensor([[0, 1, 2, 0, 1, 0]]))
    loads = expert_loads(model, [batch, batch])
    assert loads.shape == (2, 4)
    assert loads.sum(1).tolist() == [20, 20]  # two batches of five tokens, two experts each
    metrics = expert_load_metrics(torch.tensor([[3, 1, 2, 2]]))
    assert (metrics["busiest_expert"].share, metrics["idlest_expert"].share) == (1.5, 0.5)


@pytest.mark.slow
def test_it_begins_with_the_embedding_and_the_attention_of_the_dense_model_where_sizes_fit(moe: Path) -> None:
    """Nothing learnt at rates of 0: what is copied is still what it was."""
    dense, data, out = moe.parent / "dense", moe.parent / "data", moe.parent / "still"
    words = ("--model", dense, "--data", data, "--steps", 1, "--rate", 0, "--matrix-rate", 0, *COMMON)
    done("reference", "moe", *words, *SIZES, "--out", out)
    mixture, source = (load_file(folder / "model.safetensors") for folder in (out, dense))
    assert torch.equal(mixture["model.embed_tokens.weight"], source["model.embed_tokens.weight"])
    for own, of in ((0, 0), (1, 2)):  # two layers take the first and the last of three
        for part in ("self_attn.q_proj", "self_attn.o_proj", "post_attention_layernorm"):
            name = f"model.layers.{{}}.{part}.weight"
            assert torch.equal(mixture[name.format(own)], source[name.format(of)])
    assert "attention of dense" in (out / "README.md").read_text()
    done("reference", "moe", *words, *SIZES, "--init-from", "scratch", "--out", moe.parent / "fresh")
    fresh = load_file(moe.parent / "fresh" / "model.safetensors")
    assert not torch.equal(fresh["model.embed_tokens.weight"], source["model.embed_tokens.weight"])
    wider = ("--hidden", 48, "--heads", 2, "--init-from", "model", "--out", moe.parent / "wider")
    shown = refused("reference", "moe", *words, *SIZES, *wider, id="shapes_do_not_fit")
    assert "dense" in shown and "--init-from" in shown


def test_layers_are_taken_from_both_ends_and_evenly_between() -> None:
    assert spread(3, 9) == [0, 4, 8] and spread(8, 16) == [0, 2, 4, 6, 9, 11, 13, 15] and spread(1, 4) == [0]
