"""skip_decode and its adapters: who runs which layers, against one pass over the whole text; what is learnt."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from oracles import Naive, in_float64
from plain_depths import Plan, assert_one_pass, divergence, plan_of_depths, planned_states, said_by, with_adapters
from runs import LAYERS, MODELS, Pair, pair, prompt_of, run
from target_batches import answered, batch_of, learn
from tiny import tiny_model, tiny_target
from torch import Tensor
from untrained import untrained_as

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.adapters import AdaptedTexts, Adapters, LayerAdapter
from benchctl.decoding.modules.losses import CE_SHARE
from benchctl.decoding.modules.low_rank import AdapterSettings
from benchctl.decoding.modules.trainable import Tally, TrainingBatch
from benchctl.methods.skip_decode import SkipDecode
from benchctl.methods.skip_decode.schedule import DepthSchedule, text_depths
from benchctl.registry import build
from benchctl.training.data.packing import Batch
from benchctl.training.modules.frozen import BatchMaker

# Options, and the depths of new tokens 0, 1, 2 ... that follow from them by hand; the last one stays.
SCHEDULES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("fall_tokens=8", (4, 4, 4, 3, 3, 3, 3, 2, 2)),  # 4 3.75 3.5 3.25 3 2.75 2.5 2.25 2, halves up
    ("min_layers=1,fall_tokens=3", (4, 3, 2, 1)),
    ("min_layers=2,max_layers=3,warmup_layers=2,fall_tokens=2", (3, 3, 2)),
    ("min_layers=3,max_layers=3,fall_tokens=5", (3,)),
    ("min_layers=1,max_layers=2,warmup_layers=0,fall_tokens=4", (2, 2, 2, 1, 1)),
)


def depth_at(depths: tuple[int, ...], new_token: int) -> int:
    return depths[max(0, min(new_token, len(depths) - 1))]


def warmup_of(options: str) -> int:
    method = build(f"skip_decode[{options}]")
    assert isinstance(method, SkipDecode)
    warmup: int = method.warmup_layers
    return warmup


def model_of(models: Pair, label: str) -> Any:
    """Transformers' model with the adapters that `run` gives the method, merged."""
    method = build(label)
    assert isinstance(method, SkipDecode)
    if method.adapters == "none":
        return models.model
    return with_adapters(models.model, untrained_as(Adapters, method, models.target).double())


def text_of_depths(depths: tuple[int, ...], prompt: list[int], answered: int) -> list[int]:
    return [depths[0]] * len(prompt) + [depth_at(depths, token) for token in range(answered)]


@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize("adapters", ["lora", "none"])
@pytest.mark.parametrize(("options", "depths"), SCHEDULES)
def test_tokens_layers_logits_and_cache_are_those_of_one_pass_over_the_text(
    monkeypatch: pytest.MonkeyPatch, options: str, depths: tuple[int, ...], adapters: str, family: str, seed: int
) -> None:
    models, prompt = pair(family, seed), prompt_of(9, seed)
    label = f"skip_decode[{options},adapters={adapters}]"

    def plan_of(tokens: int) -> Plan:
        return plan_of_depths(LAYERS, warmup_of(options), text_of_depths(depths, prompt, tokens - len(prompt)))

    assert_one_pass(monkeypatch, label, models.target, prompt, model_of(models, label), plan_of)


def test_a_mixture_of_experts_leaves_layers_out_too() -> None:
    models, prompt = pair("mixtral", 3), prompt_of(13)
    found = run("skip_decode[min_layers=2,fall_tokens=3,adapters=none]", models.target, prompt, 20)
    text = [*prompt, *found.token_ids[:-1]]
    depths = text_of_depths((4, 3, 3, 2), prompt, 19)
    expected = said_by(models.model, planned_states(models.model, text, plan_of_depths(LAYERS, 1, depths)))
    assert list(found.token_ids) == expected[12:].argmax(-1).tolist()


def test_the_schedule_of_the_docstring() -> None:
    schedule = DepthSchedule(16, 16, 8, 2, 4)
    assert [schedule.depth(token) for token in (0, 1, 2, 3, 4, 5, 99)] == [16, 14, 12, 10, 8, 8, 8]
    assert schedule.running(8) == (range(2), range(10, 16))
    assert schedule.running(16) == (range(2), range(2, 16))
    assert DepthSchedule(16, 8, 2, 2, 3).running(2) == (range(2), range(16, 16))


def test_depth_never_grows_and_layers_are_among_those_of_the_token_before() -> None:
    for most in range(1, 9):
        for least in range(1, most + 1):
            for warmup in range(least + 1):
                for fall in (1, 2, 7, 30):
                    schedule = DepthSchedule(8, most, least, warmup, fall)
                    ran = [set().union(*schedule.running(schedule.depth(token))) for token in range(40)]
                    assert all(later <= earlier for earlier, later in zip(ran, ran[1:], strict=False))
                    assert [len(layers) for layers in (ran[0], ran[fall], ran[-1])] == [most, least, least]


def test_many_depths_at_once_are_those_of_each() -> None:
    schedule = DepthSchedule(16, 15, 6, 3, 7)
    tokens = torch.arange(-3, 12)
    expected = [schedule.depth(max(0, token)) for token in tokens.tolist()]
    assert schedule.depths(tokens, torch.full_like(tokens, 7)).tolist() == expected
    for index in range(16):
        bottom_or_top = [any(index in part for part in schedule.running(depth)) for depth in expected]
        assert schedule.runs(index, torch.tensor(expected)).tolist() == bottom_or_top


def texts(weights: list[float], documents: list[int]) -> TrainingBatch:
    """One row; nothing but its documents and weights is asked for."""
    target_batch = batch_of(pair("llama").naive, [[5] * len(weights)], [weights])
    numbers = torch.tensor([documents])
    starts = [documents.index(number) for number in documents]
    positions = torch.arange(len(weights))[None] - torch.tensor([starts])
    return replace(target_batch, documents=numbers, positions=positions)


def test_an_answer_begins_where_tokens_weigh_more_and_depth_falls_from_there() -> None:
    """A chat of one answer, which begins at its fourth token, and padding."""
    target_batch = texts([0.3, 0.3, 0.3, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0, -1])
    depths, new = text_depths(DepthSchedule(8, 8, 4, 1, 4), target_batch, chance=False)
    assert depths[0, :7].tolist() == [8, 8, 8, 8, 7, 6, 5]
    assert new[0, :7].tolist() == [False, False, False, True, True, True, True]


def test_documents_of_one_row_each_have_a_prompt_of_their_own() -> None:
    target_batch = texts([0.3, 1, 1, 1, 0, 0, 0, 1], [0, 0, 0, 0, 1, 1, 1, 1])
    depths = text_depths(DepthSchedule(8, 8, 4, 1, 2), target_batch, chance=False).depths
    assert depths.tolist() == [[8, 8, 6, 4, 8, 8, 8, 8]]


def test_in_training_every_answer_and_every_length_comes_up() -> None:
    """Two answers, either of which may be the one decoded; the fall ends between the document's end, three or seven
    tokens further, and fall_tokens. Depth never grows along a document."""
    weights = [0.3, 1, 1, 0.3, 0.3, 1, 1, 1]
    target_batch, schedule = texts(weights, [0] * 8), DepthSchedule(9, 9, 1, 1, 16)
    drawn = [text_depths(schedule, target_batch, chance=True) for _ in range(200)]
    assert {int(new.float().argmax()) for _, new in drawn} == {1, 5}
    assert all((depths[:, 1:] <= depths[:, :-1]).all() for depths, _ in drawn)
    ends = {int(depths[0, 7]) for depths, new in drawn if not new[0, 1]}
    # Positions 5 to 7 are new tokens 0 to 2; falls of 3 to 16 tokens: 9 - 8 * 2 / 3 = 3.67 to 9 - 8 * 2 / 16 = 8.
    assert ends <= set(range(4, 9)) and {4, 8} <= ends


def test_a_text_without_answers_is_cut_anywhere_behind_its_first_token() -> None:
    target_batch = texts([1.0] * 6, [0] * 6)
    schedule = DepthSchedule(8, 8, 4, 1, 4)
    drawn = {int(text_depths(schedule, target_batch, chance=True).new.float().argmax()) for _ in range(300)}
    assert drawn == {1, 2, 3, 4, 5}
    same = [text_depths(schedule, target_batch, chance=False).depths for _ in range(2)]
    assert same[0].equal(same[1])


def test_a_row_of_documents_of_one_token_each_is_all_prompt() -> None:
    target_batch = texts([1.0] * 4, [0, 1, 2, 3])
    for chance in (True, False):
        assert text_depths(DepthSchedule(8, 8, 4, 1, 4), target_batch, chance).depths.tolist() == [[8] * 4]


@torch.no_grad()
def test_the_loss_is_the_divergence_of_each_token_at_its_depth() -> None:
    """By hand, from one pass over the text; in eval mode, so that the depths are the same each time."""
    models, text, weights = pair("llama"), prompt_of(8), [0.0, 0.3, 1, 1, 1, 0.5, 1, 1]
    method = SkipDecode(min_layers=1, fall_tokens=4)
    module = untrained_as(Adapters, method, models.target).eval()
    target_batch = batch_of(models.naive, [text], [weights])
    starts = text_depths(DepthSchedule(4, 4, 1, 1, 4), target_batch, chance=False)
    depths = starts.depths[0].tolist()
    assert len(set(depths)) > 2
    model = with_adapters(models.model, module.double())
    module.float()
    said = said_by(model, planned_states(model, text, plan_of_depths(LAYERS, 1, depths)))
    final = said_by(models.model, models.naive.states(text))
    expected = sum(weights[at + 1] * divergence(model, final[at], said[at], text[at + 1], CE_SHARE) for at in range(7))
    torch.testing.assert_close(
        method.loss(module, target_batch).double(), torch.as_tensor(expected), rtol=1e-4, atol=1e-4
    )
    found = method.yardsticks(module, target_batch)
    counted = [at for at in range(7) if starts.new[0, at]]
    right = sum(weights[at + 1] for at in counted if said[at].argmax() == final[at].argmax())
    total = sum(weights[at + 1] for at in counted)
    assert (found["agreement"].right, found["agreement"].of) == (pytest.approx(right), pytest.approx(total))
    assert found["depth"].right == pytest.approx(sum(weights[at + 1] * depths[at] for at in counted))
    assert found["depth"].of == pytest.approx(4 * total)
    by_depth = sum((found[f"depth_{depth}_agreement"] for depth in range(1, 5)), Tally(0, 0))
    assert (by_depth.right, by_depth.of) == (pytest.approx(right), pytest.approx(total))


@pytest.mark.slow
def test_training_lowers_the_loss_and_the_trained_layers_say_more_of_what_the_target_says() -> None:
    models, method = pair("llama"), SkipDecode(min_layers=2, fall_tokens=8)
    target_batch = batch_of(models.naive, answered(models.naive, 12), [[0.3] * 6 + [1.0] * 40 for _ in range(12)])
    torch.manual_seed(0)
    module = method.build(models.target.info, models.target.lm_head.weight)
    before = method.yardsticks(module, target_batch)["agreement"].share
    losses = learn(method.loss, module, target_batch, 60)
    after = method.yardsticks(module, target_batch)["agreement"].share
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
    assert after > before + 0.2


def test_every_adapter_of_a_layer_that_runs_learns_and_the_target_does_not() -> None:
    models, method = pair("llama"), SkipDecode(fall_tokens=4)
    module = untrained_as(Adapters, method, models.target)
    method.loss(module, batch_of(models.naive, [prompt_of(12)])).backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in module.parameters())
    assert all(weight.grad is None for weight in models.model.parameters())


FAMILIES = ("llama", "qwen3", "mistral_window", "llama_biases")
SETTINGS = SkipDecode(rank=5, alpha=7.0)
adapters_for = partial(untrained_as, Adapters, SETTINGS)  # they change much


@torch.inference_mode()
def logits_of(target: Target, text: list[int]) -> Tensor:
    stream = Stream(target, len(text))
    stream.push(text)
    stream.advance()
    return stream.logits()


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_layers_are_those_of_the_sums(family: str) -> None:
    models, text = pair(family), prompt_of(13)
    adapters = adapters_for(models.target).double()
    merged = Naive(with_adapters(models.model, adapters))
    expected = merged.logits(merged.states(text)[-1])
    found = logits_of(adapters.merge(models.target), text)
    assert (found - expected).abs().max() < 1e-10
    assert (found - logits_of(models.target, text)).abs().max() > 1e-2


@pytest.mark.parametrize("family", [*FAMILIES, "mixtral", "phi3", "olmoe"])
def test_merged_layers_and_layers_beside_adapters_say_the_same(family: str) -> None:
    """For a float32 batch to the digits of its states; experts have no adapters, their attention has."""
    models, texts = pair(family), [prompt_of(9), prompt_of(4, 1)]
    adapters = adapters_for(models.target)
    batch = batch_of(models.naive, texts)
    beside, state = AdaptedTexts(adapters, batch), batch.states[0]
    with torch.no_grad():
        for index in range(LAYERS):
            state = beside.through(index, state)
        said = batch.head(batch.norm(state))
    view = adapters.double().merge(models.target)
    for row, text in enumerate(texts):
        torch.testing.assert_close(said[row, : len(text)], logits_of(view, text), rtol=1e-3, atol=1e-3)


def test_fresh_adapters_change_nothing() -> None:
    target, text = pair("llama").target, prompt_of(13)
    fresh = SETTINGS.build(target.info, target.lm_head.weight)
    assert isinstance(fresh, Adapters)
    assert torch.equal(logits_of(fresh.double().merge(target), text), logits_of(target, text))


def fingerprint(target: Target) -> str:
    """Of every weight that decoding reads, in whichever layout it is held."""
    twin = copy.copy(target)
    twin.__dict__.pop("weights_sha256", None)  # which is computed once
    return twin.weights_sha256


@pytest.mark.parametrize(
    ("label", "family"), [("skip_decode", "llama"), ("mixture_of_depths", "llama"), ("expert_offload", "olmoe")]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_target_that_others_decode_on_is_never_written_to(label: str, family: str, dtype: torch.dtype) -> None:
    target = tiny_target(family, layers=4, dtype=dtype)
    blocks, before = list(target.blocks), fingerprint(target)
    run(label, target, prompt_of(13), 20)
    assert fingerprint(target) == before
    assert all(one is other for one, other in zip(blocks, target.blocks, strict=True))


def two_documents() -> Batch:
    tokens = torch.tensor([[*prompt_of(6), *prompt_of(5, 1), 0]])
    documents = torch.tensor([[0] * 6 + [1] * 5 + [-1]])
    positions = torch.tensor([[*range(6), *range(5), 0]])
    return Batch(tokens, (documents >= 0).float(), documents, positions)


@pytest.mark.parametrize("passing", [None, torch.arange(12)[None] % 3 > 0], ids=["all pass", "some pass"])
@torch.no_grad()
def test_documents_in_one_row_do_not_see_each_other(passing: Tensor | None) -> None:
    model = tiny_model("llama", layers=LAYERS, vocab_size=24)
    adapters, batch = adapters_for(Target(model, None)), BatchMaker(model, torch.device("cpu"))(two_documents())
    together = last_state(adapters, batch, passing)
    naive = Naive(in_float64(model.double()))
    for start, text in ((0, prompt_of(6)), (6, prompt_of(5, 1))):
        own = None if passing is None else passing[:, start : start + len(text)]
        alone = last_state(adapters, batch_of(naive, [text]), own)
        torch.testing.assert_close(together[0, start : start + len(text)], alone[0], rtol=1e-4, atol=1e-4)


def last_state(adapters: Adapters, batch: TrainingBatch, passing: Tensor | None = None) -> Tensor:
    texts, state = AdaptedTexts(adapters, batch), batch.states[0]
    for index in range(len(batch.states) - 1):
        state = texts.through(index, state, passing)
    return state


@pytest.mark.parametrize("family", ["llama", "mistral_window"])
def test_rows_of_which_some_tokens_pass_are_as_if_each_were_alone(family: str) -> None:
    """Values and gradients; rows have other numbers of tokens that pass."""
    models, texts = pair(family), [prompt_of(9), prompt_of(7, 1), prompt_of(9, 2)]
    adapters, batch = adapters_for(models.target), batch_of(models.naive, texts)
    passing = (torch.arange(27).view(3, 9) % 4 > 0) & (batch.documents >= 0)
    together = last_state(adapters, batch, passing)
    alone = [
        last_state(adapters, batch_of(models.naive, [text]), passing[row : row + 1, : len(text)])[0]
        for row, text in enumerate(texts)
    ]
    for row, state in enumerate(alone):
        torch.testing.assert_close(together[row, : len(state)], state, rtol=1e-4, atol=1e-4)
    weights = [*adapters.parameters()]
    real = batch.documents >= 0
    mine = torch.autograd.grad(together[real].square().mean(), weights)
    theirs = torch.autograd.grad(torch.cat(alone).square().mean(), weights)
    for one, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-3, atol=1e-5)


def test_half_precision_is_added_up_in_float32() -> None:
    """1 + (2^-8 + 2^-17) is nearer to 1 + 2^-7 than to 1; in bfloat16 the bracket would be 2^-8, and the sum a tie."""
    target = tiny_target("llama", layers=1, dtype=torch.bfloat16)
    adapter = LayerAdapter(target.info, AdapterSettings("lora", 2, 2.0), target.device).bfloat16()
    adapter.out.down.weight.data[:, 0] = 1.0
    adapter.out.up.weight.data[0] = torch.tensor([2.0**-8, 2.0**-17])
    block = target.blocks[0]
    block.attention.out.weight[0, 0] = 1.0
    merged = adapter.merged(block, "plain")
    assert merged.attention.out.weight.dtype == torch.bfloat16
    assert float(merged.attention.out.weight[0, 0]) == 1 + 2.0**-7
    assert merged.attention.qkv.weight.equal(block.attention.qkv.weight)
