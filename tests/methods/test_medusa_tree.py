"""Medusa's sparse tree: measured on batches, kept with the heads, used for whatever nodes and heads are asked for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import answer, pair, prompt_of
from target_batches import batch_of
from test_sampled_methods import PROMPT, SAMPLING, TOKENS, model, truth
from torch import nn
from untrained import facts_of, untrained

from benchctl.conformance.distributions import distribution, total_variation
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.trainable import FACTS, save_modules
from benchctl.errors import UserError
from benchctl.methods.medusa import Medusa
from benchctl.methods.medusa.heads import path_shares, sparse_plan, tree_findings

TOLD = {"0": 0.6, "0 1": 0.5, "0 1 0": 0.4, "1": 0.2, "1 2": 0.1}  # ends in second and third picks


def test_a_path_is_right_where_all_its_picks_are() -> None:
    """Counted by hand on two texts, the second of which is too short for any place to have three tokens ahead."""
    models, heads = pair("llama"), untrained(Medusa(heads=2), pair("llama").target)
    texts = [prompt_of(40), [7, 8, 9]]
    batches = [batch_of(models.naive, texts), batch_of(models.naive, [prompt_of(25, 1)])]
    right: Counter[tuple[int, ...]] = Counter()
    places = 0
    for batch, text in ((batches[0], texts[0]), (batches[1], prompt_of(25, 1))):
        first, second = (
            head(batch.final[0]).argsort(-1, descending=True)[:, :10].tolist() for head in heads.children()
        )
        for at in range(len(text) - 3):
            places += 1
            if text[at + 2] in first[at]:
                rank = first[at].index(text[at + 2])
                right[(rank,)] += 1
                if text[at + 3] in second[at]:
                    right[(rank, second[at].index(text[at + 3]))] += 1
    assert len(right) > 10
    assert path_shares(heads, batches) == pytest.approx({path: count / places for path, count in right.items()})


def test_a_place_counts_as_much_as_the_least_of_the_tokens_it_has_to_predict() -> None:
    """Weights 0, 0, 0, 1, 0.5: of the five tokens' two places, the first weighs 0 and the second a half."""
    models, heads = pair("llama"), untrained(Medusa(heads=2), pair("llama").target)
    batch = batch_of(models.naive, [[5, 6, 7, 8, 9]], [[0.0, 0.0, 0.0, 1.0, 0.5]])
    first, second = (head(batch.final[0, 1]).argsort(descending=True).tolist() for head in heads.children())
    ranks = first.index(8), second.index(9)
    wanted = {ranks[:depth]: 1.0 for depth in (1, 2) if max(ranks[:depth]) < 10}
    assert path_shares(heads, [batch]) == wanted


def test_nothing_measured_is_nothing_told() -> None:
    heads = untrained(Medusa(heads=2), pair("llama").target)
    assert tree_findings(path_shares(heads, [])) == {}
    assert path_shares(heads, [batch_of(pair("llama").naive, [[5, 6]])]) == {}


def test_the_likeliest_paths_are_told_first_and_no_more_than_are_kept() -> None:
    shares: dict[tuple[int, ...], float] = {}
    shares |= {(first, second): 0.9 - 0.01 * (10 * first + second) for first in range(9) for second in range(9)}
    shares |= {(*path, third): share / 2 for path, share in shares.items() for third in range(4)}
    shares |= {(first,): 0.95 for first in range(9)}
    told = tree_findings(shares)
    assert len(told) == 256 and list(told.values()) == sorted(told.values(), reverse=True)
    assert list(told)[:11] == [*map(str, range(9)), "0 0", "0 1"]
    assert len(sparse_plan(told, 3, 256, 100)) == 256


def test_what_is_told_makes_the_tree_of_any_nodes_and_heads() -> None:
    assert sparse_plan(TOLD, 3, 5, 100) == ((0,), (1,), (0, 1), (1, 2), (0, 1, 0))
    assert sparse_plan(TOLD, 3, 3, 100) == ((0,), (0, 1), (0, 1, 0))
    assert sparse_plan(TOLD, 2, 3, 100) == ((0,), (1,), (0, 1))
    assert sparse_plan(TOLD, 1, 15, 100) == ((0,), (1,))


def _saved(folder: Path, heads: nn.Module, target: Target, tree: Any) -> str:
    trained = Medusa(heads=len(list(heads.children())))
    save_modules(folder, heads, facts_of("medusa", trained, target, findings={"tree": tree}))
    return str(folder)


def test_the_tree_beside_the_heads_is_the_one_drafted(tmp_path: Path) -> None:
    models, heads = pair("llama"), untrained(Medusa(), pair("llama").target)
    method = Medusa(modules=_saved(tmp_path, heads, models.target, TOLD))
    method.prepare(models.target)
    got = decode(method, models.target, DecodeRequest(prompt_of(13), 40))
    assert list(got.token_ids) == answer("llama", 0, 13)
    assert {(step.rows, step.drafted) for step in got.steps[:-3]} == {(6, 3)}


def test_fewer_heads_than_were_trained_are_the_first_ones(tmp_path: Path) -> None:
    models, heads = pair("llama"), untrained(Medusa(), pair("llama").target)
    fewer = nn.ModuleList(list(heads.children())[:2])
    told = {path: share for path, share in TOLD.items() if len(path.split()) < 3}
    steps = []
    for folder in (
        _saved(tmp_path / "3", heads, models.target, TOLD),
        _saved(tmp_path / "2", fewer, models.target, told),
    ):
        method = Medusa(modules=folder, heads=2)
        method.prepare(models.target)
        steps.append(decode(method, models.target, DecodeRequest(prompt_of(13), 40)).steps)
    assert steps[0] == steps[1]


@pytest.mark.parametrize("told", [TOLD, {"0": 0.5, "1": 0.4, "2": 0.3, "2 0": 0.2, "2 3": 0.1}])
def test_sampled_answers_have_the_target_s_distribution_whatever_the_tree(
    told: Mapping[str, float], tmp_path: Path
) -> None:
    """Siblings are tried in the order of their rows, below second and third picks too."""
    method = Medusa(modules=_saved(tmp_path, untrained(Medusa(), model(1)), model(1), told))
    method.prepare(model(1))
    found = distribution(
        lambda chance: decode(method, model(1), DecodeRequest(PROMPT, TOKENS, SAMPLING, clock=float)).token_ids
    )
    assert total_variation(found, truth()) < 1e-9


@pytest.mark.parametrize(
    "tree",
    [
        {"0 0": 0.1},
        {"": 0.1},
        {"10": 0.1},
        {"-1": 0.1},
        {"first": 0.1},
        {"0": 0.1, "0 0": 0.2},
        {"0": float("nan")},
        {"0": None},
        ["0"],
    ],
)
def test_a_tree_that_training_cannot_have_written_is_refused(tmp_path: Path, tree: Any) -> None:
    target = pair("llama").target
    method = Medusa(modules=_saved(tmp_path, untrained(Medusa(), target), target, tree))
    with pytest.raises(UserError, match=r"modules.json holds no tree .*train the heads again"):
        method.prepare(target)


def test_more_heads_than_were_trained_are_refused_by_the_facts_alone(tmp_path: Path) -> None:
    target = pair("llama").target
    folder = _saved(tmp_path, untrained(Medusa(), target), target, {})
    facts = json.loads((tmp_path / FACTS).read_text())
    with pytest.raises(UserError, match="holds 3 heads, and heads=4 asks for more; give fewer, or train as many"):
        Medusa(heads=4).refuse(folder, facts["options"])
    with pytest.raises(UserError, match="holds 3 heads, and heads=4 asks for more"):
        Medusa(modules=folder, heads=4).prepare(target)


def test_the_measured_tree_drafts_better_than_the_assumed_one(tmp_path: Path) -> None:
    """On the target's own answers, whose places are the batches it was measured on."""
    models, heads = pair("llama"), untrained(Medusa(), pair("llama").target)
    texts = [[*prompt_of(13, seed), *answer("llama", seed, 13)] for seed in range(1)]
    with torch.no_grad():
        told = tree_findings(path_shares(heads, [batch_of(models.naive, texts)]))
    steps = []
    for name, tree in (("measured", told), ("assumed", {})):
        method = Medusa(modules=_saved(tmp_path / name, heads, models.target, tree), nodes=5)
        method.prepare(models.target)
        steps.append(len(decode(method, models.target, DecodeRequest(prompt_of(13), 40)).steps))
    assert steps[0] < steps[1]
