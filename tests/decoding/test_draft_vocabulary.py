"""A draft vocabulary: its file, what may stand in it, what is drafted with one, and that answers stay the target's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from oracles import ExitRule, Naive, TreeDrafter, exit_drafter, heads_drafter, replay_tree
from refusals import refused
from runs import NEW_TOKENS, VOCABULARY, Pair, answer, pair, prompt_of, rounds_of
from safetensors.torch import save_file
from tiny import tiny_folder, tiny_model
from torch import Tensor
from two_streams import beam_drafter, guess
from untrained import facts_of, untrained, untrained_as

from benchctl.conformance import checks
from benchctl.conformance.checks import ON_A_TARGET
from benchctl.conformance.findings import Deviation, Skipped
from benchctl.conformance.method_under_test import MethodUnderTest
from benchctl.conformance.random_models import RandomModels, random_models
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Method, UsesDraftModel
from benchctl.decoding.model.loading import DRAFT_VOCABULARY, folder_sha256
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.draft_vocabulary import (
    DraftVocabulary,
    UsesDraftVocabulary,
    read_draft_vocabulary,
    write_draft_vocabulary,
)
from benchctl.decoding.modules.exits import Exits
from benchctl.decoding.modules.folders import save_modules
from benchctl.decoding.modules.trainable import Trainable
from benchctl.decoding.sampling import Sampling
from benchctl.measuring.check import Models, choose_methods
from benchctl.methods.deed import Deed
from benchctl.methods.m2r2 import M2R2
from benchctl.methods.m2r2.training import TwoStreams
from benchctl.methods.medusa import Medusa
from benchctl.methods.two_model import TwoModel
from benchctl.registry import parse_label

IDS = (0, 3, 4, 7, 8, 11, 12, 15, 16, 19, 20, 23)  # half of the vocabulary of `runs`; answers use the other half too
FEW_IDS = (1, 3)  # of the five tokens of which every answer is enumerated


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_draft_vocabulary(tmp_path) is None
    write_draft_vocabulary(tmp_path, torch.tensor([0, 3, 95]))
    ids = read_draft_vocabulary(str(tmp_path))
    assert ids is not None and ids.dtype == torch.int64 and ids.tolist() == [0, 3, 95]


@pytest.mark.parametrize("ids", [[], [1], [3, 1], [1, 1], [-1, 2], [0, 1 << 31]])
def test_ids_that_cannot_be_one_are_not_written(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(ValueError):
        write_draft_vocabulary(tmp_path, torch.tensor(ids, dtype=torch.int64))
    assert not (tmp_path / DRAFT_VOCABULARY).exists()


@pytest.mark.parametrize(
    "tensors",
    [
        {"ids": torch.tensor([2, 1], dtype=torch.int32)},
        {"ids": torch.tensor([[1, 2]], dtype=torch.int32)},
        {"ids": torch.tensor([1, 2])},
        {"ids": torch.tensor([-1, 2], dtype=torch.int32)},
        {"tokens": torch.tensor([1, 2], dtype=torch.int32)},
        {"ids": torch.tensor([1, 2], dtype=torch.int32), "more": torch.tensor([1], dtype=torch.int32)},
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, tmp_path / DRAFT_VOCABULARY)
    with refused("file_not_readable", str(tmp_path / DRAFT_VOCABULARY)):
        read_draft_vocabulary(tmp_path)


def test_a_truncated_file_is_refused_before_any_model_is_loaded(tmp_path: Path) -> None:
    target, method = pair("llama").target, Medusa()
    save_modules(tmp_path, untrained(method, target), facts_of("medusa", method, target))
    write_draft_vocabulary(tmp_path, torch.arange(9))
    file = tmp_path / DRAFT_VOCABULARY
    file.write_bytes(file.read_bytes()[:-4])
    with refused("file_not_readable", str(file)):
        choose_methods((f"medusa[modules={tmp_path}]",), Models("no such model", ""))


def test_places_stand_for_ids_and_other_tokens_have_no_probability() -> None:
    """Ids 1, 3, 4 of five tokens; without ids places are tokens, and a narrower head is padded."""
    subset, every = DraftVocabulary(torch.tensor([1, 3, 4])), DraftVocabulary()
    probs = torch.tensor([[0.5, 0.2, 0.3]])
    assert [subset.token(place) for place in range(3)] == [1, 3, 4] and every.token(2) == 2
    assert subset.spread(probs, 5).tolist() == torch.tensor([[0.0, 0.5, 0.0, 0.2, 0.3]]).tolist()
    assert every.spread(probs, 5).tolist() == torch.tensor([[0.5, 0.2, 0.3, 0.0, 0.0]]).tolist()
    assert subset.of(torch.arange(5)).tolist() == [1, 3, 4]


def masked(logits: Tensor) -> Tensor:
    """Logits [..., vocabulary] that leave only IDS."""
    left = torch.full_like(logits, -torch.inf)
    left[..., list(IDS)] = logits[..., list(IDS)]
    return left


@dataclass(frozen=True)
class Narrow(MethodUnderTest):
    """A method whose modules, or draft model, come with a draft vocabulary."""

    ids: tuple[int, ...] = IDS

    def prepared(self, models: RandomModels) -> Method:
        method = super().prepared(models)
        folder = Path(method.modules) if isinstance(method, Trainable) else self.folder
        folder.mkdir(exist_ok=True)
        write_draft_vocabulary(folder, torch.tensor(self.ids))
        if isinstance(method, UsesDraftModel):
            draft = copy.copy(models.draft)
            draft.folder = folder
            method.use_draft_model(draft)
        method.prepare(models.target)
        return method


def _models(models: Pair) -> RandomModels:
    return RandomModels("llama", models.target, models.draft, models.naive)


def _two_model(models: Pair) -> TreeDrafter:
    naive = models.naive_draft

    def draft(text: list[int], budget: int) -> list[list[int]]:
        proposal: list[int] = []
        for _ in range(min(4, budget)):
            probs = masked(naive.logits(naive.last_states([*text, *proposal])[-1])).softmax(-1)
            proposal.append(int(probs.argmax()))
            if float(probs.max()) < 0.3:
                break
        return [proposal]

    return draft


def _medusa(head: Literal["own", "shared"], models: Pair) -> TreeDrafter:
    """The tree 3x2 by the definition, of the state before the root."""
    heads, lm_head = untrained(Medusa(heads=2, head=head), models.target).double(), models.naive.model.lm_head

    def said(final: Tensor) -> list[Tensor]:
        states = [each(final) for each in heads.children()]
        return [masked(state if head == "own" else lm_head(state)) for state in states]

    return heads_drafter(models.naive, (3, 2), said)


def _m2r2(width: int, models: Pair) -> TreeDrafter:
    module = untrained_as(TwoStreams, M2R2(gates="2"), models.target).double()
    says = guess(models.naive, module, "accelerated", 0, 2)
    return beam_drafter(lambda text, drafted: masked(says(text, drafted)).log_softmax(-1), 3, width, 0.1)


def _deed(models: Pair) -> TreeDrafter:
    """By exit heads that score all tokens; these are held to plain algebra in tests of their own."""
    module = untrained_as(Exits, Deed(), models.target).double()
    heads = module.heads(models.target.final_norm, models.target.lm_head)
    rule = ExitRule((1, 2, 3), "softmax_max", 0.4, speak=lambda layer, state: masked(heads[layer](state[None])[0]))
    draft = exit_drafter(models.naive, rule, 4)
    return lambda text, budget: [draft(text, budget)]


DRAFTERS: dict[str, Callable[[Pair], TreeDrafter]] = {
    "two_model[draft_tokens=4,confidence=0.3]": _two_model,
    "medusa[heads=2,tree=3x2]": partial(_medusa, "own"),
    "medusa[heads=2,head=shared,tree=3x2]": partial(_medusa, "shared"),
    "m2r2[gates=2,draft_tokens=3,confidence=0.1]": partial(_m2r2, 1),
    "m2r2[gates=2,draft_tokens=3,confidence=0.1,width=2]": partial(_m2r2, 2),
    "deed[mode=draft,threshold=0.4]": _deed,
}


@torch.inference_mode()
@pytest.mark.parametrize("label", DRAFTERS)
def test_steps_are_those_of_drafters_that_know_no_other_tokens(label: str, tmp_path: Path) -> None:
    """By full recomputation; confidences are shares of the draft vocabulary, and the text uses other tokens too."""
    models, text = pair("llama"), answer("llama", 0, 13)
    method = Narrow(label, tmp_path).prepared(_models(models))
    got = decode(method, models.target, DecodeRequest(prompt_of(13), NEW_TOKENS))
    expected = replay_tree(prompt_of(13), text, len(text), DRAFTERS[label](models))
    assert list(got.token_ids) == text and set(text) - set(IDS)
    assert rounds_of(got) == expected and any(accepted for _, accepted in expected)


@torch.inference_mode()
def test_the_plain_drafter_of_doctor_knows_no_other_tokens_either(tmp_path: Path) -> None:
    models = pair("llama")
    method = Narrow("two_model[draft_tokens=4,confidence=0.3]", tmp_path).prepared(_models(models))
    assert isinstance(method, TwoModel)
    propose = method.plain_drafter(models.target, models.draft)
    for tokens in (5, 13, 20):
        assert propose is not None and [propose(prompt_of(tokens), 9)] == _two_model(models)(prompt_of(tokens), 9)


LABELS = (
    *DRAFTERS,
    "medusa[nodes=6]",
    "kangaroo[draft_tokens=2,confidence=0.3]",
    "sequential[width=2,nodes=4]",
    "pseudo[rows=2,width=2]",
    "dflash[draft_tokens=2]",
    "m2r2[draft_tokens=2,width=3,source=exit,confidence=0.2]",
    "early_exit[mode=draft,confidence=classifier,threshold=0.5,exits=1]",
    "early_exit[mode=draft,head=trained,confidence=softmax_max,threshold=0.3]",
    "deed[mode=draft,threshold=0,exits=2,draft_tokens=2]",
    "auto_exit[head=trained,draft_tokens=2]",
)


# One label of each method is examined by the fast tests.
FIRST = {parse_label(label).name: label for label in LABELS[::-1]}.values()
EXAMINED = [pytest.param(label, marks=[pytest.mark.slow] * (label not in FIRST)) for label in LABELS]


@pytest.mark.parametrize("label", EXAMINED)
def test_doctor_finds_nothing_wrong_with_it(label: str, tmp_path: Path) -> None:
    """Answers, limits, stops, counts and caches are those of a drafter that knows every token."""
    models = _models(pair("llama"))
    assert checks.engaged(Narrow(label, tmp_path), models) is None
    findings = {
        name: check(Narrow(label, tmp_path), models) for name, check in ON_A_TARGET.items() if name != "sampled"
    }
    assert {name for name, finding in findings.items() if finding is not None} == {"batches"}
    assert isinstance(findings["batches"], Skipped)


WARM = {"top_k": Sampling(1.5, top_k=2), "top_p": Sampling(1.3, top_p=0.8), "all": Sampling(0.8)}


@pytest.mark.parametrize("warm", [pytest.param(each, marks=[pytest.mark.slow] * (each != "top_k")) for each in WARM])
@pytest.mark.parametrize("label", EXAMINED)
def test_sampled_answers_have_the_target_s_distribution(
    label: str, warm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts are of two of five tokens. All ways that draws can go are enumerated, in shorter answers for "all"."""
    monkeypatch.setattr(checks, "WARM", WARM[warm])
    monkeypatch.setattr(checks, "SHORT", 3 if warm == "all" else checks.SHORT)
    assert checks.sampled(Narrow(label, tmp_path, FEW_IDS), random_models("llama")) is None


def test_a_draft_that_claims_to_come_from_the_whole_vocabulary_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the test above would find nothing: probabilities of the subset are given for other tokens."""
    monkeypatch.setattr(
        DraftVocabulary, "spread", lambda self, probs, tokens: F.pad(probs, (0, tokens - len(probs[0])))
    )
    subject = Narrow("two_model[draft_tokens=2]", tmp_path, FEW_IDS)
    assert isinstance(checks.sampled(subject, random_models("llama")), Deviation)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("label", LABELS)
def test_it_drafts_in_the_precision_of_a_gpu(label: str, device: str, tmp_path: Path) -> None:
    model = tiny_model("llama", layers=4, dtype=torch.bfloat16, vocab_size=VOCABULARY).to(device)
    target = Target(model, None)
    method = Narrow(label, tmp_path).prepared(RandomModels("llama", target, target, Naive(model)))
    for sampling in (Sampling(), Sampling(temperature=0.8, top_p=0.9)):
        assert len(decode(method, target, DecodeRequest(prompt_of(9), 12, sampling)).token_ids) == 12


@pytest.mark.parametrize("label", ["two_model", "medusa", "m2r2", "deed[mode=draft,threshold=0.3]"])
def test_all_tokens_can_be_scored_by_the_same_modules(label: str, tmp_path: Path) -> None:
    models, request = _models(pair("llama")), DecodeRequest(prompt_of(13), NEW_TOKENS)
    whole = label.replace("]", ",draft_vocabulary=whole]") if "[" in label else f"{label}[draft_vocabulary=whole]"
    without = decode(MethodUnderTest(label, tmp_path / "a").prepared(models), models.target, request)
    stored, scored = (Narrow(each, tmp_path / "b").prepared(models) for each in (label, whole))
    assert decode(scored, models.target, request) == without
    assert decode(stored, models.target, request).steps != without.steps
    assert isinstance(scored, UsesDraftVocabulary) and scored.vocabulary.ids is None
    assert isinstance(stored, UsesDraftVocabulary) and stored.vocabulary.ids is not None


@pytest.mark.parametrize("label", ["early_exit[head=trained,threshold=0.2]", "deed[threshold=0.3]"])
def test_a_token_that_is_not_verified_is_chosen_from_all_tokens(label: str, tmp_path: Path) -> None:
    models, request = _models(pair("llama")), DecodeRequest(prompt_of(13), NEW_TOKENS)
    without = decode(MethodUnderTest(label, tmp_path / "a").prepared(models), models.target, request)
    assert decode(Narrow(label, tmp_path / "b").prepared(models), models.target, request) == without
    assert min(without.layers) < models.target.layers and set(without.token_ids) - set(IDS)


@pytest.mark.parametrize("label", ["two_model", "medusa"])
def test_ids_that_the_target_does_not_have_are_refused(label: str, tmp_path: Path) -> None:
    with refused("draft_vocabulary_too_large", f"token {VOCABULARY}", f"{VOCABULARY} tokens"):
        Narrow(label, tmp_path, (1, VOCABULARY)).prepared(_models(pair("llama")))


def test_a_draft_model_with_another_draft_vocabulary_is_another_model(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "draft")
    plain = folder_sha256(folder)
    write_draft_vocabulary(folder, torch.tensor([1, 2]))
    assert folder_sha256(folder) != plain == folder_sha256(tiny_folder(tmp_path / "again"))
    assert Target.load(folder).weights_sha256 == folder_sha256(folder)


def test_a_vocabulary_alone_does_not_identify_a_model(tmp_path: Path) -> None:
    """A model made in memory is hashed tensor by tensor, also with such a file in its folder."""
    hashes = set()
    for seed in (1, 2):
        write_draft_vocabulary(tmp_path, torch.tensor([1, 2]))
        torch.manual_seed(seed)
        hashes.add(Target(tiny_model("llama", seed=seed), None, tmp_path).weights_sha256)
    assert len(hashes) == 2
