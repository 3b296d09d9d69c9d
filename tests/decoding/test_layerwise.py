"""Checkpoints read layer by layer: the same target as from transformers' own loader, with one layer in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file, save_file
from tiny import tiny_folder
from transformers import AutoModelForCausalLM

from benchctl.decoding.model import target as targets
from benchctl.decoding.model.families import family_of
from benchctl.decoding.model.kernels import Linear
from benchctl.decoding.model.layers import Layer
from benchctl.decoding.model.layerwise import open_layerwise
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import load_tokenizer
from benchctl.measuring.weights import _tensors

DENSE = ("llama_biases", "mistral_window", "qwen2_window", "qwen3", "phi3_partial", "gemma")


def is_layerwise(folder: Path) -> bool:
    return open_layerwise(folder, load_tokenizer(folder).config) is not None


def weights_of(target: Target) -> dict[str, torch.Tensor]:
    """All tensors of a target by name, packed products unpacked."""
    found: dict[str, torch.Tensor] = {}
    for name, value in _tensors("", target, set()):
        found[name] = value.to_dense() if isinstance(value, torch.Tensor) and value.is_mkldnn else value  # type: ignore[assignment]
    for index, block in enumerate(target.blocks):
        for part in (block.attention, block.mlp):
            products = {key: value for key, value in vars(part).items() if isinstance(value, Linear)}
            found |= {f"{index} {key}": value.weight for key, value in products.items()}
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)} | {
        "head": target.lm_head.weight
    }


def by_transformers(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: str) -> Target:
    with monkeypatch.context() as patched:
        patched.setattr(targets, "open_layerwise", lambda *_, **__: None)
        return Target.load(folder, **options)


@pytest.mark.parametrize("options", [{}, {"weights": "float16"}, {"dtype": "bfloat16"}], ids=str)
@pytest.mark.parametrize("variant", DENSE)
def test_a_target_is_the_one_of_transformers_loader_bit_by_bit(
    variant: str, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_folder(tmp_path, variant)
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    assert is_layerwise(folder)
    theirs, ours = by_transformers(folder, monkeypatch, **options), Target.load(folder, **options)
    expected, found = weights_of(theirs), weights_of(ours)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert not any(tensor.is_inference() for tensor in found.values())
    assert (theirs.weights_sha256, theirs.form, theirs.parameters) == (ours.weights_sha256, ours.form, ours.parameters)
    assert (theirs._tied, theirs.dtype, theirs.info) == (ours._tied, ours.dtype, ours.info)
    assert torch.equal(theirs.next_logits(range(5, 30)), ours.next_logits(range(5, 30)))


def test_one_layer_is_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All weights were converted to float32 before the first was packed: 9.8 GB for a model that holds 3.6."""
    folder, alive = tiny_folder(tmp_path, layers=4), list[list[int]]()
    kind = type(family_of(load_tokenizer(folder).config))
    read_layer = kind.read_layer

    def watching(self: Any, model: Any, index: int, form: Any) -> Layer:
        layers = enumerate(model.model.layers)
        alive.append([at for at, layer in layers if not any(weight.is_meta for weight in layer.parameters())])
        return read_layer(self, model, index, form)

    monkeypatch.setattr(kind, "read_layer", watching)
    Target.load(folder, weights="float16")
    assert alive == [[0], [1], [2], [3]]


def test_shards_and_the_rotations_of_old_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_folder(tmp_path)
    expected = Target.load(folder).next_logits(range(5, 30))
    weights = load_file(folder / "model.safetensors")
    weights |= {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(4) for layer in range(3)}
    names = sorted(weights)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, kept in shards.items():
        save_file({name: weights[name] for name in kept}, folder / file, metadata={"format": "pt"})
    index = {"weight_map": {name: file for file, kept in shards.items() for name in kept}}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert is_layerwise(folder)
    assert torch.equal(Target.load(folder).next_logits(range(5, 30)), expected)


def test_other_files_are_left_to_transformers(tmp_path: Path) -> None:
    mixture = tiny_folder(tmp_path / "mixtral", "mixtral")
    pickled = tiny_folder(tmp_path / "pickled")
    weights = load_file(pickled / "model.safetensors")
    torch.save(weights, pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    renamed = tiny_folder(tmp_path / "renamed")
    without = {name.removeprefix("model."): weight for name, weight in weights.items()}
    save_file(without, renamed / "model.safetensors", metadata={"format": "pt"})
    for folder in (mixture, pickled, renamed):
        assert not is_layerwise(folder)
    assert Target.load(pickled).layers == Target.load(renamed).layers == 3


def test_a_weight_beyond_float16_is_refused_by_its_full_name(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][0, 0] = 65520.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with refused("weights_overflow", "model.layers.1.mlp.up_proj"):
        Target.load(folder, weights="float16")
