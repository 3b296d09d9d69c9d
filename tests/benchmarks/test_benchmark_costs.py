"""The bare pass that predicts a step computes what the step's rows explain, and decoding goes on as if it never ran."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from runs import pair, prepared, prompt_of, run
from tiny import tiny_folder
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from untrained import untrained_folder

from benchctl.decoding.draft import Draft
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Context, Method, Speculative, one_token
from benchctl.decoding.model.kernels import Linear
from benchctl.decoding.model.target import Target, folder_sha256
from benchctl.decoding.modules.trainable import modules_sha256
from benchctl.decoding.verify import Verdict
from benchctl.measuring.check import Models
from benchctl.methods.two_model import TwoModel
from benchctl.registry import build
from benchmarks import costs, watch
from benchmarks.costs import LABELS, StepCost, choose, cost_of, time_steps
from benchmarks.watch import Recorder, Took
from benchmarks.work import Bare, Span, Work, run_bare

NEW_TOKENS = 20
PROMPT = prompt_of(13)
# Everything that these do in what is timed is rows through layers and heads; the rest of their products is drafting.
EXPLAINED = (
    "autoregressive",
    "two_model[draft_tokens=3]",
    "prompt_lookup",
    "lookahead[ngram=3,window=4,guesses=3]",
    "medusa[heads=2,tree=3x2]",
    "m2r2[gates=1+3,exit=3,draft_tokens=3]",
    "m2r2[width=3]",
    "early_exit[mode=draft,exits=1+3,threshold=0.1]",
    "deed[mode=draft,exits=2,threshold=0]",
    "deed[exits=1+2,threshold=0.2]",
    "early_exit[threshold=0.1,exits=1+3,kv_policy=deferred_exact]",
    "skip_decode[adapters=none,min_layers=1,fall_tokens=5]",
)


HEAD = 2 * pair("llama").target.info.hidden_size * pair("llama").target.vocabulary  # operations of one row


def counted(label: str) -> list[StepCost]:
    """The steps of a generation, timed by a clock that counts operations of products instead of seconds."""
    models = pair("llama")
    method = prepared(label, models.target, models.draft)
    with FlopCounterMode(display=False) as counter:
        return time_steps(method, models.target, PROMPT, NEW_TOKENS, lambda: float(counter.get_total_flops()))


@pytest.mark.slow
@pytest.mark.parametrize("label", EXPLAINED)
def test_a_bare_pass_computes_as_much_as_the_step_it_predicts(label: str) -> None:
    steps = counted(label)
    trained_exits = "deed" in label and "mode" not in label  # whose small modules stand before the head
    assert all(step.took.seconds > 0 for step in steps)
    for step in steps:
        extra = step.took.seconds - step.bare.seconds
        assert 0 < extra < 0.5 * step.bare.seconds if trained_exits else extra == 0


def test_keys_and_values_for_layers_that_a_token_left_out_are_not_predicted_but_shown() -> None:
    steps = counted("early_exit[threshold=0,exits=1]")
    target = pair("llama").target
    info, skipped = target.info, target.layers - 1
    filled = skipped * 2 * info.hidden_size * 2 * info.kv_size
    assert {step.took.seconds - step.bare.seconds for step in steps} == {filled}
    assert {step.took.parts["fill"] for step in steps} == {filled}


@pytest.mark.slow
def test_what_a_method_hands_its_steps_to_is_shown_by_part_and_no_part_twice() -> None:
    """Each part counts what it does itself, so all parts and the head of a token that left nowhere are the step."""
    target = pair("llama").target
    steps = counted("m2r2_dynamic[gates=1+3,router=softmax_gap,threshold=0.1,kv_fill=copy_h]")
    assert len({step.work.spans[-1].last for step in steps}) > 1, "some leave, some stay"
    for step in steps:
        stays = step.work.spans[-1].last == target.layers
        assert step.took.parts["decide"] == (len(step.work.heads) - stays) * HEAD
        assert step.took.parts["run_rows"] > 0
        assert step.took.seconds == sum(step.took.parts.values()) + stays * HEAD


def test_routed_blocks_are_predicted_where_a_token_passed_them() -> None:
    steps = counted("mixture_of_depths[threshold=0.7]")
    target = pair("llama").target
    deciding = target.layers // 2 * 2 * 2 * target.info.hidden_size  # two products of one output for each routed block
    assert {step.took.seconds - step.bare.seconds for step in steps} == {deciding}
    assert len({step.work.layer_rows for step in steps}) > 1


@pytest.mark.parametrize("label", ["lookahead", "m2r2", "early_exit[mode=draft,exits=1,threshold=0.1]"])
def test_watched_decoding_gives_the_answer_of_unwatched_and_leaves_nothing_behind(label: str) -> None:
    models = pair("llama")
    method, call = prepared(label, models.target, models.draft), Linear.__call__
    steps = time_steps(method, models.target, PROMPT, NEW_TOKENS, lambda: 0.0)  # raises where an answer differs
    recorder = Recorder()
    with recorder.on(method):
        watched = decode(method, models.target, DecodeRequest(PROMPT, NEW_TOKENS))
    unwatched = run(label, models.target, PROMPT, NEW_TOKENS, draft=models.draft)
    assert watched.token_ids == unwatched.token_ids
    assert len(recorder.works) == len(steps) == len(unwatched.steps)
    assert Linear.__call__ is call
    methods = [method, *(part for part in vars(method).values() if isinstance(part, Method))]
    assert not any({"step", "draft", "verify", "observe"} & set(vars(each)) for each in methods)


def test_a_bare_pass_that_disturbs_decoding_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(*arguments: Any) -> Bare:
        cache = arguments[1]
        bare = run_bare(*arguments)
        for kept in cache.kv:
            kept[:, : cache.lengths[0]] += 1.0
        return bare

    monkeypatch.setattr(watch, "run_bare", careless)
    with pytest.raises(RuntimeError, match="disturb"):
        counted("autoregressive")


@pytest.mark.slow
def test_heads_that_a_verification_asks_for_besides_its_own_are_not_predicted_but_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The heads of a verification were once read off the step itself: any number more of them gave a ratio of 1."""
    plain = counted("two_model[draft_tokens=3]")
    verify: Callable[..., Verdict] = TwoModel.verify

    def wasteful(self: TwoModel, context: Context, draft: Draft, target_logits: Tensor) -> Verdict:
        for _ in range(20):
            context.stream.logits(0)
        return verify(self, context, draft, target_logits)

    monkeypatch.setattr(TwoModel, "verify", wasteful)
    steps = counted("two_model[draft_tokens=3]")
    assert [step.work for step in steps] == [step.work for step in plain]
    for step in steps:
        assert step.took.seconds - step.bare.seconds == 20 * step.work.argmax_rows * HEAD
        assert step.took.parts["verify"] == 0
        assert step.took.parts["logits"] == 21 * step.work.argmax_rows * HEAD
    assert cost_of("two_model", [steps] * 5).low > 1.2


@dataclass
class Fickle(Speculative):
    """Drafts in each generation another number of tokens, all wrong; None takes a step without a draft."""

    depths: tuple[int | None, ...]
    generation: int = -1

    def start(self, context: Context) -> int:
        self.generation += 1
        return super().start(context)

    def draft(self, context: Context, budget: int) -> Draft:
        return Draft.chain([0] * min(budget, self.depths[self.generation] or 0))

    def step(self, context: Context) -> Sequence[int]:
        return one_token(context) if self.depths[self.generation] is None else super().step(context)


@pytest.mark.parametrize("depths", [(1, 2, 2), (2, 1, 1), (None, 1, 1), (1, None, None), (2, 2, 1)])
def test_a_drafter_that_drafts_otherwise_when_it_is_timed_is_an_error(depths: tuple[int | None, ...]) -> None:
    with pytest.raises(RuntimeError, match="recorded"):
        time_steps(Fickle(depths), pair("llama").target, PROMPT, NEW_TOKENS, lambda: 0.0)
    steps = time_steps(Fickle((2, 2, 2)), pair("llama").target, PROMPT, NEW_TOKENS, lambda: 0.0)
    assert {step.work.heads for step in steps[:-2]} == {(3,)}


def test_the_work_of_a_verification_is_that_of_its_rows_and_scratch_rows_are_not_told() -> None:
    models = pair("llama")
    method = prepared("lookahead[ngram=3,window=4,guesses=0]", models.target)
    recorder = Recorder()
    with recorder.on(method):
        decode(method, models.target, DecodeRequest(PROMPT, NEW_TOKENS))
    full = recorder.works[1]  # the first step fills the window: ngram - 1 = 2 levels of 4 columns, the root among them
    start = len(PROMPT) + 1
    assert (full.drafted, full.argmax_rows, full.heads) == (True, 1, (8,))
    assert (len(full.tokens), full.spans) == (8, (Span(0, models.target.layers, start, 8),))
    assert full.layer_rows == 8 * models.target.layers


def test_costs_are_sums_over_the_same_steps() -> None:
    work = Work(True, (5, 6), (Span(0, 4, 9, 2),), (2,), 2)
    slow = StepCost(work, Took(0.006, {"advance": 0.004, "verify": 0.001}), Bare(0.003, 0.001))
    fast = replace(slow, took=Took(0.003, {"advance": 0.002}), bare=Bare(0.001, 0.001))
    cost = cost_of("two_model", [[slow, fast]] * 5)
    assert (cost.timed, cost.prompts, cost.steps, cost.rows, cost.layer_rows) == ("verification", 5, 10, 2, 8)
    assert (cost.measured_ms, cost.predicted_ms, cost.ratio, cost.low, cost.high) == pytest.approx(
        (4.5, 3, 1.5, 1.5, 1.5)
    )
    assert cost.parts_ms == pytest.approx({"advance": 3.0, "verify": 0.5})
    assert cost.predicted_parts_ms == pytest.approx({"layers": 2.0, "heads": 1.0})
    assert cost.goal.startswith("missed")
    assert cost.measured_s == pytest.approx((0.009,) * 5)
    assert cost.predicted_s == pytest.approx((0.006,) * 5)


def test_methods_that_cannot_run_are_left_out_with_the_reason_unless_they_are_named(tmp_path: Path) -> None:
    models = Models(str(tiny_folder(tmp_path / "one", layers=1)), "draft")
    choices, left_out = choose(["two_model[draft_tokens=3]", "two_model"], models)
    labels = [choice.label for choice in choices]
    assert labels == [label for label in LABELS if label not in left_out] + ["two_model[draft_tokens=3]"]
    assert set(left_out) > {"deed[mode=draft]", "m2r2", "medusa", "mixture_of_depths"}
    assert "no trained modules" in left_out["medusa"]
    assert "exit 1" in left_out["early_exit[mode=draft]"]
    with refused("cannot_run_here", "early_exit[exits=5]"):
        choose(["early_exit[exits=5]"], models)


def test_figures_contain_what_they_were_taken_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = (
        tiny_folder(tmp_path / role, seed=seed, stop_ids=(), max_position_embeddings=2048)
        for seed, role in enumerate(("target", "draft"))
    )
    monkeypatch.setattr(costs, "LABELS", ("two_model",))
    modules = untrained_folder("medusa", build("medusa"), Target.load(target))
    models, label = Models(str(target), str(draft)), f"medusa[modules={modules}]"
    figures: Any = costs.measure(models, [label], prompts=2, max_new_tokens=4, threads=1)
    assert (figures["prompts_per_suite"], figures["max_new_tokens"], figures["threads"]) == (2, 4, 1)
    for role, folder in (("target", target), ("draft", draft)):
        held = figures["models"][role]
        assert (held["name"], held["weights_sha256"]) == (role, folder_sha256(folder))
    named = f"medusa[modules={modules.name}]"
    assert figures["modules_sha256"] == {named: modules_sha256(str(modules))}
    assert [line["label"] for line in figures["methods"]] == ["two_model", named]
    assert str(tmp_path) not in json.dumps(figures) and str(modules) not in json.dumps(figures)
    for line in figures["methods"]:
        assert line["prompts"] == len(line["measured_s"]) == len(line["predicted_s"]) == 8
        assert line["ratio"] == pytest.approx(sum(line["measured_s"]) / sum(line["predicted_s"]))
