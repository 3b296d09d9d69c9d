"""EAGLE: steps equal a replay without a cache, its cache equals a fresh one, and training runs what decoding runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from naive_eagle import NaiveEagle
from oracles import TreeDrafter
from refusals import refused
from runs import FIRST_FAST, IDS, Pair, answer, check_tree, generate, pair, prompt_of
from target_batches import assert_learnt, batch_of, kl_inside, learnt, saved
from torch import Tensor
from untrained import untrained

from benchctl.decoding.modules.draft_vocabulary import DraftVocabulary, write_draft_vocabulary
from benchctl.decoding.modules.folders import check_sizes, trained_options
from benchctl.methods.eagle import Eagle
from benchctl.methods.eagle.head import Drafter, EagleModule, default_taps
from benchctl.methods.eagle.training import Unrolled

TAPS = (1, 2, 3)
VERSIONS = ("1", "3", "3.1")
TREES: dict[str, Any] = {
    "chain": {"tree": "chain", "draft_tokens": 3},
    "static": {"tree": "3x2x2"},
    "dynamic": {"width": 3, "draft_tokens": 4, "nodes": 7, "confidence": 0.0},
    "large": {"width": 30, "draft_tokens": 2, "nodes": 99, "confidence": 0.0},
    "confident": {"width": 3, "confidence": 0.2},
}


@cache
@torch.inference_mode(False)
def module_of(version: Any, family: str, seed: int) -> EagleModule:
    method = Eagle(version=version)
    module: EagleModule = untrained(method, pair(family, seed).target)
    return module


def naive_of(method: Eagle, module: EagleModule, models: Pair, ids: Tensor | None = None) -> NaiveEagle:
    weights = {name: weight.double() for name, weight in module.state_dict().items()}
    taps = TAPS if method.version in ("3", "3.1") else ()
    head_dim = models.target.blocks[0].attention.head_dim
    return NaiveEagle(models.naive, weights, taps, method.version == "3.1", ids=ids, head_dim=head_dim)


def drafter_of(method: Eagle, naive: NaiveEagle) -> TreeDrafter:
    if method.tree == "dynamic":
        return naive.dynamic(method.width, method.draft_tokens, method.nodes, method.confidence)
    widths = [1] * method.draft_tokens if method.tree == "chain" else list(map(int, method.tree.split("x")))
    return naive.shaped(widths)


with_modules = partial(saved, "eagle")


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
@torch.inference_mode()
def test_steps_equal_a_replay_without_a_cache(family: str, seed: int, version: Any, tree: str, tmp_path: Path) -> None:
    """A prompt of one token drafts too: its feature and the first new token are known."""
    models, method = pair(family, seed), Eagle(version=version, **TREES[tree])
    module = module_of(version, family, seed)
    method = with_modules(method, module, models, tmp_path)
    steps = check_tree(method, drafter_of(method, naive_of(method, module, models)), family, seed)
    assert any(step.accepted for step in steps) or family != "llama"


@pytest.mark.parametrize(("version", "head"), [("1", "trained"), ("3", "trained"), ("3", "target")])
@torch.inference_mode()
def test_over_a_draft_vocabulary_too(version: Any, head: Any, tmp_path: Path) -> None:
    models, method = pair("llama"), Eagle(version=version, width=3, head=head)
    method.vocabulary = DraftVocabulary(IDS)
    module: EagleModule = untrained(method, models.target)
    assert (module.lm_head is None) == (version == "1" or head == "target")
    assert module.lm_head is None or module.lm_head.weight.shape[0] == len(IDS)
    method = with_modules(method, module, models, tmp_path)
    write_draft_vocabulary(tmp_path, IDS)
    draft = drafter_of(method, naive_of(method, module, models, IDS))
    assert any(step.accepted for step in check_tree(method, draft))


@pytest.mark.parametrize("version", VERSIONS)
@torch.inference_mode()
def test_the_layer_s_cache_equals_a_fresh_one_after_every_commit(
    version: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = pair("llama")
    method = with_modules(Eagle(version=version, width=3), module_of(version, "llama", 0), models, tmp_path)
    method.prepare(models.target)
    original, lengths = Drafter.read, list[int]()
    fresh = Eagle(version=version, modules=str(tmp_path))
    fresh.prepare(models.target)
    text = [*prompt_of(13), *answer("llama", 0, 13)]
    states = models.naive.states(text)

    def read(drafter: Drafter, features: Sequence[Tensor], tokens: Sequence[int]) -> None:
        original(drafter, features, tokens)
        length = drafter.length
        lengths.append(length)
        assert list(tokens) == text[length + 1 - len(tokens) : length + 1]
        other = fresh._drafter
        other.start(len(text))
        original(other, [states[tap][:length] for tap in drafter.taps], text[1 : length + 1])
        ours, theirs = (each._side.cache.kv[0][:, :length] for each in (drafter, other))
        assert (ours - theirs).abs().max() < 1e-12 and drafter._side.cache.lengths == [length]

    monkeypatch.setattr(Drafter, "read", read)
    got = generate(method, models, prompt_of(13))
    assert list(got.token_ids) == text[13:]
    assert lengths[0] == 13 and len(lengths) == len(set(lengths)) > 5


@pytest.mark.parametrize("version", VERSIONS)
@torch.inference_mode(False)
def test_training_passes_are_the_rows_of_a_chain_that_is_always_right(version: Any) -> None:
    """Pass i at token t is the state behind t + 1 tokens of text and i drafted tokens that are the text's own."""
    models = pair("llama")
    module = module_of(version, "llama", 0)
    method = Eagle(version=version)
    naive = naive_of(method, module, models)
    texts = [prompt_of(14), prompt_of(9)]
    batch = batch_of(models.naive, texts)
    with torch.no_grad():
        passes = list(Unrolled(module, batch, TAPS).passes(3))
    for row, text in enumerate(texts):
        for number, states in enumerate(passes):
            for at in range(len(text) - 1 - number):
                expected = naive.state(tuple(text[: at + 2]), tuple(text[at + 2 : at + 2 + number]))
                torch.testing.assert_close(states[row, at].double(), expected, rtol=0.0, atol=2e-4)


@pytest.mark.parametrize("objective", ["3", "eagle", "hass"])
@torch.inference_mode(False)
def test_the_loss_is_the_weighted_sum_over_passes(objective: str) -> None:
    """Weight 0 teaches nothing; the last token has none after it; all from the formulas of the papers."""
    models = pair("llama")
    version: Any = "3" if objective == "3" else "1"
    module, passes = module_of(version, "llama", 0), 1 if objective == "eagle" else 3
    naive = naive_of(Eagle(version=version), module, models)
    text, weights = prompt_of(8), [0.0, 0.0, 0.0, 0.0, 1.0, 0.5, 1.0, 1.0]
    batch = batch_of(models.naive, [text], [weights])
    final = models.naive.model.model.norm(models.naive.states(text)[-1])
    said = models.naive.model.lm_head(final).log_softmax(-1)
    total = torch.zeros((), dtype=torch.float64)
    for number in range(passes):
        for at in range(len(text) - 2 - number):
            drafts = (tuple(text[: at + 2]), tuple(text[at + 2 : at + 2 + number]))
            wanted, log_probs = said[at + 1 + number], naive.logits(*drafts).log_softmax(-1)
            loss = kl_inside(wanted, log_probs)
            if version == "1":
                apart = (naive.state(*drafts) - final[at + 1 + number]).abs()
                loss = 0.1 * loss + torch.where(apart < 1, apart.square() / 2, apart - 0.5).mean()
            if objective == "hass":
                top = wanted.topk(10)
                loss = loss - (top.values.exp() * log_probs[top.indices]).sum()
            total = total + (0.8**number if version == "3" else 1.0) * weights[at + 2 + number] * loss
    method = Eagle(version=version, **({} if version == "3" else {"objective": objective}))
    torch.testing.assert_close(method.loss(module, batch).detach().double(), total, rtol=1e-4, atol=0.0)


@torch.inference_mode(False)
def test_over_a_draft_vocabulary_the_loss_counts_by_the_mass_inside() -> None:
    models, method = pair("llama"), Eagle(passes=2)
    batch = batch_of(models.naive, [prompt_of(12)], ids=IDS)
    said = models.naive.logits(models.naive.states(prompt_of(12))[-1]).log_softmax(-1)[:, IDS]
    method.vocabulary = DraftVocabulary(IDS)
    module: EagleModule = untrained(method, models.target)
    naive, text, total = naive_of(method, module, models, IDS), tuple(prompt_of(12)), 0.0
    for number in range(2):
        for at in range(10 - number):
            log_probs = naive.logits(text[: at + 2], text[at + 2 : at + 2 + number]).log_softmax(-1)
            total += 0.8**number * float(kl_inside(said[at + 1 + number], log_probs))
    assert float(method.loss(module, batch).detach()) == pytest.approx(total, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "options"),
    [("1", {}), ("1", {"objective": "hass"}), ("3", {}), ("3", {"head": "target"}), ("3.1", {})],
)
@torch.inference_mode(False)
def test_what_was_learnt_is_accepted(version: Any, options: dict[str, Any], tmp_path: Path) -> None:
    method = Eagle(version=version, tree="chain", draft_tokens=3, **options)
    got = learnt("eagle", method, pair("llama"), tmp_path)
    assert list(got.after) == [f"token_{number}_top1" for number in (1, 2, 3)]
    assert_learnt(got, "token_1_top1")


def test_a_fresh_layer_hands_on_the_feature() -> None:
    """So that training starts from an exit at the last tap, or from the target's own state."""
    models = pair("llama")
    batch = batch_of(models.naive, [prompt_of(9)])
    for version, feature in (("1", batch.final), ("3", batch.states[3])):
        module = Eagle(version=version).build(models.target.info, models.target.lm_head.weight)
        with torch.no_grad():
            for states in Unrolled(module, batch, TAPS).passes(2):
                torch.testing.assert_close(states, feature, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("layers", "taps"), [(30, (2, 15, 27)), (32, (2, 16, 29)), (7, (2, 3, 4)), (4, (1, 2, 3)), (2, (1,)), (1, (0, 1))]
)
def test_taps_follow_from_the_depth(layers: int, taps: tuple[int, ...]) -> None:
    assert default_taps(layers) == taps


def test_modules_of_another_version_or_target_are_refused_before_weights_are_read(tmp_path: Path) -> None:
    models, other = pair("llama"), replace(pair("llama").target.info, hidden_size=64)
    method = with_modules(Eagle(version="1"), module_of("1", "llama", 0), models, tmp_path)
    (tmp_path / "modules.safetensors").write_bytes(b"")
    with refused("trained_with_other_option", "version=1"):
        trained_options(Eagle(modules=str(tmp_path)), "eagle", str(tmp_path))
    check_sizes(method, method.modules, models.target.info)
    with refused("modules_of_other_target", str(tmp_path)):
        check_sizes(method, method.modules, other)
