"""Labels are tokens ahead within their document; trained modules come back as they were saved, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_target
from torch import Tensor
from untrained import facts_of, untrained

from benchctl.decoding.model.layers import Layer
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.trainable import (
    FACTS,
    WEIGHTS,
    Labels,
    TrainingBatch,
    check_modules,
    load_modules,
    modules_sha256,
    read_facts,
    save_modules,
)
from benchctl.errors import UserError
from benchctl.methods.early_exit import EarlyExit
from benchctl.methods.medusa import Medusa


def batch(tokens: list[int], documents: list[int], weights: list[float] | None = None) -> TrainingBatch:
    """One row whose states nobody asks for."""
    row = torch.tensor([tokens])
    nothing = row.new_zeros(1, len(tokens), 2)

    def unused(states: Tensor) -> Tensor:
        return states

    def unasked(index: int) -> Layer:
        raise AssertionError(f"nobody asks for layer {index}")

    return TrainingBatch(
        tokens=row,
        weights=torch.ones(1, len(tokens)) if weights is None else torch.tensor([weights]),
        documents=torch.tensor([documents]),
        positions=row,
        states=(nothing,),
        final=nothing,
        norm=unused,
        head=unused,
        layer=unasked,
        rotary=unused,
    )


def ahead(labels: Labels) -> tuple[list[int], list[float]]:
    return labels.tokens[0].tolist(), labels.weights[0].tolist()


def test_the_token_ahead_counts_only_within_its_document() -> None:
    """The example of the docstring."""
    two = batch([5, 6, 7, 8, 9], [0, 0, 0, 1, 1])
    assert ahead(two.ahead(1)) == ([6, 7, 8, 9, 9], [1, 1, 0, 1, 0])
    assert ahead(two.ahead(2))[1] == [1, 0, 0, 0, 0]
    assert ahead(two.ahead(7))[1] == [0] * 5


def test_nothing_is_ahead_of_padding_nor_padding_ahead_of_anything() -> None:
    padded = batch([5, 6, 0, 0, 0], [0, 0, -1, -1, -1])
    assert ahead(padded.ahead(1))[1] == [1, 0, 0, 0, 0]
    assert ahead(padded.ahead(2))[1] == [0, 0, 0, 0, 0]


def test_the_weight_is_that_of_the_token_ahead() -> None:
    answered = batch([5, 6, 7, 8], [0, 0, 0, 0], [0.0, 0.3, 1.0, 1.0])
    assert ahead(answered.ahead(1))[1] == pytest.approx([0.3, 1.0, 1.0, 0.0])
    assert ahead(answered.ahead(2))[1] == pytest.approx([1.0, 1.0, 0.0, 0.0])


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("llama", dtype=torch.float32)


@pytest.fixture
def folder(target: Target, tmp_path: Path) -> str:
    """Modules of medusa for the target."""
    facts = facts_of("medusa", Medusa(), target, yardsticks={"head_1_top1": 0.5}, steps=12)
    save_modules(tmp_path / "heads", untrained(Medusa(), target), facts)
    return str(tmp_path / "heads")


def load(method: Medusa | EarlyExit, target: Target, folder: str) -> Any:
    return load_modules(method, "medusa" if isinstance(method, Medusa) else "early_exit", target, folder)


def test_modules_come_back_as_they_were_saved(target: Target, folder: str) -> None:
    module = load(Medusa(), target, folder)
    saved = untrained(Medusa(), target).state_dict()
    assert module.state_dict().keys() == saved.keys()
    assert all(torch.equal(value, saved[name]) for name, value in module.state_dict().items())
    assert not module.training and not any(weight.requires_grad for weight in module.parameters())


def test_modules_take_the_dtype_of_the_target(folder: str) -> None:
    half = tiny_target("llama", dtype=torch.bfloat16)
    facts = json.loads((Path(folder) / FACTS).read_text())
    facts["target"]["weights_sha256"] = half.weights_sha256
    (Path(folder) / FACTS).write_text(json.dumps(facts))
    assert {weight.dtype for weight in load(Medusa(), half, folder).parameters()} == {torch.bfloat16}


def test_loading_leaves_torch_s_generator_alone(target: Target, folder: str) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    load(Medusa(), target, folder)
    assert torch.equal(torch.rand(3), expected)


def test_the_facts_say_what_the_modules_are_for(target: Target, folder: str) -> None:
    facts = read_facts(folder)
    assert (facts.method, facts.options["heads"], facts.yardsticks) == ("medusa", 3, {"head_1_top1": 0.5})
    assert facts.target.weights_sha256 == target.weights_sha256
    assert json.loads((Path(folder) / FACTS).read_text())["steps"] == 12


def test_the_hash_tells_other_weights_and_other_facts(target: Target, folder: str) -> None:
    before = modules_sha256(folder)
    assert before == modules_sha256(folder)
    save_modules(Path(folder), untrained(Medusa(), target, seed=1), facts_of("medusa", Medusa(), target))
    weights = modules_sha256(folder)
    save_modules(Path(folder), untrained(Medusa(), target, seed=1), facts_of("medusa", Medusa(), target, steps=1))
    assert len({before, weights, modules_sha256(folder)}) == 3


def test_a_folder_whose_writing_was_interrupted_holds_no_modules(
    target: Target, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The facts of before must not stand beside the weights of after."""

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("benchctl.decoding.modules.trainable.save_file", full)
    with pytest.raises(OSError, match="no space left"):
        save_modules(Path(folder), untrained(Medusa(), target), facts_of("medusa", Medusa(), target))
    with pytest.raises(UserError, match="holds no modules.json with its modules.safetensors"):
        check_modules("medusa", folder)


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    def writing(folder: Path) -> None:
        (folder / name).write_text(text)

    return writing


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("yardsticks", None),
        ("yardsticks", {"head_1_top1": "half"}),
        ("yardsticks", {"head_1_top1": float("nan")}),
        ("yardsticks", {"head_1_top1": 50}),
        ("yardsticks", {"head_1_cosine": -1.01}),
        ("options", ["heads"]),
    ],
)
def test_facts_that_cannot_be_are_refused_rather_than_shape_a_tree(folder: str, field: str, value: Any) -> None:
    facts = json.loads((Path(folder) / FACTS).read_text())
    (Path(folder) / FACTS).write_text(json.dumps({**facts, field: value}))
    with pytest.raises(UserError, match=r"modules.json: cannot be read"):
        read_facts(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove(FACTS), "holds no modules.json"),
        (remove(WEIGHTS), "holds no modules.json with its modules.safetensors"),
        (write(FACTS, "{"), "modules.json: cannot be read"),
        (write(FACTS, "[]"), "modules.json: cannot be read"),
        (write(FACTS, '{"method": "medusa"}'), "modules.json: cannot be read"),
        (write(WEIGHTS, "torn"), "modules.safetensors cannot be read"),
    ],
)
def test_a_damaged_folder_is_refused(target: Target, folder: str, damage: Callable[[Path], None], message: str) -> None:
    damage(Path(folder))
    with pytest.raises(UserError, match=message):
        load(Medusa(), target, folder)


@pytest.mark.parametrize(
    ("method", "place", "message"),
    [
        (Medusa(), "nowhere", "nowhere: no such folder; name the folder that benchctl train wrote"),
        (Medusa(), "", "medusa cannot run: no trained modules; train some with: benchctl train medusa"),
        (EarlyExit(confidence="classifier"), "{folder}", "holds modules of medusa, not of early_exit"),
        (Medusa(heads=2), "{folder}", "have other shapes than medusa needs; they were trained with heads=3"),
    ],
)
def test_modules_that_are_not_there_or_are_others_are_refused(
    method: Medusa | EarlyExit, place: str, message: str, target: Target, folder: str
) -> None:
    with pytest.raises(UserError, match=message):
        load(method, target, place.format(folder=folder))


def test_modules_for_another_target_are_refused_and_both_are_named(target: Target, folder: str) -> None:
    other = tiny_target("llama", dtype=torch.float32, seed=1)
    with pytest.raises(UserError) as refusal:
        load(Medusa(), other, folder)
    message = str(refusal.value)
    assert f"made for tiny (weights {target.weights_sha256[:8]}, 3 layers of 32, vocabulary 96)" in message
    assert f"but the target has weights {other.weights_sha256[:8]}, 3 layers of 32, vocabulary 96" in message


def test_exits_at_other_layers_are_other_modules_though_there_are_as_many(target: Target, tmp_path: Path) -> None:
    lower, upper = (EarlyExit(confidence="classifier", exits=exits) for exits in ("1", "2"))
    save_modules(tmp_path / "exits", untrained(lower, target), facts_of("early_exit", lower, target))
    with pytest.raises(UserError, match="they were trained with exits=1"):
        load(upper, target, str(tmp_path / "exits"))
