"""skip_decode: who runs which layers, against one pass over the whole text; and how that is learnt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import Naive, autoregressive
from plain_depths import divergence, picked_from, plan_of_depths, planned_states, said_by, with_adapters
from runs import LAYERS, NEW_TOKENS, Pair, answer, pair, prepared, prompt_of, run
from target_batches import batch_of, learn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import DynamicCache
from two_streams import halves
from untrained import facts_of, untrained, untrained_folder

from benchctl.conformance.checks import examine
from benchctl.decoding.batch import decode_batch
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Context
from benchctl.decoding.modules.adapters import Adapters
from benchctl.decoding.modules.exits import CE_SHARE
from benchctl.decoding.modules.trainable import Tally, TrainingBatch, save_modules
from benchctl.decoding.sampling import Sampling
from benchctl.errors import UserError
from benchctl.methods.skip_decode import SkipDecode
from benchctl.methods.skip_decode.schedule import DepthSchedule, scheduled_states, text_depths
from benchctl.registry import build

MODELS = (("llama", 0), ("qwen3", 2), ("mistral_window", 4))
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
    module = untrained(method, models.target)
    assert isinstance(module, Adapters)
    return with_adapters(models.model, module.double())


def text_of_depths(depths: tuple[int, ...], prompt: list[int], answered: int) -> list[int]:
    return [depths[0]] * len(prompt) + [depth_at(depths, token) for token in range(answered)]


@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize("adapters", ["lora", "none"])
@pytest.mark.parametrize(("options", "depths"), SCHEDULES)
def test_tokens_layers_and_logits_are_those_of_one_pass_over_the_text(
    monkeypatch: pytest.MonkeyPatch, options: str, depths: tuple[int, ...], adapters: str, family: str, seed: int
) -> None:
    models, prompt = pair(family, seed), prompt_of(9, seed)
    label = f"skip_decode[{options},adapters={adapters}]"
    seen = picked_from(monkeypatch)
    found = run(label, models.target, prompt, 20)
    text = [*prompt, *found.token_ids[:-1]]
    of_text = text_of_depths(depths, prompt, len(text) - len(prompt))
    model = model_of(models, label)
    states = planned_states(model, text, plan_of_depths(LAYERS, warmup_of(options), of_text))
    expected = said_by(model, states)[len(prompt) - 1 :]
    assert (torch.cat(seen) - expected).abs().max() < 1e-10
    assert list(found.token_ids) == expected.argmax(-1).tolist()
    assert list(found.layers) == of_text[len(prompt) - 1 :]


def test_a_schedule_of_all_layers_says_what_the_target_says() -> None:
    for family, seed in MODELS:
        for options in ("min_layers=4,max_layers=4", "min_layers=4,warmup_layers=4"):
            found = run(f"skip_decode[{options},adapters=none]", pair(family, seed).target, prompt_of(13, seed), 40)
            assert list(found.token_ids) == answer(family, seed, 13)
            assert set(found.layers) == {LAYERS}


def test_what_is_left_out_matters() -> None:
    """So the comparison can fail: fewer layers, other layers and adapters each say something else."""
    target = pair("llama").target
    labels = (
        "min_layers=4,adapters=none",
        "min_layers=2,fall_tokens=4,adapters=none",
        "min_layers=2,fall_tokens=9,adapters=none",
        "min_layers=2,fall_tokens=4,warmup_layers=2,adapters=none",
        "min_layers=2,fall_tokens=4",
    )
    assert len({run(f"skip_decode[{label}]", target, prompt_of(13), 20).token_ids for label in labels}) == len(labels)


def test_a_mixture_of_experts_leaves_layers_out_too() -> None:
    models, prompt = pair("mixtral", 3), prompt_of(13)
    found = run("skip_decode[min_layers=2,fall_tokens=3,adapters=none]", models.target, prompt, 20)
    text = [*prompt, *found.token_ids[:-1]]
    depths = text_of_depths((4, 3, 3, 2), prompt, 19)
    expected = said_by(models.model, planned_states(models.model, text, plan_of_depths(LAYERS, 1, depths)))
    assert list(found.token_ids) == expected[12:].argmax(-1).tolist()


@torch.inference_mode()
def test_each_layer_holds_the_keys_and_values_of_the_tokens_that_ran_it_and_of_no_others() -> None:
    models, prompt, warmup = pair("llama"), prompt_of(9), 1
    label = "skip_decode[min_layers=2,fall_tokens=6]"
    method, stream = prepared(label, models.target), Stream(models.target, 40)
    with method.serve(models.target, None) as view:
        stream = Stream(view, 40)
        context = Context(view, stream, list(prompt), len(prompt), 20, Sampling(), torch.Generator())
        context.tokens.append(method.start(context))
        for _ in range(10):
            context.tokens += method.step(context)
    text, depths = context.tokens[:-1], (4, 4, 3, 3, 3, 2, 2)
    of_text = text_of_depths(depths, prompt, 10)
    cache: Any = DynamicCache()
    planned_states(model_of(models, label), text, plan_of_depths(LAYERS, warmup, of_text), cache)
    for index, layer in enumerate(cache.layers):
        runs = [at for at, depth in enumerate(of_text) if index < warmup or LAYERS - index <= depth - warmup]
        assert stream.cache.absent[index] == [at for at in range(len(text)) if at not in runs]
        heads = stream.cache.kv[index].shape[0] // 2
        keys, values = stream.cache.kv[index][:heads, runs], stream.cache.kv[index][heads:, runs]
        assert (keys[..., halves(keys.shape[-1])] - layer.keys[0][:, runs]).abs().max() < 1e-11
        assert (values - layer.values[0][:, runs]).abs().max() < 1e-11


def test_nothing_of_one_prompt_is_left_for_the_next() -> None:
    models = pair("llama")
    method = prepared("skip_decode[fall_tokens=6]", models.target)
    found = [decode(method, models.target, DecodeRequest(prompt_of(tokens), NEW_TOKENS)) for tokens in (13, 2, 13)]
    assert found[0] == found[2]
    assert found[1].token_ids == run("skip_decode[fall_tokens=6]", models.target, prompt_of(2), NEW_TOKENS).token_ids


@pytest.mark.parametrize("options", ["fall_tokens=8", "min_layers=1,max_layers=3,fall_tokens=5,adapters=none"])
def test_a_batch_says_what_each_of_its_sequences_says_alone(options: str) -> None:
    """Prompts of other lengths, one of which ends at the end of the context."""
    models, label = pair("llama"), f"skip_decode[{options}]"
    requests = [DecodeRequest(prompt_of(tokens, tokens), 20) for tokens in (13, 2, 50, 7)]
    method = prepared(label, models.target)
    together = decode_batch(method, models.target, requests)
    alone = [run(label, models.target, list(request.prompt_ids), 20) for request in requests]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert [one.layers for one in together] == [one.layers for one in alone]
    assert len(set(together[0].layers)) > 2


@pytest.mark.slow
@pytest.mark.parametrize("label", ["skip_decode", "skip_decode[adapters=none,fall_tokens=10]"])
def test_it_conducts_itself_as_every_method_must(label: str) -> None:
    verdicts = {(finding.check, finding.target): finding.verdict for finding in examine(label)}
    assert "fail" not in verdicts.values()
    assert verdicts["engaged", "llama"] == verdicts["engaged", "mixtral"] == "pass"


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


def adapters_of(method: SkipDecode, models: Pair) -> Adapters:
    module = untrained(method, models.target)
    assert isinstance(module, Adapters)
    return module


@torch.no_grad()
def test_the_loss_is_the_divergence_of_each_token_at_its_depth() -> None:
    """By hand, from one pass over the text; in eval mode, so that the depths are the same each time."""
    models, text, weights = pair("llama"), prompt_of(8), [0.0, 0.3, 1, 1, 1, 0.5, 1, 1]
    method = SkipDecode(min_layers=1, fall_tokens=4)
    module = adapters_of(method, models).eval()
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
def test_training_lowers_the_loss_and_the_trained_layers_say_more_of_what_the_target_says(tmp_path: Path) -> None:
    models, method = pair("llama"), SkipDecode(min_layers=2, fall_tokens=8)
    target_batch = batch_of(models.naive, _texts(models.naive), [[0.3] * 6 + [1.0] * 40 for _ in range(12)])
    torch.manual_seed(0)
    module = method.build(models.target.info, models.target.lm_head.weight)
    before = method.yardsticks(module, target_batch)["agreement"].share
    losses = learn(method, module, target_batch, 60)
    after = method.yardsticks(module, target_batch)["agreement"].share
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
    assert after > before + 0.2
    save_modules(tmp_path, module, facts_of("skip_decode", method, models.target))
    labels = {"lora": f"min_layers=2,fall_tokens=8,modules={tmp_path}", "none": "fall_tokens=8,adapters=none"}
    agree = {}
    for name, options in labels.items():
        trained = build(f"skip_decode[{options}]")
        trained.prepare(models.target)
        found = [decode(trained, models.target, DecodeRequest(text[:6], 20)) for text in _texts(models.naive)]
        agree[name] = sum(
            one == other
            for text, generation in zip(_texts(models.naive), found, strict=True)
            for one, other in zip(text[6:26], generation.token_ids, strict=True)
        )
    assert agree["lora"] > agree["none"] + 20


def _texts(naive: Naive) -> list[list[int]]:
    return [[*prompt_of(6, seed), *autoregressive(naive, prompt_of(6, seed), 40)] for seed in range(12)]


def test_every_adapter_of_a_layer_that_runs_learns_and_the_target_does_not() -> None:
    models, method = pair("llama"), SkipDecode(fall_tokens=4)
    module = adapters_of(method, models)
    method.loss(module, batch_of(models.naive, [prompt_of(12)])).backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in module.parameters())
    assert all(weight.grad is None for weight in models.model.parameters())


def test_the_loss_needs_no_value_of_its_tensors() -> None:
    """What a training would cost is estimated on shapes alone."""
    target_batch, method = batch_of(pair("llama").naive, [[5, 6, 7, 8]]), SkipDecode()
    module = adapters_of(method, pair("llama"))
    assert method.loss(module, target_batch).isfinite()  # reads the layers, which fake tensors cannot
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert method.loss(module, target_batch).shape == ()


def test_adapters_beside_the_states_of_a_target_batch_start_as_the_target_at_full_depth() -> None:
    models = pair("llama")
    fresh = SkipDecode().build(models.target.info, models.target.lm_head.weight)
    assert isinstance(fresh, Adapters)
    target_batch = batch_of(models.naive, [prompt_of(9)])
    schedule = DepthSchedule(LAYERS, LAYERS, LAYERS, 1, 4)
    state = scheduled_states(schedule, fresh, target_batch, torch.full((1, 9), LAYERS))
    torch.testing.assert_close(state, target_batch.states[-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("min_layers=-1", "min_layers is -1; it must not be negative"),
        ("warmup_layers=-2", "warmup_layers is -2; it must not be negative"),
        ("fall_tokens=0", "fall_tokens is 0; it must be at least 1"),
        ("min_layers=5,max_layers=4", "min_layers 5 is above max_layers 4: depth never grows"),
        ("min_layers=2,warmup_layers=3", "warmup_layers 3 always run, but a token may have 2 layers only"),
        ("max_layers=2,warmup_layers=3", "warmup_layers 3 always run, but a token may have 2 layers only"),
        ("rank=0", "rank is 0; it must be positive"),
        ("alpha=-1", "alpha is -1.0; it must be positive"),
        ("adapters=full", "it takes lora or none"),
        ("adapters=none,modules=somewhere", "adapters=none has no modules; they are for adapters=lora"),
    ],
)
def test_options_that_cannot_be_are_refused(options: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(f"skip_decode[{options}]")


@pytest.mark.parametrize("option", ["min_layers", "max_layers", "warmup_layers"])
def test_a_schedule_beyond_the_layers_is_no_schedule_for_this_target(option: str) -> None:
    target = pair("llama").target
    method = build(f"skip_decode[{option}=5]")
    assert isinstance(method, SkipDecode)
    assert method.unsupported(target.info) == f"{option} 5 is more than the target's 4 layers"
    with pytest.raises(UserError, match=f"cannot be trained for this target: {option} 5 is more than"):
        method.build(target.info, target.lm_head.weight)
    assert build(f"skip_decode[{option}=4]").unsupported(target.info) is None


def test_what_has_nothing_to_train_says_what_has() -> None:
    target, method = pair("llama").target, SkipDecode(adapters="none")
    assert not method.needs_modules and SkipDecode().needs_modules
    with pytest.raises(UserError, match=r"adapters=none has nothing to train; skip_decode\[adapters=lora\] has"):
        method.build(target.info, target.lm_head.weight)
    assert "no layer was trained for it" in method.reason and "trained" not in SkipDecode().reason


def test_adapters_serve_other_depths_but_no_other_warm_up() -> None:
    models = pair("llama")
    folder = untrained_folder("skip_decode", SkipDecode(), models.target)
    build(f"skip_decode[min_layers=3,fall_tokens=9,modules={folder}]").prepare(models.target)
    other = build(f"skip_decode[warmup_layers=3,modules={folder}]")
    with pytest.raises(UserError, match="trained with warmup_layers=1, not 3"):
        other.prepare(models.target)


@pytest.mark.parametrize("options", ["min_layers=1", "max_layers=1"])
def test_adapters_do_not_serve_lower_depths_than_they_were_trained_for(options: str) -> None:
    """Trained for 2 of 4 layers and more, by default or by name."""
    target = pair("llama").target
    for name in ("fall_tokens=9", "min_layers=2", "max_layers=2"):
        trained = build(f"skip_decode[{name}]")
        folder = untrained_folder(f"skip_decode[{name}]", trained, target)
        method = build(f"skip_decode[{options},modules={folder}]")
        with pytest.raises(UserError, match="trained for depths of 2 layers and more, not for 1; give min_layers=2"):
            method.prepare(target)
    lowest = untrained_folder("skip_decode[min_layers=1]", SkipDecode(min_layers=1), target)
    build(f"skip_decode[{options},modules={lowest}]").prepare(target)
