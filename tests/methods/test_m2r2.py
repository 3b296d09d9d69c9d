"""M2R2: its streams are what its definition says, in decoding and in training; what it proposes, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from runs import CONTEXT_TOKENS, LAYERS, MODELS, answer, check_tree, generate, pair, prepared, prompt_of
from target_batches import answered, batch_of, learn
from tiny import FAMILIES
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from two_streams import accelerated_states, beam_drafter, exit_states, guess, own_states
from untrained import facts_of, untrained, untrained_as

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import Generation
from benchctl.decoding.method import Context
from benchctl.decoding.model.families import known
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.draft_vocabulary import ALL_TOKENS
from benchctl.decoding.modules.folders import save_modules
from benchctl.decoding.modules.losses import CE_SHARE
from benchctl.decoding.sampling import Sampling
from benchctl.methods.m2r2 import M2R2
from benchctl.methods.m2r2.drafting import draft_beam, draft_chain
from benchctl.methods.m2r2.gates import LATENT, Interval
from benchctl.methods.m2r2.training import COSINE_SHARE, Trajectories, TwoStreams, passes, slow_state
from benchctl.registry import build

WITH_BIASES = (*MODELS, ("llama_biases", 1))
KINDS = ("lora", "bottleneck", "hybrid")


def streams_of(method: M2R2, target: Target) -> TwoStreams:
    return untrained_as(TwoStreams, method, target).double().requires_grad_(False)


def accompanied(target: Target, module: TwoStreams, interval: Interval, stream: Stream, rows: int) -> list[Tensor]:
    trail: list[Tensor] = module.run(interval, target.blocks)(stream, rows)
    return trail


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("family", "seed"), WITH_BIASES)
def test_accelerated_states_are_those_of_the_definition(family: str, seed: int, kind: str) -> None:
    """Of the last of several rows, of a row of its own, and of each end of a tree's branches."""
    models, method = pair(family, seed), M2R2(gates="1+3", adapters=kind, rank=5, alpha=7.0)
    module, text = streams_of(method, models.target), prompt_of(13)
    for interval in module.intervals:
        stream = Stream(models.target, 40)
        stream.push(text)
        trail = torch.cat(accompanied(models.target, module, interval, stream, 1))
        expected = accelerated_states(models.naive, module, text, interval.first, interval.gate)
        torch.testing.assert_close(trail, expected, rtol=1e-9, atol=1e-9)
        stream.push([5, 9], [12, 12])
        trail_of_branches = torch.stack(accompanied(models.target, module, interval, stream, 2), 1)
        for got, token in zip(trail_of_branches, (5, 9), strict=True):
            expected = accelerated_states(models.naive, module, [*text, token], interval.first, interval.gate)
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_the_accelerated_stream_leaves_no_trace_in_the_slow_one(family: str) -> None:
    """States and cache are those of a pass without it, whatever its adapters do."""
    models = pair(family)
    module = streams_of(M2R2(gates="1+3"), models.target)
    alone, beside = Stream(models.target, 40), Stream(models.target, 40)
    for tokens in (prompt_of(13), [4], [7]):
        alone.push(tokens)
        alone.advance(3)
        beside.push(tokens)
        for interval in module.intervals:
            accompanied(models.target, module, interval, beside, 1)
    assert beside.cache.lengths == alone.cache.lengths == [15, 15, 15, 0]
    torch.testing.assert_close(beside.states, alone.states, rtol=1e-12, atol=1e-12)
    for one, other in zip(beside.cache.kv[:3], alone.cache.kv[:3], strict=True):
        torch.testing.assert_close(one[:, :15], other[:, :15], rtol=1e-12, atol=1e-12)


def test_rows_that_have_run_the_layers_cannot_be_accompanied() -> None:
    models = pair("llama")
    module = streams_of(M2R2(gates="2"), models.target)
    stream = Stream(models.target, 40)
    stream.push([5, 6])
    with torch.inference_mode():
        stream.advance(1)
        with pytest.raises(ValueError, match="layers 0 to 2 do not lack exactly the rows from 2 to 2"):
            accompanied(models.target, module, module.intervals[0], stream, 1)


@torch.inference_mode()
def test_layers_whose_absent_rows_differ_cannot_share_a_mask_with_the_deferred_one() -> None:
    """Lost in a rewrite: the mask of the first layer also served the last one, from which other rows were absent."""
    models = pair("llama")
    module = untrained_as(TwoStreams, M2R2(gates="2"), models.target)
    stream = Stream(models.target, CONTEXT_TOKENS)
    stream.push([3, 4])
    stream.advance(1)
    stream.pass_by(1, 2)  # both rows are absent from the second layer only
    stream.advance()
    stream.keep(range(2))
    stream.push([5])
    with pytest.raises(ValueError, match="layers 0 to 2"):
        module.run(module.intervals[0], models.target.blocks, defers_last=True)(stream, 1)
    assert stream.cache.lengths[:2] == [2, 2]


@torch.inference_mode()
@pytest.mark.parametrize("gates", ["1", "2", "1+3"])
def test_rows_that_wait_leave_their_keys_and_values_even_where_the_cache_grows(gates: str) -> None:
    """Room for 64 rows: the second drafted one makes the cache grow, and the third still sees the first."""
    models = pair("llama", 0, 128)
    module = streams_of(M2R2(gates=gates), models.target)
    interval, text, stream = module.intervals[-1], prompt_of(62), Stream(models.target, 0)
    stream.push(text)
    stream.advance()
    stream.keep(range(len(text)))
    run = module.run(interval, models.target.blocks, defers_last=True)
    for token in (5, 9, 7, 4):
        text = [*text, token]
        stream.push([token])
        state = run(stream, 1)[-1][0]
        expected = accelerated_states(models.naive, module, text, interval.first, interval.gate)[-1]
        torch.testing.assert_close(state, expected, rtol=1e-9, atol=1e-9)
        assert stream.cache.lengths[interval.gate - 1] == 62
    assert stream.cache.capacity > 66
    stream.advance()
    torch.testing.assert_close(stream.states, models.naive.states(text)[-1, 62:], rtol=1e-9, atol=1e-9)


def _label(options: dict[str, object]) -> str:
    return f"m2r2[{','.join(f'{name}={value}' for name, value in options.items())}]"


REPLAYED: Sequence[dict[str, object]] = (
    {},
    {"gates": "1+3", "exit": 3, "draft_tokens": 6},
    {"gates": "2", "width": 3, "draft_tokens": 3},
    {"gates": "2", "confidence": 0.15, "draft_tokens": 5},
    {"gates": "2", "confidence": 0.1, "draft_tokens": 5, "width": 2},
    {"gates": "2", "source": "slow"},
    {"gates": "1+2", "exit": 2, "source": "exit", "width": 2},
    {"gates": "2", "features": "last", "draft_tokens": 5},
    {"gates": "1+3", "exit": 3, "features": "last", "draft_tokens": 4, "width": 3},
)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize("options", REPLAYED, ids=_label)
def test_steps_equal_replay(options: dict[str, object], family: str, seed: int) -> None:
    """The rounds that full recomputation says: proposals come from the state that they should come from."""
    models = pair(family, seed)
    method = build(label := _label(options))
    assert isinstance(method, M2R2)
    module = streams_of(method, models.target)
    interval = next(part for part in module.intervals if part.gate == (method.exit or module.intervals[0].gate))
    says = guess(models.naive, module, method.source, interval.first, interval.gate)
    draft = beam_drafter(says, method.draft_tokens, method.width, method.confidence)
    steps = check_tree(label, draft, family, seed)
    assert [step.rows for step in steps] == [1 + method.width * step.drafted for step in steps]


def test_default_gates_are_an_eighth_a_quarter_and_a_half_of_the_depth() -> None:
    for layers, gates in ((16, (2, 4, 8)), (32, (4, 8, 16)), (4, (1, 2)), (2, (1,)), (1, ())):
        assert M2R2().default_gates(layers) == gates
        info = replace(pair("llama").target.info, layers=layers)
        assert (M2R2().unsupported(info) is None) == bool(gates)


def test_a_draft_in_half_precision_stops_by_the_probability_itself() -> None:
    """0.9985 is 1 in bfloat16, so a confidence of 0.999 never stopped it."""
    draft_logits = torch.tensor([[6.5, 0.0]], dtype=torch.bfloat16)  # sigmoid(6.5) = 0.9985
    pushed: list[int] = []
    stream = SimpleNamespace(push=lambda tokens, parents=(): pushed.extend(tokens), rows=1)
    target = SimpleNamespace(stop_ids=frozenset())
    context = cast(Context, SimpleNamespace(sampling=Sampling(), stream=stream, target=target))
    assert len(draft_chain(context, 4, lambda parents: draft_logits, ALL_TOKENS, confidence=0.999)) == 0
    assert len(draft_chain(context, 4, lambda parents: draft_logits, ALL_TOKENS, confidence=0.99)) == 4
    beams = draft_beam(context, 4, lambda parents: draft_logits.expand(len(parents), -1), ALL_TOKENS, 2, 0.999)
    assert len(beams) == 0
    assert len(pushed) == 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral_window", "llama_biases"])
def test_the_pass_over_whole_texts_gives_the_states_of_the_definition(family: str, kind: str) -> None:
    """At every token of texts of different lengths, for a float32 batch to seven digits of its states' size."""
    models, method = pair(family), M2R2(gates="1+3", adapters=kind, rank=5, alpha=7.0)
    module, texts = untrained_as(TwoStreams, method, models.target), [prompt_of(9), prompt_of(4, 1)]
    trajectories = Trajectories(module, batch_of(models.naive, texts))
    with torch.no_grad():
        for interval in module.intervals:
            trail = torch.stack(trajectories.along(interval), 2)
            for row, text in enumerate(texts):
                for at in range(len(text)):
                    expected = accelerated_states(models.naive, module, text[: at + 1], interval.first, interval.gate)
                    torch.testing.assert_close(trail[row, at].double(), expected, rtol=1e-4, atol=1e-4)


def test_with_features_a_pass_over_whole_texts_is_the_drafting_of_one_token_and_of_two() -> None:
    """The first pass knows the last states of the tokens before; the second one those of all but the one before."""
    models, method = pair("llama"), M2R2(gates="1+3", features="last", rank=5)
    module, texts = untrained_as(TwoStreams, method, models.target), [prompt_of(7), prompt_of(4, 1)]
    trajectories = Trajectories(module, batch_of(models.naive, texts))
    with torch.no_grad():
        for interval, (row, text) in product(module.intervals, enumerate(texts)):
            first, second = (torch.stack(trail, 2) for trail in passes(trajectories, module, interval))
            for at in range(2, len(text)):
                for drafted, trail in enumerate((first, second)):
                    seen = text[: at + 1]
                    expected = own_states(models.naive, module, seen, drafted, interval.first, interval.gate)
                    torch.testing.assert_close(trail[row, at].double(), expected, rtol=1e-3, atol=1e-3)


def test_fresh_features_change_nothing() -> None:
    models = pair("llama")
    batch, module = batch_of(models.naive, [prompt_of(7)]), None
    for features in ("none", "last"):
        torch.manual_seed(0)
        fresh = M2R2(gates="2", features=features).build(models.target.info, models.target.lm_head.weight)
        trail = Trajectories(fresh, batch).along(fresh.intervals[0])
        assert module is None or torch.equal(module, trail[-1])
        module = trail[-1]


def test_the_trajectory_reaches_the_last_layer_at_each_gate() -> None:
    """R_k = (N - E_{k-1}) / (E_k - E_{k-1}); the example of the docstring, and a fixed rate, which ends there too."""
    first, second = M2R2(gates="4+8").intervals(16)
    assert (first, second) == (Interval(0, 4, 16), Interval(4, 8, 16))
    assert [first.reaches(layer) for layer in (1, 2, 3, 4)] == [4, 8, 12, 16]
    assert [second.reaches(layer) for layer in (5, 6, 7, 8)] == [7, 10, 13, 16]
    assert [Interval(4, 12, 16, 2.0).reaches(layer) for layer in (5, 8, 10, 12)] == [6, 12, 16, 16]


def test_between_two_layers_the_trajectory_is_their_mean_by_nearness() -> None:
    states = [torch.tensor([0.0]), torch.tensor([10.0]), torch.tensor([30.0])]
    assert [float(slow_state(states, depth)) for depth in (0, 1, 1.25, 2)] == [0, 10, 15, 30]


@torch.no_grad()
def test_the_loss_is_the_sum_over_gates_of_divergence_cross_entropy_and_cosine() -> None:
    """By hand, from full recomputation, for the last two tokens; the first one's successor has no weight."""
    models, method = pair("llama"), M2R2(gates="1+3")
    module, text, weights = untrained_as(TwoStreams, method, models.target), [5, 6, 7, 8], [1.0, 0.0, 1.0, 0.5]
    batch = batch_of(models.naive, [text], [weights])
    expected = torch.zeros((), dtype=torch.float64)
    for at in (1, 2):
        seen, states = text[: at + 1], models.naive.last_states(text[: at + 1])
        final = models.naive.logits(states[-1]).log_softmax(-1)
        for interval in module.intervals:
            trail = accelerated_states(models.naive, module, seen, interval.first, interval.gate)
            exits = (
                models.naive.logits(trail[-1]),
                models.model.lm_head(exit_states(models.naive, module, seen, interval.gate)),
            )
            loss = torch.zeros((), dtype=torch.float64)
            for logits in exits:
                said = logits.log_softmax(-1)
                loss += (final.exp() * (final - said)).sum() - CE_SHARE * said[text[at + 1]]
            passed = range(interval.first + 1, interval.gate + 1)
            wanted = [slow_state(list(states.double()), interval.reaches(layer)) for layer in passed]
            cosines = [F.cosine_similarity(p, h.double(), dim=0) for p, h in zip(trail[1:], wanted, strict=True)]
            expected += weights[at + 1] * (loss + COSINE_SHARE * (1 - torch.stack(cosines).mean()))
    torch.testing.assert_close(method.loss(module, batch).double(), expected, rtol=1e-4, atol=1e-4)


PLAIN = [name for name in FAMILIES[1:] if known()[name].plain_layers]


@pytest.mark.parametrize(
    ("family", "kind"), [*product(["llama"], KINDS), *product([*PLAIN, "mistral_window"], ["lora"])]
)
def test_the_adapters_of_every_plain_family_learn(family: str, kind: str) -> None:
    """Norms of queries (Qwen3, OLMoE) were written over before the backward pass had read what they were given."""
    models, method = pair(family), M2R2(gates="1+3", adapters=kind)
    module = untrained(method, models.target)
    method.loss(module, batch_of(models.naive, [prompt_of(12)])).backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in module.parameters())
    assert family != "llama" or all(weight.grad is not None and weight.grad.any() for weight in module.parameters())
    assert all(weight.grad is None for weight in models.model.parameters())


def test_an_exit_has_as_many_parameters_as_the_adapters_of_its_interval() -> None:
    for kind in KINDS:
        method = M2R2(gates="1+3", rank=8, adapters=kind)
        module = untrained_as(TwoStreams, method, pair("llama").target)
        for interval in module.intervals:
            below = [module.adapters.of(layer) for layer in range(interval.first + 1, interval.gate + 1)]
            adapters = sum(weight.numel() for adapter in below for weight in adapter.parameters())
            found = sum(weight.numel() for weight in module.exits.of(interval.gate).parameters())
            assert abs(found - adapters) <= pair("llama").target.info.hidden_size


@torch.no_grad()
def test_yardsticks_compare_streams_with_the_last_layer() -> None:
    models, method, text = pair("llama"), M2R2(gates="1+3"), prompt_of(20)
    module = untrained_as(TwoStreams, method, models.target)
    found = method.yardsticks(module, batch_of(models.naive, [text]))
    slow = models.naive.states(text)[:, :-1]
    final = models.naive.logits(slow[-1]).argmax(-1)
    for interval in module.intervals:
        prefixes = [text[: at + 1] for at in range(len(text) - 1)]
        trails = [accelerated_states(models.naive, module, seen, interval.first, interval.gate) for seen in prefixes]
        trail = torch.stack(trails, 1)
        exits = torch.stack([exit_states(models.naive, module, seen, interval.gate) for seen in prefixes])
        agree = {
            "slow": models.naive.logits(slow[interval.gate]).argmax(-1) == final,
            "accelerated": models.naive.logits(trail[-1]).argmax(-1) == final,
            "exit": models.model.lm_head(exits).argmax(-1) == final,
        }
        for name, right in agree.items():
            assert found[f"gate_{interval.gate}_{name}"].right == pytest.approx(float(right.sum()))
            assert found[f"gate_{interval.gate}_{name}"].of == len(text) - 1
        for layer in range(interval.first + 1, interval.gate + 1):
            state = trail[layer - interval.first]
            wanted = slow_state(list(slow), interval.reaches(layer)).double()
            cosines = {
                "slow": F.cosine_similarity(slow[layer], slow[-1], dim=-1),
                "accelerated": F.cosine_similarity(state, slow[-1], dim=-1),
                "target": F.cosine_similarity(state, wanted, dim=-1),
            }
            for name, cosine in cosines.items():
                assert found[f"cosine_{layer}_{name}"].share == pytest.approx(float(cosine.mean()), abs=1e-5)


@pytest.mark.slow
def test_features_are_learnt() -> None:
    """What the stream learnt rests on them: without them it agrees less."""
    models, method = pair("llama"), M2R2(gates="1+2", features="last")
    batch = batch_of(models.naive, answered(models.naive, 12))
    torch.manual_seed(0)
    module = method.build(models.target.info, models.target.lm_head.weight)
    learn(method.loss, module, batch, 60)
    found = method.yardsticks(module, batch)
    torch.nn.init.zeros_(module.features.of(1).weight)
    without = method.yardsticks(module, batch)["gate_1_accelerated"].share
    assert found["gate_1_accelerated"].share > without + 0.05
    assert found["gate_1_own"].share > found["gate_1_slow"].share + 0.2


@pytest.mark.slow
def test_training_lowers_the_loss_and_the_trained_stream_drafts_better_than_the_slow_state(tmp_path: Path) -> None:
    models, method = pair("llama"), M2R2(gates="1+2")
    batch = batch_of(models.naive, answered(models.naive, 12))
    torch.manual_seed(0)
    module = method.build(models.target.info, models.target.lm_head.weight)
    losses = learn(method.loss, module, batch, 60)
    shares = {name: tally.share for name, tally in method.yardsticks(module, batch).items()}
    assert losses[-1] < 0.5 * losses[0]
    assert shares["gate_1_accelerated"] > shares["gate_1_slow"] + 0.2
    assert shares["cosine_2_target"] > shares["cosine_2_slow"]
    save_modules(tmp_path / "trained", module, facts_of("m2r2", method, models.target, yardsticks=shares))
    steps = {}
    for source in ("accelerated", "slow"):
        trained = build(f"m2r2[modules={tmp_path / 'trained'},gates=1+2,source={source}]")
        trained.prepare(models.target)
        found = [generate(trained, models, prompt_of(6, seed)) for seed in range(4)]
        assert list(found[0].token_ids) == answer("llama", 0, 6)
        steps[source] = sum(len(one.steps) for one in found)
    assert steps["accelerated"] < 0.8 * steps["slow"]


RANK = 5
aten = torch.ops.aten


def operations_of(rows: float, *sizes: int) -> float:
    """Operations of rows that pass matrices of these inner and outer sizes, one after the other."""
    return rows * sum(2 * inner * outer for inner, outer in zip(sizes, sizes[1:], strict=False))


class Cost:
    """Operations of one row in the parts of a target, written down from the shapes of its weights."""

    def __init__(self, info: TargetInfo, head_dim: int, kv_heads: int) -> None:
        width, queries, inner = info.hidden_size, info.query_size, info.mlp_size
        self.info, self.keys_values = info, operations_of(1, width, 2 * kv_heads * head_dim)
        self.qkv = operations_of(1, width, queries) + self.keys_values
        self.layer = (
            self.qkv
            + operations_of(1, queries, width)
            + 2 * operations_of(1, width, inner)
            + operations_of(1, inner, width)
        )
        self.head = operations_of(1, width, info.vocabulary)
        around = ((width, queries), (queries, width), (width, 2 * inner), (inner, width))
        self.adapter = sum(operations_of(1, inputs, RANK, outputs) for inputs, outputs in around)

    def prefill(self, prompt_tokens: int) -> float:
        return prompt_tokens * self.info.layers * self.layer + self.head

    def speculative(self, generation: Generation, gate: int) -> float:
        """Every row runs all layers and the head; one that proposes also runs those below the gate adapted, and the
        head, and leaves the gate's layer keys and values before it waits there (queries come with that product)."""
        rows = sum(step.rows for step in generation.steps)
        proposing = sum(step.drafted for step in generation.steps)
        slow = rows * (self.info.layers * self.layer + self.head) + proposing * self.qkv
        return slow + proposing * (gate * (self.layer + self.adapter) + self.head)

    def dynamic(self, depths: Iterable[int], parts: list[Interval], arla: bool, rate_map: bool) -> float:
        """Both streams run up to the gate where the token leaves; above it only keys and values are made."""
        total, layers = 0.0, self.info.layers
        for depth in depths:
            passed = [interval for interval in parts if interval.gate <= depth]
            both = passed[-1].gate
            total += both * (2 * self.layer + self.adapter)
            asked = [operations_of(part.gate - part.first + 1, self.info.hidden_size, LATENT) for part in passed]
            total += sum(asked) + self.head if arla else len(passed) * self.head
            if depth == layers:
                total += (layers - both) * self.layer + (0 if arla else self.head)
            else:
                mixed = operations_of(layers - depth, 2 + depth - passed[-1].first, self.info.hidden_size)
                total += (layers - depth) * self.keys_values + rate_map * mixed
        return total


def _in_place(_there: Any, left: Any, right: Any, **_kwargs: Any) -> float:
    """Of addmm_, which torch's counter does not know; it is given shapes."""
    return operations_of(left[0], *right)


def counted(label: str, prompt: list[int]) -> tuple[Generation, float]:
    """A generation and the operations of its products of two matrices; those of the attention are batches of them."""
    method = prepared(label, pair("llama").target)
    with FlopCounterMode(display=False, custom_mapping={aten.addmm_: _in_place}) as counter:
        generation = generate(method, pair("llama"), prompt)
    counts = counter.get_flop_counts()["Global"]
    return generation, float(sum(counts.get(op, 0) for op in (aten.mm, aten.addmm, aten.addmm_)))


def cost() -> Cost:
    models = pair("llama")
    return Cost(models.target.info, models.model.config.head_dim, models.model.config.num_key_value_heads)


@pytest.mark.slow
@pytest.mark.parametrize(("gate", "draft_tokens"), [(1, 4), (3, 2)])
def test_a_draft_costs_the_layers_below_the_gate_and_no_more(gate: int, draft_tokens: int) -> None:
    prompt = prompt_of(9)
    generation, operations = counted(f"m2r2[gates={gate},draft_tokens={draft_tokens},confidence=0,rank={RANK}]", prompt)
    assert operations == cost().prefill(len(prompt)) + cost().speculative(generation, gate)


@pytest.mark.parametrize("threshold", [0.0, 0.5, 2.0])
@pytest.mark.parametrize(("router", "kv_fill"), [("arla", "rate_map"), ("softmax_max", "copy_h")])
def test_a_token_that_leaves_costs_both_streams_up_to_there(router: str, kv_fill: str, threshold: float) -> None:
    prompt = prompt_of(9)
    how = f"gates=1+3,router={router},kv_fill={kv_fill},threshold={threshold}"
    generation, operations = counted(f"m2r2_dynamic[rank={RANK},{how}]", prompt)
    parts, depths = [Interval(0, 1, LAYERS), Interval(1, 3, LAYERS)], generation.layers[1:]
    assert (threshold == 0.5) == (len(set(depths)) > 1), "some leave, some stay"
    expected = cost().dynamic(depths, parts, router == "arla", kv_fill == "rate_map")
    assert operations == cost().prefill(len(prompt)) + expected
