"""One matrix of labels and families, by doctor's checks; and oracles that see what these checks cannot.

The checks compare with full recomputation. Nothing else here asks for limits, stops, earlier prompts, seeds or batches.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gate_exits import Left, slow_states
from mutants import ForgetfulTwoModel
from oracles import Naive, autoregressive, in_float64, model_drafter, noisy_copy, replay
from refusals import refused
from runs import (
    EXACT,
    FIRST_FAST,
    LAYERS,
    LOSSY,
    NEW_TOKENS,
    OF_EXPERTS,
    SKIPPING,
    Pair,
    answer,
    pair,
    pair_of,
    prompt_of,
    rounds_of,
    run,
    with_head_of,
)
from tiny import tiny_config, tiny_model
from torch import Tensor
from transformers import DynamicCache

from benchctl.conformance import checks
from benchctl.conformance.checks import ON_A_TARGET
from benchctl.conformance.findings import Deviation, Skipped
from benchctl.conformance.method_under_test import MethodUnderTest
from benchctl.conformance.random_models import FEW_TOKENS, RandomModels, random_models
from benchctl.decoding.batch import why_not_batched
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import why_unsupported
from benchctl.decoding.model.families import family_of
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.sampling import Sampling
from benchctl.registry import build, builtin_names, method_class, parse_label

OTHER_MODELS = (
    ("qwen3", 2),
    ("mixtral", 3),
    ("mistral_window", 4),
    ("qwen2_window", 5),
    ("qwen3_moe_dense_first_window", 6),
)
MODELS = (("llama", 0), *(pytest.param(*model, marks=pytest.mark.slow) for model in OTHER_MODELS))
FIRST = {parse_label(label).name: label for label in (*EXACT, *LOSSY)[::-1]}.values()  # one label of each method
# Learned positions; an MLP next to attention; norms that subtract a mean. Methods that take layers apart refuse them.
UNLIKE_LLAMA = [
    pytest.param(label, family, marks=pytest.mark.slow)
    for family in ("gpt2", "phi_norms")
    for label in dict.fromkeys((*FIRST, *(label for label in EXACT + LOSSY if label.startswith("early_exit"))))
    if why_unsupported(build(label), TargetInfo.of(tiny_config(family, layers=LAYERS))) is None
]
CONDUCT = [name for name in ON_A_TARGET if name not in ("greedy", "sampled", "engaged")]
SAMPLED = (
    "autoregressive",
    "two_model[draft_tokens=2]",
    "two_model[confidence=0.4,draft_tokens=3]",
    "two_model[draft_tokens=2,accept=block]",
    "two_model[confidence=0.4,draft_tokens=3,accept=block]",
    "two_model[stop=product,confidence=0.2,draft_tokens=3,accept=block]",
    "two_model[stop=entropy,confidence=0.5,draft_tokens=3]",
    "two_model[stop=bandit,draft_tokens=2]",
    "two_model[draft_by=lookup,confidence=0.4,draft_tokens=3]",
    "draft_tree[width=2,nodes=4,confidence=0.1]",
    "draft_tree[tree=3]",
    "draft_tree[tree=2x1]",
    "draft_tree[tree=2,replacement=true]",
    "draft_tree[tree=best_first,nodes=2,depth=2,confidence=0]",
    "draft_tree[tree=best_first,nodes=3,depth=3,confidence=0.4]",
    "draft_tree[tree=optimal,nodes=2,depth=2,draft_cost=0.02,row_cost=0.02]",
    "prompt_lookup[draft_tokens=2]",
    "suffix[factor=2]",
    "suffix[tree=true,factor=3,min_prob=0]",
    "suffix[rank=longest,draft_tokens=2]",
    "token_recycling[nodes=3]",
    "token_recycling",
    "combine[first=suffix[min_match=2],then=two_model[draft_tokens=2]]",
    "combine[first=two_model[confidence=0.4,draft_tokens=2],then=prompt_lookup[draft_tokens=2],when=longer]",
    "combine[first=two_model[draft_tokens=2],then=suffix[factor=2,tree=true,draft_tokens=3],when=union]",
    "combine[first=suffix[min_match=2],then=m2r2[features=last,gates=2,draft_tokens=2,confidence=0]]",
    "early_exit[mode=draft,threshold=0,exits=1,draft_tokens=2]",
    "early_exit[mode=draft,threshold=0.3,draft_tokens=3]",
    "early_exit[mode=draft,confidence=classifier,threshold=0.5,exits=1]",
    "early_exit[threshold=2]",
    "auto_exit[draft_tokens=2]",
    "auto_exit[stop=length,draft_tokens=3]",
    "auto_exit[exits=1+3,decay=0.5,draft_tokens=3]",
    "auto_exit[head=trained,draft_tokens=2]",
    "skip_layers[draft_tokens=2]",
    "skip_layers[skip=1+3a,draft_tokens=3,confidence=0.4]",
    "skip_layers[skip=search,window=1,draft_tokens=2]",
    "skip_layers[skip=nearest,draft_tokens=2,confidence=0]",
    "medusa[heads=2,tree=2x2]",
    "medusa[heads=2,tree=1x1]",
    "medusa[nodes=6]",
    "m2r2[features=last,gates=2,draft_tokens=2,confidence=0]",
    "skip_layers[stop=adaptive,draft_tokens=2]",
    "eagle[width=2,draft_tokens=2,nodes=4,confidence=0]",
    "eagle[tree=chain,draft_tokens=2]",
    "eagle[version=1,tree=2x1]",
    "pseudo[rows=2,width=2,confidence=0]",
    "pseudo[kind=transfer,rows=2,tree=1x1]",
    "pseudo[kind=streaming,rows=2,tree=2x2,depth=1]",
    "sequential[width=2,heads=2,nodes=4,confidence=0]",
    "sequential[kind=redrafter,tree=2x1]",
    "sequential[kind=redrafter,heads=3,tree=1x1x1]",
    "dflash[draft_tokens=2,confidence=0]",
    "dflash[markov=4,draft_tokens=2,confidence=0.05]",
    "kangaroo[draft_tokens=2,confidence=0]",
    "kangaroo[exit=2,draft_tokens=3]",
    "sparse_cache[select=window,budget=2,sinks=1,draft_tokens=2]",
    "sparse_cache[budget=3,chunk=1,draft_tokens=2,confidence=0]",
    "lookahead[ngram=2,window=3]",
    "lookahead[ngram=3,window=3,prompt_pool=true]",
    "lookahead[ngram=3,window=2,prompt_pool=true,bonus=false]",
    "m2r2[draft_tokens=2]",
    "m2r2[draft_tokens=3,confidence=0.4]",
    "m2r2[draft_tokens=2,width=2]",
    "m2r2[draft_tokens=2,width=3,source=exit,confidence=0.2]",
    "m2r2_dynamic[threshold=2]",
)


def look(check: str, label: str, family: str, seed: int, folder: Path) -> object:
    """What a check of doctor finds on a pair of models."""
    models = pair(family, seed)
    random = RandomModels(family, models.target, models.draft, models.naive)
    return ON_A_TARGET[check](MethodUnderTest(label, folder), random)


def claims_exact(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on: doctor does not compare the answers of methods that are lossy by name."""
    monkeypatch.setattr(method_class(parse_label(label).name), "exactness", "exact")


def test_each_list_holds_what_its_labels_claim() -> None:
    """Labels that are lossy by name are exact where no token exits, or where all layers run."""
    assert {parse_label(label).name for label in (*EXACT, *LOSSY, *OF_EXPERTS)} == set(builtin_names())
    assert {build(label).exactness for label in LOSSY} == {"lossy"}
    full_depth = [label for label in EXACT if build(label).exactness == "lossy"]
    assert all("threshold=2" in label or f"min_layers={LAYERS}" in label for label in full_depth)


@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize("label", EXACT)
def test_exact_methods_are_exact(
    label: str, family: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims_exact(label, monkeypatch)
    assert look("greedy", label, family, seed, tmp_path) is None


@pytest.mark.parametrize(
    ("label", "family", "seed"),
    [
        *(pytest.param(label, "llama", 0, marks=() if label in FIRST else pytest.mark.slow) for label in EXACT + LOSSY),
        *(pytest.param(label, "mistral_window", 4, marks=pytest.mark.slow) for label in FIRST),
    ],
)
def test_limits_stops_prompts_seeds_batches_change_nothing(label: str, family: str, seed: int, tmp_path: Path) -> None:
    findings = {check: look(check, label, family, seed, tmp_path) for check in CONDUCT}
    assert [finding for finding in findings.values() if isinstance(finding, Deviation)] == []
    skipped = {check for check, finding in findings.items() if isinstance(finding, Skipped)}
    lossy, alone = build(label).exactness == "lossy", why_not_batched(build(label)) is not None
    assert skipped == {*(["cache"] if lossy else []), *(["batches"] if alone else [])}


@pytest.mark.parametrize(("label", "family"), UNLIKE_LLAMA)
def test_layers_unlike_llama_s_change_no_conduct(
    label: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if label in EXACT:
        claims_exact(label, monkeypatch)
    findings = [look(check, label, family, 1, tmp_path) for check in ("greedy", *CONDUCT)]
    assert [finding for finding in findings if isinstance(finding, Deviation)] == []


OTHER_LAYERS = TargetInfo.of(tiny_config("olmo3", layers=LAYERS))
ON_OTHER_LAYERS = [label for label in (*EXACT, *LOSSY) if build(label).unsupported(OTHER_LAYERS) is None]


@pytest.mark.slow
@pytest.mark.parametrize("label", [label for label in ON_OTHER_LAYERS if label in EXACT])
def test_exact_methods_are_exact_where_norms_windows_and_rotations_differ(
    label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims_exact(label, monkeypatch)
    assert look("greedy", label, "olmo3", 0, tmp_path) is None


@pytest.mark.slow
@pytest.mark.parametrize("label", [label for label in ON_OTHER_LAYERS if label in FIRST])
def test_conduct_on_two_rotary_tables(label: str, tmp_path: Path) -> None:
    findings = {check: look(check, label, "gemma3_text", 0, tmp_path) for check in CONDUCT}
    assert [finding for finding in findings.values() if isinstance(finding, Deviation)] == []


@pytest.mark.slow
@pytest.mark.parametrize("family", ["olmoe", "mixtral", "qwen3_moe_every_second"])
@pytest.mark.parametrize("label", OF_EXPERTS)
def test_a_method_for_mixtures_of_experts_passes_on_them(label: str, family: str, tmp_path: Path) -> None:
    assert build(label).unsupported(pair("llama").target.info) is not None
    findings = {check: look(check, label, family, 3, tmp_path) for check in ("greedy", *CONDUCT)}
    assert {check for check, finding in findings.items() if finding is not None} == {"batches"}


ONCE = {parse_label(label).name: label for label in SAMPLED[::-1]}.values()
TOP_K, TOP_P = checks.WARM, Sampling(temperature=1.3, top_p=0.8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "warm"),
    [*((label, TOP_K) for label in SAMPLED), *((label, TOP_P) for label in ONCE)],
    ids=lambda given: given if isinstance(given, str) else "top_k" if given is TOP_K else "top_p",
)
def test_exact_method_samples_from_the_target_s_distribution(
    label: str, warm: Sampling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ways that draws can go are enumerated, and compared with the products of the target's own probabilities."""
    claims_exact(label, monkeypatch)
    monkeypatch.setattr(checks, "WARM", warm)
    assert checks.sampled(MethodUnderTest(label, tmp_path), random_models("llama")) is None


def test_lossy_method_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the test above would find nothing."""
    label = "medusa[accept=typical]"
    claims_exact(label, monkeypatch)
    assert isinstance(checks.sampled(MethodUnderTest(label, tmp_path), random_models("llama")), Deviation)


def test_who_skips_layers_cannot_claim_the_target_s_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    label = "early_exit[threshold=0,exits=1]"
    claims_exact(label, monkeypatch)
    with refused("layers_skipped"):
        checks.sampled(MethodUnderTest(label, tmp_path), random_models("llama"))


def padded(model: Any, logit: float) -> Target:
    """The model with two more ids, whose logits are raised by ``logit``."""
    twin = copy.deepcopy(model)
    for module in (twin.model.embed_tokens, twin.lm_head):
        module.weight = torch.nn.Parameter(torch.cat((module.weight, module.weight[:2])), requires_grad=False)
    raised = torch.tensor([0.0] * len(model.lm_head.weight) + [logit] * 2, dtype=torch.float64)
    twin.lm_head.bias = torch.nn.Parameter(raised, requires_grad=False)
    return Target(twin, None)


@pytest.mark.slow
@pytest.mark.parametrize("wider", ["draft", "target"])
def test_padded_heads_leave_the_distribution_alone(wider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trained target never says its padding; what a draft model says of its own must not matter."""
    few = random_models("llama", FEW_TOKENS)
    model, draft_model = few.naive.model, noisy_copy(few.naive.model)
    target = padded(model, -1e4) if wider == "target" else few.target
    draft = padded(draft_model, 1.0) if wider == "draft" else few.draft
    wide = replace(few, target=target, draft=draft)
    monkeypatch.setattr(checks, "random_models", lambda kind, vocabulary: wide)
    assert checks.sampled(MethodUnderTest("two_model[draft_tokens=2]", tmp_path), wide) is None


@pytest.mark.slow
@pytest.mark.parametrize("wider", ["draft", "target"])
def test_heads_padded_to_different_widths_draft_what_they_share(wider: str) -> None:
    """One tokenizer, padded to 48 in one model and to 56 in the other. The wide draft's own favourites are padding."""
    wide = in_float64(tiny_model("llama", layers=LAYERS, dtype=torch.float64, vocab_size=56))
    wide_draft = noisy_copy(wide)
    wide_draft.lm_head.weight[48:] *= 2.0
    narrow, narrow_draft = with_head_of(wide, 48), with_head_of(wide_draft, 48)
    prompt = prompt_of(13)
    expected = autoregressive(Naive(narrow), prompt, NEW_TOKENS)
    if wider == "target":  # padding is never said by a trained model
        wide.lm_head.bias = torch.nn.Parameter(torch.tensor([0.0] * 48 + [-1e4] * 8, dtype=torch.float64))
        target, draft = Target(wide, None), Target(narrow_draft, None)
    else:
        target, draft = Target(narrow, None), Target(wide_draft, None)
        padding = [row for row in range(13, 52) if Naive(wide_draft).argmax([*prompt, *expected][:row]) >= 48]
        assert len(padding) > 5
    got = run("two_model[draft_tokens=4,confidence=0.2]", target, prompt, NEW_TOKENS, draft=draft)
    assert list(got.token_ids) == expected
    assert rounds_of(got) == replay(prompt, expected, NEW_TOKENS, model_drafter(Naive(narrow_draft), 4, 0.2))
    assert any(step.accepted > 1 for step in got.steps)


def test_drafts_go_on_behind_tokens_that_the_draft_model_has_no_embedding_for() -> None:
    """A draft model with fewer embeddings than ids in the text was an IndexError in every answer.

    It reads such a token as id 0, so that drafts are worse and answers stay exact.
    """
    models, embeddings = pair("llama"), 16
    draft_model = with_head_of(models.naive_draft.model, embeddings)
    prompt, expected = prompt_of(13), answer("llama", 0, 13)
    assert max(expected) >= embeddings
    draft = Target(draft_model, None)
    chain, tree = (
        run(label, models.target, prompt, NEW_TOKENS, draft=draft)
        for label in ("two_model[draft_tokens=4,confidence=0.2]", "draft_tree")
    )
    for got in (chain, tree):
        assert list(got.token_ids) == expected
        assert any(step.accepted > 1 for step in got.steps)
    plain = model_drafter(Naive(draft_model), 4, 0.2)

    def reads_known(text: list[int], budget: int) -> list[int]:
        return plain([token if token < embeddings else 0 for token in text], budget)

    assert rounds_of(chain) == replay(prompt, expected, NEW_TOKENS, reads_known)


def _swap(ids: Sequence[int], one: int, other: int) -> list[int]:
    return [{one: other, other: one}.get(token, token) for token in ids]


def _renamed(model: Any, token: int) -> Any:
    """The model with ids 0 and ``token`` exchanged."""
    twin = copy.deepcopy(model)
    weights = [twin.model.embed_tokens.weight, twin.lm_head.weight]
    for weight in weights[: 1 if weights[0] is weights[1] else 2]:
        weight[[0, token]] = weight[[token, 0]]
    return twin


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_exchanging_a_frequent_token_with_id_nought_changes_no_step(family: str) -> None:
    """Padding with 0 is how published code loses tokens; here 0 becomes the most frequent token of all."""
    models = pair(family)
    prompt = prompt_of(13)
    counts = Counter(run("autoregressive", models.target, prompt, NEW_TOKENS).token_ids)
    token = counts.most_common(1)[0][0] or counts.most_common(2)[1][0]
    renamed = pair_of(_renamed(models.model, token), _renamed(models.draft_model, token))
    for label in (*EXACT, *LOSSY):
        before = run(label, models.target, prompt, NEW_TOKENS, draft=models.draft)
        after = run(label, renamed.target, _swap(prompt, 0, token), NEW_TOKENS, draft=renamed.draft)
        assert list(after.token_ids) == _swap(before.token_ids, 0, token)
        assert rounds_of(after) == rounds_of(before)
        assert after.layers == before.layers


@pytest.mark.slow
@pytest.mark.parametrize("label", [*EXACT, *LOSSY])
def test_drawing_from_the_top_token_alone_takes_the_greedy_steps(label: str) -> None:
    """Drafts are drawn from warped distributions too: with top_k=1 nothing is left to chance."""
    models, prompt = pair("llama"), prompt_of(13)
    warm = Sampling(temperature=0.9, top_k=1, top_p=0.9, seed=5)
    greedy = run(label, models.target, prompt, NEW_TOKENS, draft=models.draft, sampling=Sampling(seed=5))
    certain = run(label, models.target, prompt, NEW_TOKENS, draft=models.draft, sampling=warm)
    assert certain.token_ids == greedy.token_ids
    # Where siblings are drawn they are distinct, and there is one token to draw.
    if not re.match(r"(draft_tree\[tree=|(eagle|pseudo|sequential)\[.*tree=\d)", label):
        assert (certain.steps, certain.layers) == (greedy.steps, greedy.layers)


class Audit:
    """Watches every stream and compares what its cache holds after each commit with a fresh pass over its text."""

    def __init__(self, models: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        self._models = models
        self.texts: dict[Stream, list[int]] = {}
        self._depths: dict[Stream, dict[int, int]] = {}
        self._left: dict[Stream, dict[int, Left]] = {}  # those above whose exits not their frozen state stands in
        self.commits = 0
        for name in ("keep", "truncate", "fill", "skip"):
            self._watch(monkeypatch, name, getattr(self, f"_{name}"))

    @staticmethod
    def _watch(monkeypatch: pytest.MonkeyPatch, name: str, before: Callable[..., Callable[[], None]]) -> None:
        original = getattr(Stream, name)

        def watched(stream: Stream, *arguments: Any) -> None:
            after = before(stream, *arguments)
            original(stream, *arguments)
            after()

        monkeypatch.setattr(Stream, name, watched)

    def _keep(self, stream: Stream, rows: Sequence[int]) -> Callable[[], None]:
        text = self.texts.get(stream, [])[: stream.base] + [stream.text[stream.base :][row] for row in rows]
        self.texts[stream] = text
        return lambda: self._check(stream, text)

    def _truncate(self, stream: Stream, length: int) -> Callable[[], None]:
        self.texts[stream] = self.texts[stream][:length]
        return lambda: self._check(stream, self.texts[stream])

    def _fill(self, stream: Stream, first: int, stand_ins: Tensor | None = None) -> Callable[[], None]:
        if stand_ins is None:
            self._depths.setdefault(stream, {})[stream.length - 1] = first
        else:
            everywhere = stand_ins.expand(LAYERS - first, -1).clone()
            self._left.setdefault(stream, {})[stream.length - 1] = Left(first, everywhere)
        return lambda: None

    def _skip(self, stream: Stream, first: int) -> Callable[[], None]:
        self._left.setdefault(stream, {})[stream.length - 1] = Left(first, None)
        return lambda: None

    def _cached(self, stream: Stream, naive: Naive, text: list[int]) -> Tensor:
        """[layers, 2 * kv_heads, tokens, head_dim] by full recomputation, in transformers' order of dimensions."""
        left = self._left.get(stream, {})
        if not left:
            depths = [self._depths.get(stream, {}).get(position, LAYERS) for position in range(len(text))]
            return naive.cached(text, depths)
        cache: Any = DynamicCache()
        slow_states(naive, text, [left.get(position) for position in range(len(text))], cache)
        return torch.stack([torch.cat((layer.keys[0], layer.values[0])) for layer in cache.layers])

    def _check(self, stream: Stream, text: list[int]) -> None:
        self.commits += 1
        is_target = stream.target is self._models.target
        naive = self._models.naive if is_target else self._models.naive_draft
        if not is_target:
            self._check_draft_reads_the_text(text)
        cache, cached = stream.cache, self._cached(stream, naive, text)
        for kv, length, absent, fresh in zip(cache.kv, cache.lengths, cache.absent, cached, strict=True):
            assert length <= len(text)
            held = [slot for slot in range(length) if slot not in absent]
            rotated = family_of(naive.model.config).rotated(naive.model)
            assert (kv[:, held] - _interleaved(fresh, cache.kv_heads, rotated)[:, held]).abs().max() < 1e-12
        assert stream.length == len(text)
        self._check_open_rows(stream, naive, text)

    def _check_draft_reads_the_text(self, draft_text: list[int]) -> None:
        """What the draft model has read, as far as the committed text goes, is that text."""
        target = next(stream for stream in self.texts if stream.target is self._models.target)
        committed = self.texts[target][: target.base] + target.text[target.base :]
        shared = min(len(committed), len(draft_text))
        assert draft_text[:shared] == committed[:shared]

    def _check_open_rows(self, stream: Stream, naive: Naive, text: list[int]) -> None:
        """Rows with layers still to run wait with the residual of the layers they ran."""
        if stream.rows == 0:
            assert set(stream.cache.lengths) == {len(text)}
            return
        states = naive.states(text)
        for row, state in enumerate(stream.states):
            ran = sum(length > stream.base + row for length in stream.cache.lengths)
            assert (state - states[ran, stream.base + row]).abs().max() < 1e-12


def _interleaved(fresh: Tensor, kv_heads: int, rotated: int) -> Tensor:
    """Keys with the two halves of each rotated pair side by side, as benchctl stores them; all else as it is."""
    keys, values = fresh[:kv_heads], fresh[kv_heads:]
    pairs = torch.stack(keys[..., :rotated].chunk(2, dim=-1), dim=-1).flatten(-2)
    return torch.cat((torch.cat((pairs, keys[..., rotated:]), -1), values))


@pytest.mark.parametrize(("label", "family"), [each for each in UNLIKE_LLAMA if each.values[0] not in SKIPPING])
def test_every_commit_does_so_on_layers_unlike_llama_s(
    monkeypatch: pytest.MonkeyPatch, label: str, family: str
) -> None:
    test_every_commit_leaves_the_cache_as_if_rejected_rows_had_never_been(monkeypatch, label, family, 1)


@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
@pytest.mark.parametrize("label", [label for label in (*EXACT, *LOSSY) if label not in SKIPPING])
def test_every_commit_leaves_the_cache_as_if_rejected_rows_had_never_been(
    monkeypatch: pytest.MonkeyPatch, label: str, family: str, seed: int
) -> None:
    models = pair(family, seed)
    audit = Audit(models, monkeypatch)
    got = run(label, models.target, prompt_of(13, seed), NEW_TOKENS, draft=models.draft)
    text = [*prompt_of(13, seed), *got.token_ids]
    committed = next(text for stream, text in audit.texts.items() if stream.target is models.target)
    assert audit.commits > len(got.steps)
    assert committed == text[:-1]


def test_audit_notices_a_draft_cache_that_keeps_rejected_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    models = pair("llama", 0, 512)
    method = ForgetfulTwoModel(draft_tokens=4)
    method.use_draft_model(models.draft)
    method.prepare(models.target)
    Audit(models, monkeypatch)
    with pytest.raises(AssertionError):
        decode(method, models.target, DecodeRequest(prompt_of(13), NEW_TOKENS))
