"""Draft models with another tokenizer: what they read and draft, against full recomputation and transformers."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import Drafter, Naive, autoregressive, in_float64, noisy_copy, replay
from refusals import refused
from runs import prepared, rounds_of, run
from tiny import tiny_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast
from transformers.generation import candidate_generator as candidates

from benchctl.conformance import checks
from benchctl.conformance.method_under_test import MethodUnderTest
from benchctl.conformance.random_models import FEW_TOKENS, RandomModels, random_models
from benchctl.decoding.drafting.vocabularies import SharedTokens, shared_tokens
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import TargetTokenizer
from benchctl.decoding.modules.draft_vocabulary import DraftVocabulary, write_draft_vocabulary
from benchctl.methods.two_model import TwoModel

TEXTS = ("the theme then there these he her hero here heart heat eat tea ten tent rest", "a rat at a test; é and è")


def byte_level(size: int, specials: Sequence[str] = ("<s>", "</s>")) -> Any:
    """A byte-level BPE; smaller sizes have fewer merges of the same text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")  # type: ignore[no-untyped-call]


def sentencepiece(tokens: Sequence[str]) -> Any:
    """A vocabulary in the form of SentencePiece with bytes to fall back to."""
    vocabulary = {token: index for index, token in enumerate(("<unk>", "<0x0A>", "<0xC3>", *tokens))}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")  # type: ignore[no-untyped-call]


class Config:
    """As much of a configuration as a tokenizer looks at."""

    model_type, is_encoder_decoder, max_position_embeddings = "llama", False, 64

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size


def reader(tokenizer: Any, vocab_size: int = 0) -> TargetTokenizer:
    return TargetTokenizer(tokenizer, Config(vocab_size or len(tokenizer)), frozenset())


BYTES, PIECES = reader(byte_level(290)), reader(sentencepiece(["▁the", "the", "t", "h", "e", "▁", "é", "x"]))


def test_tokens_of_both_kinds_are_compared_by_their_bytes() -> None:
    texts = PIECES.token_bytes
    assert texts[1] == b"\n" and texts[2] == b"\xc3" and texts[3] == b" the" and texts[9] == "é".encode()
    assert set(BYTES.token_bytes.values()) >= {bytes([byte]) for byte in range(256)} | {b"the", b" the", b"<s>"}
    assert len(set(BYTES.token_bytes.values())) == 290


def test_ids_beyond_the_model_s_vocabulary_are_no_tokens() -> None:
    assert set(reader(byte_level(290), 270).token_bytes) == set(range(270))


def test_a_token_that_both_have_is_read_as_one() -> None:
    shared = SharedTokens(BYTES, PIECES)
    by_text = {text: index for index, text in BYTES.token_bytes.items()}
    assert shared.pairs == {
        by_text[text]: index for index, text in PIECES.token_bytes.items() if text in by_text and index != 0
    }
    assert shared.read(by_text[b" the"]) == (3,)


def test_other_tokens_are_read_as_the_longest_tokens_in_their_text() -> None:
    shared = SharedTokens(PIECES, reader(byte_level(262)))
    own = {text: index for index, text in reader(byte_level(262)).token_bytes.items()}
    assert b"he" in own and not {b"th", b"the"} & own.keys()
    assert shared.read(4) == (own[b"t"], own[b"he"])
    assert shared.read(9) == (own[b"\xc3"], own[b"\xa9"])
    there = SharedTokens(BYTES, PIECES)
    cat = next(index for index, text in BYTES.token_bytes.items() if text == b"z")
    assert there.read(cat) == (0,)  # nothing of it can be read, and a row is needed


def test_stored_tokens_that_the_target_lacks_are_not_drafted() -> None:
    shared = SharedTokens(BYTES, PIECES)
    whole, stored = shared.narrow(DraftVocabulary()), shared.narrow(DraftVocabulary(torch.tensor([0, 3, 5])))
    assert whole.ids is not None and whole.own_ids is not None and stored.own_ids is not None
    assert dict(zip(whole.ids.tolist(), whole.own_ids.tolist(), strict=True)) == shared.pairs
    assert sorted(stored.own_ids.tolist()) == [3, 5]
    assert whole.ids.tolist() == sorted(whole.ids.tolist())


SIZE, OWN_SIZE = 290, 278


@cache
def tokenizers() -> tuple[Any, Any]:
    """The target's, and one of fewer merges whose ids are others: each has tokens that the other lacks."""
    return byte_level(SIZE), byte_level(OWN_SIZE, ("</s>", "<other>", "<s>"))


def translated(model: Any, shared: SharedTokens) -> Any:
    """The model with noise, in the draft model's vocabulary."""
    twin = noisy_copy(model, 0.02)
    for module in (twin.model.embed_tokens, twin.lm_head):
        weight = torch.randn(OWN_SIZE, module.weight.shape[1], dtype=torch.float64) * 0.3
        for index, own in shared.pairs.items():
            weight[own] = module.weight[index]
        module.weight = torch.nn.Parameter(weight, requires_grad=False)
    twin.config.vocab_size = OWN_SIZE
    twin.lm_head.out_features = OWN_SIZE
    return twin


class Translated:
    """A target, and a draft model with the other tokenizer, as transformers' models and as Targets."""

    def __init__(self) -> None:
        ours, theirs = (reader(tokenizer) for tokenizer in tokenizers())
        sizes = {"vocab_size": SIZE, "max_position_embeddings": 128}
        self.model = in_float64(tiny_model("llama", seed=1, layers=3, dtype=torch.float64, **sizes))
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.draft_model = translated(self.model, SharedTokens(ours, theirs))
        self.target, self.draft = Target(self.model, ours), Target(self.draft_model, theirs)
        self.naive, self.naive_draft = Naive(self.model), Naive(self.draft_model)
        self.prompt: list[int] = tokenizers()[0].encode("the hero", add_special_tokens=False)


@cache
@torch.inference_mode(False)
def models_of_two_tokenizers() -> Translated:
    return Translated()


def own_text(text: Sequence[int]) -> list[int]:
    """By the tokens' names: both tokenizers write bytes as the same letters."""
    ours, theirs = (tokenizer.get_vocab() for tokenizer in tokenizers())
    names = {index: name for name, index in ours.items()}
    either = re.compile("|".join(re.escape(name) for name in sorted(theirs, key=len, reverse=True)))
    return [theirs[part] for token in text for part in either.findall(names[token])]


def translating_drafter(models: Translated, draft_tokens: int) -> Drafter:
    """Full recomputation: the likeliest token that the target has too, again and again."""
    ours, theirs = (tokenizer.get_vocab() for tokenizer in tokenizers())
    both = [(index, theirs[name]) for name, index in ours.items() if name in theirs]

    def draft(text: list[int], budget: int) -> list[int]:
        proposal: list[int] = []
        for _ in range(min(draft_tokens, budget)):
            logits = models.naive_draft.logits(models.naive_draft.last_states(own_text([*text, *proposal]))[-1])
            proposal.append(max(both, key=lambda pair: float(logits[pair[1]]))[0])
        return proposal

    return draft


@pytest.mark.parametrize(
    "label",
    [
        "two_model[draft_tokens=4,confidence=0]",
        "two_model[draft_tokens=4,confidence=0,draft_by=lookup]",
        "draft_tree[tree=1x1x1x1]",
    ],
)
def test_steps_of_another_tokenizer_equal_replay(label: str) -> None:
    models = models_of_two_tokenizers()
    for prompt in (list(range(SIZE - 20, SIZE)), models.prompt[:1], models.prompt):
        text = autoregressive(models.naive, prompt, 24)
        got = run(label, models.target, prompt, 24, draft=models.draft)
        assert list(got.token_ids) == text
        rounds = rounds_of(got)
        assert rounds == replay(prompt, text, 24, translating_drafter(models, 4))
    assert sum(accepted for _, accepted in rounds) > 0
    assert not set(text) <= set(SharedTokens(models.target.tokenizer, models.draft.tokenizer).pairs)


def test_doctor_s_plain_drafts_are_those_of_full_recomputation() -> None:
    models = models_of_two_tokenizers()
    method = prepared("two_model[draft_tokens=4,confidence=0]", models.target, models.draft)
    assert isinstance(method, TwoModel)
    propose = method.plain_drafter(models.target, models.draft)
    assert propose is not None
    assert propose(models.prompt, 9) == translating_drafter(models, 4)(models.prompt, 9)


def test_trees_of_another_tokenizer_give_the_target_s_answer() -> None:
    models = models_of_two_tokenizers()
    text = autoregressive(models.naive, models.prompt, 24)
    for tree in ("likeliest", "best_first", "3x2x1"):
        got = run(f"draft_tree[tree={tree}]", models.target, models.prompt, 24, draft=models.draft)
        assert list(got.token_ids) == text
        assert sum(step.accepted for step in got.steps) > 0


class Spelt(TargetTokenizer):
    """A tokenizer whose tokens are these letters."""

    def __init__(self, letters: str) -> None:
        super().__init__(None, Config(len(letters)), frozenset())
        self.token_bytes = {index: letter.encode() for index, letter in enumerate(letters)}

    def drafts_alike(self, other: TargetTokenizer) -> bool:
        return False


def spelt(few: RandomModels, letters: str, own_letters: str) -> RandomModels:
    target, draft = copy.copy(few.target), copy.copy(few.draft)
    target.tokenizer_or_none, draft.tokenizer_or_none = Spelt(letters), Spelt(own_letters)
    return replace(few, target=target, draft=draft)


@pytest.mark.parametrize(
    "label",
    [
        "two_model[draft_tokens=2]",
        "two_model[draft_tokens=2,accept=block]",
        "draft_tree[tree=2x1]",
        "draft_tree[tree=best_first,nodes=3,depth=2,confidence=0]",
        "draft_tree[nodes=3]",
    ],
)
def test_samples_have_the_target_s_distribution(label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target has d, which the draft model cannot say, and the draft model x, which it must not."""
    few = spelt(random_models("llama", FEW_TOKENS), "abcde", "caxbe")
    monkeypatch.setattr(checks, "random_models", lambda *_: few)
    assert checks.sampled(MethodUnderTest(label, tmp_path), few) is None


def test_models_without_a_token_in_common_are_refused() -> None:
    few = spelt(random_models("llama", FEW_TOKENS), "abcde", "efghi")
    with refused("no_shared_tokens"):
        shared_tokens(few.target, few.draft)


def test_a_draft_vocabulary_without_a_token_of_the_target_is_refused(tmp_path: Path) -> None:
    few = spelt(random_models("llama", FEW_TOKENS), "abcde", "xyabc")
    write_draft_vocabulary(tmp_path, torch.tensor([0, 1]))
    few.draft.folder = tmp_path
    method = TwoModel()
    method.use_draft_model(few.draft)
    with refused("no_shared_tokens", "draft_vocabulary=whole"):
        method.prepare(few.target)
    whole = TwoModel(draft_vocabulary="whole")
    whole.use_draft_model(few.draft)
    whole.prepare(few.target)


@pytest.mark.parametrize("text", ["the hero", "her heart"])
def test_transformers_takes_the_same_steps_with_its_universal_assistant(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token-level intersection is for sampling; from the likeliest token alone its draws are certain.

    It drafts before prefill, so it is given our first token too. It reads the prompt's text afresh, so a text is needed
    that is split in the same way. With a pruned head it misreads the last token of a draft accepted whole: not pruned.
    """
    translator = staticmethod(
        lambda ours, theirs, size, **_: candidates.AssistantToTargetTranslator(ours, theirs, size)
    )
    monkeypatch.setattr(candidates.AssistantVocabTranslatorCache, "get_translator", translator)
    models, (tokenizer, own_tokenizer) = models_of_two_tokenizers(), tokenizers()
    prompt = tokenizer.encode(text, add_special_tokens=False)
    ours = run("two_model[draft_tokens=3,confidence=0]", models.target, prompt, 24, draft=models.draft)
    given = [*prompt, ours.token_ids[0]]
    assert own_tokenizer.encode(tokenizer.decode(given), add_special_tokens=False) == own_text(given)
    assistant = copy.deepcopy(models.draft_model)
    certain: dict[str, Any] = {"do_sample": True, "top_k": 1}
    assistant.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        num_assistant_tokens=3, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0, **certain
    )
    rows: list[int] = []
    last = models.model.model.layers[-1]
    handle = last.register_forward_hook(lambda _module, inputs, _output: rows.append(inputs[0].shape[1]))
    try:
        config = GenerationConfig(max_new_tokens=23, **certain)  # type: ignore[no-untyped-call]
        answer = models.model.generate(
            torch.tensor([given]),
            generation_config=config,
            assistant_model=assistant,
            tokenizer=tokenizer,
            assistant_tokenizer=own_tokenizer,
        )
    finally:
        handle.remove()
    assert answer[0, len(prompt) :].tolist() == list(ours.token_ids)
    assert [rows[0] - len(given), *(count - 1 for count in rows[1:])] == [step.drafted for step in ours.steps]
    assert sum(step.accepted for step in ours.steps) > 3
