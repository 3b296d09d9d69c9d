"""Labels are tokens ahead within their document; trained modules come back as they were saved, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from disks import full_disk
from refusals import refused
from tiny import tiny_target
from untrained import facts_of, untrained

from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.draft_vocabulary import write_draft_vocabulary
from benchctl.decoding.modules.folders import FACTS, WEIGHTS, check_modules, load_modules, modules_sha256, save_modules
from benchctl.decoding.modules.trainable import TrainingBatch
from benchctl.methods.early_exit import EarlyExit
from benchctl.methods.medusa import Medusa


def ahead(documents: list[int], weights: list[float], distance: int) -> tuple[list[int], list[float]]:
    """Tokens 5, 6, 7 .. in one row whose states nobody asks for, and the weights of those tokens ahead."""
    row, unused = torch.arange(5, 5 + len(documents))[None], [None] * 6
    batch = TrainingBatch(row, torch.tensor([weights]), torch.tensor([documents]), row, *unused)  # type: ignore[arg-type]
    labels = batch.ahead(distance)
    return labels.tokens[0].tolist(), labels.weights[0].tolist()


@pytest.mark.parametrize(
    ("documents", "weights", "distance", "expected"),
    [
        ([0, 0, 0, 1, 1], [1, 1, 1, 1, 1], 1, [1, 1, 0, 1, 0]),  # the example of the docstring
        ([0, 0, 0, 1, 1], [1, 1, 1, 1, 1], 2, [1, 0, 0, 0, 0]),
        ([0, 0, 0, 1, 1], [1, 1, 1, 1, 1], 7, [0, 0, 0, 0, 0]),
        ([0, 0, -1, -1, -1], [1, 1, 1, 1, 1], 1, [1, 0, 0, 0, 0]),  # padding is nobody's
        ([0, 0, -1, -1, -1], [1, 1, 1, 1, 1], 2, [0, 0, 0, 0, 0]),
        ([0, 0, 0, 0], [0.0, 0.5, 1, 1], 1, [0.5, 1, 1, 0]),
        ([0, 0, 0, 0], [0.0, 0.5, 1, 1], 2, [1, 1, 0, 0]),
    ],
)
def test_the_weight_is_that_of_the_token_ahead_within_its_document(
    documents: list[int], weights: list[float], distance: int, expected: list[float]
) -> None:
    tokens, got = ahead(documents, weights, distance)
    assert got == expected
    assert [token for token, weight in zip(tokens, got, strict=True) if weight] == [
        5 + distance + place for place, weight in enumerate(expected) if weight
    ]


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


def test_the_hash_tells_other_weights_facts_and_draft_vocabularies(target: Target, folder: str) -> None:
    before = modules_sha256(folder)
    assert before == modules_sha256(folder)
    save_modules(Path(folder), untrained(Medusa(), target, seed=1), facts_of("medusa", Medusa(), target))
    weights = modules_sha256(folder)
    save_modules(Path(folder), untrained(Medusa(), target, seed=1), facts_of("medusa", Medusa(), target, steps=1))
    facts = modules_sha256(folder)
    write_draft_vocabulary(Path(folder), torch.tensor([1, 2]))
    assert len({before, weights, facts, modules_sha256(folder)}) == 4


def test_an_interrupted_folder_holds_no_modules(target: Target, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The facts of before must not stand beside the weights of after."""
    monkeypatch.setattr("benchctl.decoding.modules.folders.save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_modules(Path(folder), untrained(Medusa(), target), facts_of("medusa", Medusa(), target))
    with refused("no_modules_folder", folder, FACTS, WEIGHTS):
        check_modules("medusa", folder)


@pytest.mark.parametrize(
    ("file", "text", "id"),
    [
        (FACTS, None, "no_modules_folder"),
        (WEIGHTS, None, "no_modules_folder"),
        (FACTS, "{", "file_not_readable"),
        (FACTS, "[]", "file_not_readable"),
        (FACTS, '{"method": "medusa"}', "file_not_readable"),
        (WEIGHTS, "torn", "file_not_readable"),
        (FACTS, {"yardsticks": None}, "file_not_readable"),
        (FACTS, {"yardsticks": {"head_1_top1": "half"}}, "file_not_readable"),
        (FACTS, {"yardsticks": {"head_1_top1": float("nan")}}, "file_not_readable"),
        (FACTS, {"yardsticks": {"head_1_top1": 50}}, "file_not_readable"),
        (FACTS, {"yardsticks": {"head_1_cosine": -1.01}}, "file_not_readable"),
        (FACTS, {"options": ["heads"]}, "file_not_readable"),
    ],
)
def test_a_damaged_folder_is_refused(
    target: Target, folder: str, file: str, text: str | dict[str, Any] | None, id: str
) -> None:
    """``text`` is what the file holds instead, or the facts that change in it; None removes the file."""
    path = Path(folder) / file
    if isinstance(text, dict):
        text = json.dumps({**json.loads(path.read_text()), **text})
    path.unlink() if text is None else path.write_text(text)
    with refused(id, file):
        load(Medusa(), target, folder)


@pytest.mark.parametrize(
    ("method", "place", "id", "facts"),
    [
        (Medusa(), "nowhere", "no_modules_folder", ("nowhere",)),
        (Medusa(), "", "modules_missing", ("benchctl train medusa",)),
        (EarlyExit(confidence="classifier"), "{folder}", "modules_of_other_method", ("medusa", "early_exit")),
        (Medusa(heads=4), "{folder}", "trained_for_fewer", ("heads=3", "heads=4")),
    ],
)
def test_modules_that_are_not_there_or_are_others_are_refused(
    method: Medusa | EarlyExit, place: str, id: str, facts: tuple[str, ...], target: Target, folder: str
) -> None:
    with refused(id, *facts):
        load(method, target, place.format(folder=folder))


def test_modules_for_another_target_are_refused_and_both_are_named(target: Target, folder: str) -> None:
    other = tiny_target("llama", dtype=torch.float32, seed=1)
    made, given = (f"weights {each.weights_sha256[:8]}, 3 layers of 32, vocabulary 96" for each in (target, other))
    with refused("modules_of_other_target", f"tiny ({made})", given):
        load(Medusa(), other, folder)
