"""A target with an encoder: our decoder against transformers' and a plain one, and the methods that know encoders."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from oracles import caught_up
from plain_t5 import ALPHA, LAYERS, START, VOCABULARY, PlainT5, Weights, spoken, tiny_t5
from refusals import refused
from tiny import tiny_tokenizer
from untrained import facts_of, untrained

from benchctl.decoding.kv.cache import Encoded
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import why_unsupported
from benchctl.decoding.model.loading import DTYPES
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.model.tokenizer import TargetTokenizer
from benchctl.decoding.modules.folders import load_modules, save_modules
from benchctl.decoding.modules.trainable import Trainable
from benchctl.methods.autoregressive import Autoregressive
from benchctl.registry import METHODS, build, names

KINDS = ("relu", "gated-gelu")
SOURCE = [7, 3, 19, 3, 11, 8, 2, 19, 1]
NEW_TOKENS = 40  # beyond the 20 tokens where distances end to matter


def text_of(tokens: int, seed: int = 0) -> list[int]:
    ids: list[int] = torch.randint(2, VOCABULARY, (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()
    return ids


def generate(
    label: str, target: Target, source: list[int] = SOURCE, limit: int = NEW_TOKENS, modules: Path | None = None
) -> Generation:
    method = build(label)
    if modules is not None:
        assert isinstance(method, Trainable)
        method.modules = str(modules)
    method.prepare(target)
    return decode(method, target, DecodeRequest(source, limit))


@torch.inference_mode()
@pytest.mark.parametrize("parts", [(40,), (1,) * 40, (20, 5, 15), (3, 17, 20)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_transformers(kind: str, tied: bool, parts: tuple[int, ...]) -> None:
    """However the rows are fed. Untied models have a head of their own, and do not scale what it reads."""
    model, text = tiny_t5(kind, tie_word_embeddings=tied), text_of(40)
    assert (model.lm_head.weight is model.shared.weight) == tied
    theirs = model(input_ids=torch.tensor([SOURCE]), decoder_input_ids=torch.tensor([text])).logits[0]
    target = Target(model, None)
    assert target.begin(SOURCE) == [START]
    stream, ours = Stream(target, len(text)), []
    stream.cache.encoded = target.read(SOURCE)
    for count in parts:
        stream.push(text[stream.length : stream.length + count])
        stream.advance()
        ours.append(stream.logits())
        stream.keep(range(count))
    torch.testing.assert_close(torch.cat(ours), theirs, rtol=1e-9, atol=1e-9)
    plain = PlainT5(model)
    exact = plain.logits(plain.states(SOURCE, text)[-1])
    torch.testing.assert_close(torch.cat(ours), exact, rtol=1e-9, atol=1e-9)


@torch.inference_mode()
def test_rows_of_a_tree_see_their_own_branch_at_its_distances() -> None:
    model, text = tiny_t5(), text_of(21)
    target, plain = Target(model, None), PlainT5(model)
    stream = Stream(target, 40)
    stream.cache.encoded = target.read(SOURCE)
    stream.push(text[:-1])
    stream.advance()
    stream.keep(range(20))
    stream.push([text[-1], 4, 9, 6], [-1, 0, 0, 2])
    stream.advance()
    for row, branch in enumerate(([], [4], [9], [9, 6])):
        exact = plain.logits(plain.states(SOURCE, [*text, *branch])[-1, -1])
        torch.testing.assert_close(stream.logits()[row], exact, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "label", ["autoregressive", "prompt_lookup", "early_exit[mode=draft,exits=2,threshold=0.1]", "auto_exit"]
)
def test_exact_methods_give_the_answer_of_the_plain_decoder(label: str, kind: str) -> None:
    """One prompt after the other: nothing of what the encoder made of the first may be left."""
    model = tiny_t5(kind)
    target, plain = Target(model, None), PlainT5(model)
    for source in (SOURCE, text_of(13, seed=1), [4]):
        generation = generate(label, target, source)
        assert list(generation.token_ids) == plain.answer(source, NEW_TOKENS)
        assert generation.stop_reason == "length"


def test_the_clock_of_the_first_token_holds_the_encoder() -> None:
    """Nothing is read before the clock starts."""
    target, marks = Target(tiny_t5(), None), iter(range(1000))
    assert target.encoder is not None
    read, at = target.encoder.read, list[int]()

    def reads(prompt_ids: list[int]) -> list[Encoded]:
        at.append(next(marks))
        return read(prompt_ids)

    target.encoder.read = reads  # type: ignore[method-assign, assignment]
    generation = decode(build("autoregressive"), target, DecodeRequest(SOURCE, 2, clock=lambda: float(next(marks))))
    assert at == [1] and generation.ttft_s == 2.0


def test_stops_and_limits_are_those_of_the_answer() -> None:
    model = tiny_t5()
    target, answer = Target(model, None), PlainT5(model).answer(SOURCE, NEW_TOKENS)
    stop = next(token for place, token in enumerate(answer) if place > 3 and token not in answer[:place])
    target.tokenizer_or_none = TargetTokenizer(None, model.config, frozenset({stop}))
    generation = generate("autoregressive", target)
    assert generation.stop_reason == "stop" and list(generation.token_ids) == answer[: answer.index(stop) + 1]
    short = Target(tiny_t5(n_positions=12), None)
    assert generate("autoregressive", short).stop_reason == "context"
    assert len(generate("autoregressive", short).token_ids) == 11
    with refused("prompt_too_long", "12 tokens", "11"):
        generate("autoregressive", short, text_of(12))


def test_the_two_ways_of_a_near_tie_are_logits_after_prompt_and_answer() -> None:
    model = tiny_t5()
    target, plain = Target(model, None), PlainT5(model)
    exact = plain.logits(plain.states(SOURCE, [START, 4, 9])[-1, -1])
    for one_by_one in (False, True):
        ours = target.next_logits(SOURCE, [4, 9], one_by_one=one_by_one)
        torch.testing.assert_close(ours, exact, rtol=1e-9, atol=1e-9)


def test_methods_that_do_not_know_encoders_say_so() -> None:
    target = Target(tiny_t5(), None)
    free = {name for name in names(METHODS) if why_unsupported(build(name), target.info) is None}
    assert {"autoregressive", "early_exit", "prompt_lookup"} <= free and not free & {"two_model", "m2r2", "medusa"}
    assert "has an encoder" in str(why_unsupported(build("m2r2"), target.info))


def test_every_weight_decides_the_hash() -> None:
    """Of a model without a folder too: one that differs in its encoder or its distances is another one."""
    hashes = set()
    for change in ("encoder.block.0.layer.0.SelfAttention.q", "decoder.block.3.layer.1.EncDecAttention.v", "", "bias"):
        model = tiny_t5()
        name = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias" if change == "bias" else change
        if name:
            model.get_submodule(name).weight.add_(0.1)
        hashes.add(Target(model, None).weights_sha256)
    assert len(hashes) == 4


@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_is_loaded_and_probed(tied: bool, tmp_path: Path) -> None:
    model, tokenizer = tiny_t5(vocabulary=320, tie_word_embeddings=tied).float(), tiny_tokenizer(chat=False)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    target = Target.load(tmp_path)
    torch.testing.assert_close(target.lm_head.weight, model.lm_head.weight)
    prompt = target.tokenizer.encode_chat([{"role": "user", "content": "Once upon a time"}])
    theirs = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, use_cache=False)[0, 1:].tolist()
    stops = [place for place, token in enumerate(theirs) if token in target.stop_ids]
    expected = theirs[: stops[0] + 1] if stops else theirs
    assert list(generate("autoregressive", target, prompt, 12).token_ids) == expected


def test_a_model_that_does_not_say_what_its_text_begins_with_is_refused() -> None:
    """It was a TypeError; the padding token, with which published ones begin, stands in where there is one."""
    model = tiny_t5()
    model.generation_config.decoder_start_token_id = None
    assert Target(model, None).begin(SOURCE) == [0]
    model.config.pad_token_id = None
    with refused("no_decoder_start", "decoder_start_token_id", "pad_token_id", "config.json"):
        Target(model, None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_configuration_alone_tells_what_the_weights_are(kind: str) -> None:
    """The decoder's layers are meant, of which there are more here than the encoder has."""
    target = Target(tiny_t5(kind), None)
    told, attention = TargetInfo.of(target.config), target.blocks[0].attention
    assert (told.family, told.layers, told.mlp_size) == ("t5", LAYERS, 40)
    assert told.is_encoder_decoder and told.experts_per_token == 0
    assert (told.vocabulary, told.hidden_size) == target.lm_head.weight.shape
    assert told.query_size == told.kv_size == attention.heads * attention.head_dim


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_loaded_in_every_precision(kind: str, dtype: str, tmp_path: Path) -> None:
    """In float16 transformers keeps the last product of each MLP in float32; loading compares with its logits."""
    tiny_t5(kind, vocabulary=320).float().save_pretrained(tmp_path)
    tiny_tokenizer(chat=False).save_pretrained(tmp_path)
    target = Target.load(tmp_path, dtype=dtype)
    assert target.dtype == DTYPES[dtype]
    assert len(generate("early_exit[exits=2,threshold=0.1]", target, SOURCE, 5).token_ids) in range(1, 6)


def test_a_method_with_its_own_conditions_cannot_leave_out_the_check_of_encoders() -> None:
    """A plug-in that overrode `unsupported` without super() ran on T5, which it did not know."""

    class Careless(Autoregressive):  # type: ignore[misc]
        supports_encoder_decoder = False

        def unsupported(self, target: TargetInfo) -> str | None:
            return None

    assert "has an encoder" in str(why_unsupported(Careless(), Target(tiny_t5(), None).info))


THRESHOLDS = {  # by kind and tied: tokens leave at different layers within an answer
    ("relu", True): (0.2,),
    ("relu", False): (0.5, 0.8),
    ("gated-gelu", True): (0.26,),
    ("gated-gelu", False): (0.7, 0.9),
}
SPEAKS = "early_exit[head=trained,confidence=softmax_max,exits=1+3"


def modules_of(label: str, target: Target, folder: Path, change: float = 0.3) -> Weights:
    """Weights, in float64, of modules for a label, saved in ``folder``; by default they change the residual by much."""
    method = build(label)
    assert isinstance(method, Trainable)
    module = untrained(method, target)
    with torch.no_grad():
        for number, (name, weight) in enumerate(module.named_parameters()):
            weight.add_(change * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)))
            if name.endswith("up.weight"):
                weight.mul_(weight.shape[1] / ALPHA)
    save_modules(folder, module, facts_of(label, method, target))
    kept = load_modules(method, label.split("[")[0], target, str(folder)).state_dict()
    return {name: weight.double() for name, weight in kept.items()}


def plain_answer(
    plain: PlainT5, weights: Weights, source: list[int], exits: tuple[int, ...], threshold: float, deferred: bool
) -> tuple[list[int], list[int]]:
    """Tokens and where each left, by the likeliest token of trained exits, or by the gap of the bare ones.

    What is ``deferred`` is seen by later tokens as the full model computes it.
    """
    text, depths = [START], [LAYERS]
    while len(text) <= NEW_TOKENS:
        states = plain.states(source, text, None if deferred else depths)[:, -1]
        leaves, said = LAYERS, plain.logits(states[LAYERS])
        for exit in exits if len(text) > 1 else ():
            logits = spoken(plain.model, weights, exit, states[exit]) if weights else plain.logits(states[exit])
            best, second = logits.softmax(-1).topk(2).values.tolist()
            if (best if weights else best - second) >= threshold:
                leaves, said = exit, logits
                break
        depths[-1] = leaves
        text.append(int(said.argmax()))
        depths.append(LAYERS)
    return text[1:], depths[:-1]


@pytest.mark.parametrize("threshold", [0.0, 0.05, 2.0])
def test_tokens_that_leave_early_are_those_of_the_plain_decoder(threshold: float) -> None:
    """Later tokens see the frozen residual's keys and values; the encoder is looked at by layers that run only."""
    model = tiny_t5()
    generation = generate(f"early_exit[exits=1+3,threshold={threshold}]", Target(model, None))
    tokens, depths = plain_answer(PlainT5(model), {}, SOURCE, (1, 3), threshold, deferred=False)
    assert (list(generation.token_ids), list(generation.layers)) == (tokens, depths)
    assert len(set(depths[1:])) == (1 if threshold in (0.0, 2.0) else 3)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("label", "exits", "deferred"),
    [
        ("deed[threshold={}]", (1, 2, 3), True),
        (SPEAKS + ",threshold={}]", (1, 3), False),
        (SPEAKS + ",threshold={},kv_policy=deferred_exact]", (1, 3), True),
    ],
)
def test_tokens_that_leave_by_trained_exits_are_those_of_the_plain_decoder(
    label: str, exits: tuple[int, ...], deferred: bool, kind: str, tied: bool, tmp_path: Path
) -> None:
    """Untied models have a head of their own, and do not scale what it reads."""
    model = tiny_t5(kind, tie_word_embeddings=tied)
    target, mixed = Target(model, None), 0
    weights = modules_of(label.format(0.5), target, tmp_path)
    for source, threshold in product((SOURCE, [4]), THRESHOLDS[kind, tied]):
        generation = generate(label.format(threshold), target, source, modules=tmp_path)
        tokens, depths = plain_answer(PlainT5(model), weights, source, exits, threshold, deferred)
        assert list(generation.token_ids) == tokens
        assert list(generation.layers) == (caught_up(depths, 1) if deferred else depths)
        mixed = max(mixed, len(set(depths[1:])))
    assert mixed > 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "label", ["deed[mode=draft,exits=2+3,threshold=0.1]", SPEAKS.replace("1+3", "3") + ",mode=draft,threshold=0.1]"]
)
def test_drafts_of_trained_exits_give_the_answer_of_the_plain_decoder(label: str, kind: str, tmp_path: Path) -> None:
    model = tiny_t5(kind)
    target, accepted, drafted = Target(model, None), 0, 0
    modules_of(label, target, tmp_path, change=0.02)
    for source in (SOURCE, [4]):
        generation = generate(label, target, source, modules=tmp_path)
        assert list(generation.token_ids) == PlainT5(model).answer(source, NEW_TOKENS)
        drafted += sum(step.drafted for step in generation.steps)
        accepted += sum(step.accepted for step in generation.steps)
    assert 0 < accepted < drafted
