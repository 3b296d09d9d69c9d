"""The target's own text: the same as transformers' own generation, written once, kept on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from disks import full_disk
from refusals import refused
from tiny import tiny_folder, tiny_model

from benchctl.training.data.chats import ChatFormat, Message, Record
from benchctl.training.modules import own_text
from benchctl.training.modules.frozen import FrozenTarget, find_target, load_target
from benchctl.training.modules.own_text import Answered, Answering, OwnText, Prompt, answer, pick_prompts
from reference.recipe import ReferenceRecipe

PROMPTS = [(Message("user", text),) for text in ("Who is red?", "Tell me about the park.", "Sum of 12 and 30?", "Lily")]
GREEDY = Answering(new_tokens=8)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> FrozenTarget:
    folder = tiny_folder(tmp_path_factory.mktemp("target") / "tiny", tie_word_embeddings=True)
    return load_target(find_target(str(folder)), torch.device("cpu"), "float32")


def own(target: FrozenTarget, folder: Path, settings: Answering = GREEDY) -> OwnText:
    return OwnText(target, ChatFormat.load(target.files.path), settings, folder, map(float, count()).__next__)


def answers(text: OwnText, prompts: Sequence[Prompt] = PROMPTS) -> list[list[int]]:
    documents = text.documents(prompts, lambda answered: None)
    return [document.turns[0].answer.tolist() for document in documents]


@pytest.mark.parametrize("family", ["llama", "mistral_window", "gemma", "olmoe", "olmo3", "gemma2"])
def test_a_batch_is_answered_as_transformers_answers_each_prompt_alone(family: str) -> None:
    """Prompts of different lengths, one of which ends early and leaves the batch."""
    model = tiny_model(family, dtype=torch.float32)
    prompts = [[1, 5, 9, 4, 8, 2, 7], [1, 40], [1, 33, 60, 12], [1, 77, 3]]
    alone = [_generated(model, prompt, stop=-1) for prompt in prompts]
    stop = alone[1][2]
    expected = [_generated(model, prompt, stop) for prompt in prompts]
    assert len({len(ids) for ids in expected}) > 1
    assert answer(model, prompts, frozenset([stop]), Answering(new_tokens=10)) == expected


def _generated(model: torch.nn.Module, prompt: list[int], stop: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < 10 and stop not in ids:
        ids.append(int(model(torch.tensor([prompt + ids])).logits[0, -1].argmax()))
    return ids


def test_sampled_answers_depend_on_the_seed_alone() -> None:
    model = tiny_model("llama", dtype=torch.float32)
    how = Answering(new_tokens=10, temperature=1.5, seed=3)
    first = answer(model, [[1, 5], [1, 7]], frozenset(), how)
    assert first == answer(model, [[1, 5], [1, 7]], frozenset(), how)
    assert first != answer(model, [[1, 5], [1, 7]], frozenset(), replace(how, seed=4))


def test_no_prompt_is_answered_twice(target: FrozenTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run was killed while its last line was being written: only that prompt, and a new one, are answered."""
    text = own(target, tmp_path)
    first = answers(text, PROMPTS[:3])
    lines = text.path.read_text().splitlines(keepends=True)
    text.path.write_text("".join(lines[:-1]) + lines[-1][:9])
    asked: list[int] = []

    def counting(model: object, prompts: Sequence[Sequence[int]], *rest: object) -> list[list[int]]:
        asked.append(len(prompts))
        return answer(target.model, prompts, target.files.tokenizer.stop_ids, GREEDY)

    monkeypatch.setattr(own_text, "answer", counting)
    again = answers(own(target, tmp_path))
    assert again[:3] == first
    assert asked == [2]
    assert len([json.loads(line) for line in text.path.read_text().splitlines()]) == 4


@pytest.mark.parametrize("rows", [1, 4])
def test_sampled_answers_after_a_kill_are_those_of_a_run_without_a_kill(
    target: FrozenTarget, tmp_path: Path, rows: int
) -> None:
    """Also after one within the lines of a batch."""
    how = Answering(new_tokens=8, temperature=1.5, rows=rows)
    whole, killed = own(target, tmp_path / "whole", how), own(target, tmp_path / "killed", how)
    expected = answers(whole)
    killed.path.parent.mkdir()
    killed.path.write_text("".join(whole.path.read_text().splitlines(keepends=True)[:2]))
    assert answers(killed) == expected


def test_a_full_disk_keeps_the_answers(target: FrozenTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "open", full_disk)
    with refused("cannot_write", "No space left on device", "answers", "--resume"):
        answers(own(target, tmp_path))


def test_other_settings_and_other_weights_have_files_of_their_own(target: FrozenTarget, tmp_path: Path) -> None:
    tokenizer = copy(target.files.tokenizer)
    tokenizer.stop_ids = frozenset({7})  # as another generation_config.json says
    others = [
        own(target, tmp_path, replace(GREEDY, temperature=0.5)),
        own(target, tmp_path, replace(GREEDY, new_tokens=9)),
        own(replace(target, weights_sha256="0" * 64), tmp_path),
        own(replace(target, files=replace(target.files, tokenizer=tokenizer)), tmp_path),
    ]
    assert len({text.path for text in [own(target, tmp_path), *others]}) == 5
    assert own(target, tmp_path, replace(GREEDY, rows=1)).path == own(target, tmp_path).path


def test_batches_are_told_and_prompts_without_room_are_left_out(target: FrozenTarget, tmp_path: Path) -> None:
    shown: list[Answered] = []
    prompts = [*PROMPTS[:3], (Message("user", "park " * 200),)]
    text = own(target, tmp_path, replace(GREEDY, rows=2))
    assert len(text.documents(prompts, shown.append)) == 3
    assert [(each.done, each.of) for each in shown] in ([(2, 3), (3, 3)], [(1, 3), (3, 3)])
    assert shown[-1].tokens_per_s > 0
    with refused("answers_too_long", "200 tokens", "--answer-tokens"):
        own(target, tmp_path, replace(GREEDY, new_tokens=200)).documents(prompts, shown.append)


def test_prompts_are_picked_by_the_weight_of_their_source_and_never_twice() -> None:
    records = [Record.chat("unit", f"question {number % 50}", "answer") for number in range(100)]
    records += [Record.chat("p3/wiki_bio", "never read", "answer"), Record.plain("unit", "text")]
    picked = pick_prompts(records, 500, seed=0, recipe=ReferenceRecipe())
    assert sorted(prompt[0].content for prompt in picked) == sorted({f"question {number}" for number in range(50)})
    first, again, other = (pick_prompts(records, 7, seed, recipe=ReferenceRecipe()) for seed in (0, 0, 1))
    assert first == again != other


def test_prompts_of_data_that_are_not_weighed_are_picked_whatever_their_source() -> None:
    """Of 600 chats with the source tldr, a data set of the recipe, 16 were answered."""
    records = [Record.chat("tldr", f"question {number}", "answer") for number in range(600)]
    assert len(pick_prompts(records, 1000, seed=0, recipe=None)) == 600
    assert len(pick_prompts(records, 1000, seed=0, recipe=ReferenceRecipe())) < 60
