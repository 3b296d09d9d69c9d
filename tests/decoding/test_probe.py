"""No model loads unless this forward says what transformers' own says: in every dtype, and only then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from tiny import FAMILIES, tiny_folder
from transformers import AutoModelForCausalLM

from benchctl.decoding.model import families
from benchctl.decoding.model import target as target_module
from benchctl.decoding.model.families import Parts
from benchctl.decoding.model.layers import Attention, Mlp
from benchctl.decoding.model.target import Target

IDS = torch.randint(0, 320, (40,), generator=torch.Generator().manual_seed(7)).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_loads_in_every_dtype(family: str, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, family)
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        logits = Target.load(folder, dtype=dtype).next_logits([1, 7])
        assert logits.isfinite().all() and logits.dtype == getattr(torch, dtype)


def _rescaled(scale: float) -> Callable[..., Attention]:
    return lambda **parts: Attention(**{**parts, "scale": scale * parts["scale"]})


def _louder(model: Any, fast: bool) -> Parts:
    parts = families.read_parts(model, fast)
    parts.final_norm.gain = 1.02 * parts.final_norm.gain
    return parts


def _against_time(model: Any, fast: bool) -> Parts:
    parts = families.read_parts(model, fast)
    return replace(parts, rotary=parts.rotary.conj().resolve_conj())


MISTAKES = {
    "queries scaled by a tenth too much": (families, "Attention", _rescaled(1.1)),
    "final norm two in a hundred too loud": (target_module, "read_parts", _louder),
    "rotations the other way round": (target_module, "read_parts", _against_time),
    "another activation": (families, "Mlp", lambda gate_up, down, act: Mlp(gate_up, down, torch.relu)),
}


@pytest.mark.parametrize(("module", "name", "mistake"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_forward_that_differs_is_refused(
    module: Any, name: str, mistake: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, mistake)
    for dtype in ("float32", "float64"):
        with refused("logits_differ", "'llama'"):
            Target.load(folder, dtype=dtype)


@pytest.mark.parametrize("mistake", ["rotations the other way round", "another activation"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_part_read_wrongly_is_seen_through_the_rounding_of_half_precision(
    dtype: str, mistake: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*MISTAKES[mistake])
    with refused("logits_differ", "'llama'"):
        Target.load(folder, dtype=dtype)


def _change(folder: Path, change: Callable[[Any], None]) -> Path:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        change(model.model)
    model.save_pretrained(folder)
    return folder


def test_a_model_that_overflows_the_dtype_is_refused_in_it_alone(tmp_path: Path) -> None:
    folder = _change(tiny_folder(tmp_path), lambda model: model.norm.weight.mul_(1e5))
    with refused("logits_differ", "float16", "--dtype"):
        Target.load(folder, dtype="float16")
    for dtype in ("float32", "bfloat16"):
        assert Target.load(folder, dtype=dtype).next_logits([1, 7]).isfinite().all()


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    folder = _change(tiny_folder(tmp_path), lambda model: model.layers[1].mlp.down_proj.weight[0, 0].fill_(torch.nan))
    with refused("logits_differ", "by nan"):
        Target.load(folder)


@torch.inference_mode()
def test_a_window_in_a_llama_configuration_is_ignored_as_transformers_ignores_it(tmp_path: Path) -> None:
    window: dict[str, Any] = {"layer_types": ["sliding_attention"] * 3, "sliding_window": 6, "use_sliding_window": True}
    folder = tiny_folder(tmp_path, **window)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert model.config.sliding_window == 6
    their_logits = model(torch.tensor([IDS])).logits[0, -1]
    torch.testing.assert_close(Target.load(folder).next_logits(IDS), their_logits, rtol=0.0, atol=5e-4)
