"""DEED in its own setting: exits on the decoder of a T5 that has learnt something, trained from the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from fixtures_training import COMMON, done
from tiny_encoder import END, letters, reversing_folder, write_reversals

from benchctl.conformance.method_under_test import facts_of
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.trainable import Trainable, save_modules
from benchctl.registry import build

PROMPTS = [[*text, END] for text in letters(24, seed=3)]  # none of those that anything learnt from
EXITS = (1, 2, 3)


@dataclass(frozen=True)
class Made:
    """Places: of the target, of modules that were trained for it, and of modules as training finds them."""

    target: Path
    trained: Path
    bare: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("reversing")
    places = Made(reversing_folder(folder / "t5"), folder / "trained", folder / "bare")
    write_reversals(folder / "data", train=600, held_out=40)
    words = ("--model", places.target, "--data", folder / "data", "--out", places.trained, "--steps", 100)
    rows = ("--row-tokens", 64, "--micro-rows", 4, "--batch-tokens", 256, "--rate", 2e-2)
    done("train", "deed", *words, *rows, *COMMON)
    target, method = Target.load(places.target), build("deed")
    assert isinstance(method, Trainable)
    module = method.build(target.info, target.lm_head.weight)
    save_modules(places.bare, module, facts_of("deed", method, target))
    return places


def answers(label: str, target: Target) -> list[Generation]:
    method = build(label)
    method.prepare(target)
    return [decode(method, target, DecodeRequest(prompt, 12)) for prompt in PROMPTS]


@pytest.mark.slow
def test_the_target_turns_letters_round(made: Made) -> None:
    """Else what follows would be about noise."""
    said = [list(generation.token_ids) for generation in answers("autoregressive", Target.load(made.target))]
    right = sum(tokens == [*reversed(prompt[:-1]), END] for tokens, prompt in zip(said, PROMPTS, strict=True))
    assert right >= 0.8 * len(PROMPTS)


@pytest.mark.slow
def test_trained_exits_leave_earlier_and_say_more_of_what_the_target_says(made: Made) -> None:
    target = Target.load(made.target)
    whole = answers("autoregressive", target)
    layers, agreed = dict[str, float](), dict[str, float]()
    for name, folder in (("trained", made.trained), ("bare", made.bare)):
        left = answers(f"deed[mode=exit,threshold=0.8,modules={folder}]", target)
        layers[name] = sum(sum(one.layers) for one in left) / sum(len(one.layers) for one in left)
        agreed[name] = sum(one.token_ids == other.token_ids for one, other in zip(left, whole, strict=True))
    assert layers["trained"] < layers["bare"] - 0.15
    assert agreed["trained"] >= 0.8 * len(PROMPTS)
