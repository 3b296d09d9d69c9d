"""Checkpoints in other forms: quantised weights are the values they stand for, other folders are refused by name."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures_run import make_settings
from refusals import refused
from safetensors.torch import load_file, save_file
from tiny import tiny_folder

from benchctl.decoding.model.opaque import OpaqueTarget, check_opaque
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import load_tokenizer
from benchctl.measuring.check import check
from benchctl.training.modules.frozen import find_target, load_target

BLOCK = 16
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
IDS = [5, 9, 200, 31, 7, 7, 90]


def configure(folder: Path, **fields: object) -> Path:
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **fields}))
    return folder


def rewrite(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    contiguous = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})


def blocks_of(weight: torch.Tensor) -> torch.Tensor:
    rows, columns = weight.shape
    return weight.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)


def fp8_and_plain(path: Path) -> tuple[Path, Path]:
    """A llama with blocks of float8 values and a scale each, and one with their products; gains are bfloat16."""
    folders = tuple(tiny_folder(path / name, hidden_size=64, intermediate_size=128) for name in ("fp8", "plain"))
    stored: dict[str, torch.Tensor] = {}
    plain: dict[str, torch.Tensor] = {}
    for name, weight in load_file(folders[0] / "model.safetensors").items():
        if "_proj" not in name:
            stored[name] = plain[name] = weight.bfloat16()
            continue
        scale = blocks_of(weight).abs().amax((1, 3)) / 448
        spread = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        stored[name], stored[f"{name}_scale_inv"] = (weight / spread).to(torch.float8_e4m3fn), scale
        plain[name] = stored[name].float() * spread
    rewrite(folders[0], stored)
    rewrite(folders[1], plain)
    configure(folders[0], quantization_config={"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]})
    return folders[0], folders[1]


def mxfp4_and_plain(path: Path) -> tuple[Path, Path]:
    """A gpt-oss whose experts have two values in a byte and a power of two for 32, and one with these values."""
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 64}
    sizes |= {"num_local_experts": 2, "num_experts_per_tok": 2}
    folders = tuple(tiny_folder(path / name, "gpt_oss", **sizes) for name in ("mxfp4", "plain"))
    generator = torch.Generator().manual_seed(3)
    stored = load_file(folders[0] / "model.safetensors")
    plain = dict(stored)
    for name in [name for name in stored if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, width, outputs = stored.pop(name).shape
        packed = torch.randint(0, 256, (experts, outputs, width // 32, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(120, 126, (experts, outputs, width // 32), generator=generator, dtype=torch.uint8)
        table = torch.tensor([*E2M1, *(-value for value in E2M1)])
        values = torch.stack((table[(packed & 15).long()], table[(packed >> 4).long()]), -1).flatten(3)
        values = (values * 2.0 ** (scales.float() - 127)[..., None]).flatten(2)
        plain[name], stored[f"{name}_blocks"], stored[f"{name}_scales"] = values.transpose(1, 2), packed, scales
    rewrite(folders[0], stored)
    rewrite(folders[1], plain)
    configure(folders[0], quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    return folders[0], folders[1]


@pytest.mark.parametrize("make", [fp8_and_plain, mxfp4_and_plain])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_quantised_weights_are_the_values_they_stand_for(make: Any, dtype: str, tmp_path: Path) -> None:
    quantised, plain = (Target.load(folder, dtype=dtype) for folder in make(tmp_path))
    assert torch.equal(quantised.next_logits(IDS), plain.next_logits(IDS))
    assert quantised.dtype == quantised.next_logits(IDS).dtype == plain.dtype
    assert quantised.weights_sha256 != plain.weights_sha256


def test_so_they_are_for_float16_weights_the_other_executor_and_training(tmp_path: Path) -> None:
    folders = fp8_and_plain(tmp_path)
    for load in (
        lambda folder: Target.load(folder, weights="float16").next_logits(IDS),
        lambda folder: OpaqueTarget.load_whole(folder, dtype="bfloat16").next_logits(IDS),
        lambda folder: (
            load_target(find_target(str(folder)), torch.device("cpu"), "float32").model(torch.tensor([IDS])).logits
        ),
    ):
        assert torch.equal(*map(load, folders))


def test_one_line_says_so(run_folder: Path, tmp_path: Path) -> None:
    quantised, plain = fp8_and_plain(tmp_path)
    settings = make_settings(run_folder, tmp_path / "out.jsonl")
    for folder, count in ((quantised, 1), (plain, 0)):
        notices: list[str] = []
        asked = replace(settings, models=replace(settings.models, target=str(folder), draft=""))
        check(replace(asked, methods=("prompt_lookup",)), notices.append)
        assert sum("fp8" in notice for notice in notices) == count


@pytest.mark.parametrize("form", ["gptq", "awq", "bitsandbytes", "unheard_of"])
def test_forms_that_stand_for_no_plain_values_here_are_refused(form: str, tmp_path: Path) -> None:
    folder = configure(tiny_folder(tmp_path), quantization_config={"quant_method": form, "bits": 4})
    tokenizer = load_tokenizer(folder)
    with refused("quantised_checkpoint", form):
        tokenizer.check_layers()
    with refused("quantised_checkpoint", form):
        check_opaque(tokenizer.config)


@pytest.mark.parametrize(("form", "package"), [("fp8", "accelerate"), ("compressed-tensors", "compressed-tensors")])
def test_a_missing_package_is_named(form: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = configure(tiny_folder(tmp_path), quantization_config={"quant_method": form})
    without = package.replace("-", "_")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == without else find_spec(name))
    with refused("quantised_checkpoint", form, f"pip install {package}"):
        load_tokenizer(folder).check_layers()


@pytest.mark.parametrize("has_model", [False, True])
def test_an_adapter_is_never_ignored(has_model: bool, tmp_path: Path) -> None:
    """Next to a whole model it was passed over without a word; alone it was "Unrecognized model"."""
    folder = tiny_folder(tmp_path / "model")
    if not has_model:
        shutil.rmtree(folder)
        folder.mkdir()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "some/base", "peft_type": "LORA"}')
    with refused("adapter", str(folder), "some/base", "merge_and_unload"):
        load_tokenizer(folder)


def test_a_folder_with_a_gguf_file_alone_names_the_file(tmp_path: Path) -> None:
    """It was "Unrecognized model"."""
    (tmp_path / "model-q4.gguf").write_bytes(b"GGUF")
    with refused("gguf_in_folder", str(tmp_path / "model-q4.gguf")):
        load_tokenizer(tmp_path)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    """The sentence of transformers was cut after its first line."""
    folder = tiny_folder(tmp_path)
    for file in folder.glob("*token*"):
        file.unlink()
    with refused("no_tokenizer", str(folder), "tokenizer.json"):
        load_tokenizer(folder)


def test_a_tokenizer_that_cannot_be_read_is_not_cut_in_mid_sentence(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    (folder / "tokenizer.json").unlink()
    with refused("model_not_loadable", str(folder), "(1)", "(2)", "(3)"):
        load_tokenizer(folder)


def test_program_code_of_a_model_is_not_run(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    (folder / "configuration_x.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    configure(folder, model_type="my_llama", auto_map={"AutoConfig": "configuration_x.C"})
    with refused("custom_code", str(folder)):
        load_tokenizer(folder)
    assert not (tmp_path / "ran").exists()
