"""m2r2_dynamic: who leaves where, what it says and what later tokens see of it; and how its routers learn that."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest
import torch
from fixtures_training import BATCHES, COMMON, done, refused, with_target
from gate_exits import GateAnswer, GateRule, gate_answer, sureness
from plain_depths import picked_from
from runs import LAYERS, MODELS, NEW_TOKENS, Pair, pair, prompt_of, run
from safetensors.torch import load_file
from target_batches import answered, batch_of, learn
from tiny import tiny_folder
from two_streams import accelerated_states
from untrained import untrained_as

from benchctl.decoding.modules.folders import WEIGHTS, read_facts
from benchctl.decoding.modules.losses import exit_yardsticks
from benchctl.decoding.modules.trainable import TrainingBatch
from benchctl.methods.m2r2 import M2R2
from benchctl.methods.m2r2.gates import Interval, Router
from benchctl.methods.m2r2.training import TwoStreams, gate_loss
from benchctl.methods.m2r2_dynamic import M2R2Dynamic, router_scores, trajectory_shares
from benchctl.registry import build

FILLS = ("rate_map", "copy_p", "copy_h", "deferred_exact", "absent")
THRESHOLDS = {
    "arla": (0.4, 0.55),
    "linear": (0.5,),
    "softmax_gap": (0.1,),
    "softmax_max": (0.3,),
    "state_cosine": (0.8,),
}


def label_of(rule: GateRule, gates: str, more: str = "") -> str:
    options = f"router={rule.router},threshold={rule.threshold},kv_fill={rule.kv_fill}"
    return f"m2r2_dynamic[gates={gates},{options}{more}]"


def streams_of(label: str, models: Pair) -> TwoStreams:
    method = build(label)
    assert isinstance(method, M2R2Dynamic)
    return untrained_as(TwoStreams, method, models.target).double()


def truth(
    models: Pair, rule: GateRule, gates: str, prompt: list[int], limit: int = NEW_TOKENS, more: str = ""
) -> GateAnswer:
    with torch.inference_mode():
        return gate_answer(models.naive, streams_of(label_of(rule, gates, more), models), rule, prompt, limit)


def assert_decodes(
    monkeypatch: pytest.MonkeyPatch, label: str, models: Pair, prompt: list[int], expected: GateAnswer
) -> None:
    """Tokens, layers, and the logits that each token was chosen by."""
    with monkeypatch.context() as patch:
        picked = picked_from(patch)
        got = run(label, models.target, prompt, NEW_TOKENS)
    assert (list(got.token_ids), list(got.layers)) == (expected.tokens, expected.ran)
    assert (torch.cat([logits for _, logits in picked]) - expected.logits).abs().max() < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize("fill", FILLS)
def test_all_is_as_by_full_recomputation(monkeypatch: pytest.MonkeyPatch, fill: str, family: str, seed: int) -> None:
    models, left = pair(family, seed), set()
    for threshold in THRESHOLDS["arla"]:
        rule = GateRule("arla", threshold, fill)
        for prompt_tokens in (1, 13):
            prompt = prompt_of(prompt_tokens, seed)
            expected = truth(models, rule, "1+3", prompt)
            assert_decodes(monkeypatch, label_of(rule, "1+3"), models, prompt, expected)
            left |= set(expected.exits[1:])
    assert left == {1, 3, LAYERS}


@pytest.mark.parametrize("router", ["linear", "softmax_gap", "softmax_max", "state_cosine"])
def test_every_router_decides_as_its_formula_says(monkeypatch: pytest.MonkeyPatch, router: str) -> None:
    models, left = pair("llama"), set()
    for threshold in THRESHOLDS[router]:
        rule = GateRule(router, threshold, "rate_map")
        expected = truth(models, rule, "1+3", prompt_of(13))
        assert_decodes(monkeypatch, label_of(rule, "1+3"), models, prompt_of(13), expected)
        left |= set(expected.exits[1:])
    assert len(left) > 1


def test_stand_ins_of_a_slower_trajectory_end_at_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """rate=1.2 reaches slow depth 2.4 at gate 2; what would arrive at layer 4, depth 3, is beyond."""
    models, rule, more = pair("llama"), GateRule("arla", 0.4, "rate_map"), ",rate=1.2,adapters=hybrid,rank=5"
    expected = truth(models, rule, "2", prompt_of(13), more=more)
    assert 2 in expected.exits
    assert_decodes(monkeypatch, label_of(rule, "2", more), models, prompt_of(13), expected)


def test_a_stand_in_is_where_the_trajectory_was_to_meet_the_skipped_state() -> None:
    """The examples of the docstrings; with rate 2 the gate at layer 2 reaches slow layer 4, and none above."""
    third = 1 / 3
    assert trajectory_shares(Interval(0, 2, 6)).tolist() == [
        [1, 0, 0, 0],
        [0, 0, 1, 0],
        pytest.approx([0, 0, 2 * third, third]),
        pytest.approx([0, 0, third, 2 * third]),
    ]
    assert trajectory_shares(Interval(0, 2, 6, 2.0)).tolist() == [
        [1, 0, 0, 0],
        [0, 0, 0.5, 0.5],
        [0, 0, 0, 1],
        [0, 0, 0, 1],
    ]
    assert Interval(0, 4, 16).meets(6) == 1.5
    for interval in (Interval(0, 4, 16), Interval(4, 8, 16), Interval(2, 5, 12, 1.5)):
        for layer in range(interval.first, interval.gate + 1):
            assert interval.meets(interval.reaches(layer)) == pytest.approx(layer)


ROUTERS = ("arla", "linear")


def method_of(kind: str) -> M2R2Dynamic:
    method = build(f"m2r2_dynamic[router={kind},gates=1+3]")
    assert isinstance(method, M2R2Dynamic)
    return method


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", ROUTERS)
def test_a_router_says_of_whole_texts_what_it_says_when_decoding(kind: str, family: str) -> None:
    """By the formula, from states of full recomputation, at every token of two texts; labels alike."""
    models, texts = pair(family), [prompt_of(9), prompt_of(4, 1)]
    module = untrained_as(TwoStreams, method_of(kind), models.target)
    scores, said_right = router_scores(module, batch_of(models.naive, texts))
    for row, text in enumerate(texts):
        for at in range(len(text)):
            seen = text[: at + 1]
            last = models.naive.argmax(seen)
            for interval in module.intervals:
                trail = accelerated_states(models.naive, module, seen, interval.first, interval.gate)
                said = float(scores[interval.gate][row, at].sigmoid())
                assert said == pytest.approx(sureness(models.naive, module, kind, interval, trail), abs=1e-4)
                agrees = int(models.naive.logits(trail[-1]).argmax()) == last
                assert bool(said_right[interval.gate][row, at]) == agrees


@pytest.mark.parametrize("attends", [True, False])
def test_decoding_scores_as_training_does(attends: bool) -> None:
    """One token at a time and in few operations, of large states and of small ones, up to where floats end."""
    router = Router([Interval(0, 2, 8)], 16, torch.device("cpu"), attends).double().requires_grad_(False)
    generator, decide = torch.Generator().manual_seed(0), router.of(2).decider()
    for size in (1e-6, 1.0, 1e3):
        trail = [size * torch.randn(3, 5, 16, generator=generator, dtype=torch.float64) for _ in range(3)]
        together = router.score(2, trail)
        assert together.shape == (3, 5)
        for row, at in ((0, 0), (1, 4), (2, 2)):
            alone = decide([state[row, at : at + 1] for state in trail])
            assert alone == pytest.approx(float(together[row, at].sigmoid()), abs=1e-12)
    router.get_parameter("2.score.bias").fill_(-1e9)
    assert router.of(2).decider()([torch.ones(1, 16, dtype=torch.float64)] * 3) == 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attends", [True, False])
def test_half_precision_scores_small_and_large_states_as_training_did(attends: bool, dtype: torch.dtype) -> None:
    """bfloat16's own epsilon, 1/128, is twenty times the mean square of an embedding with a deviation of 0.02."""
    torch.manual_seed(0)
    router = Router([Interval(0, 2, 8)], 64, torch.device("cpu"), attends).requires_grad_(False)
    router.get_parameter("2.score.weight").mul_(20.0 if attends else 5.0)
    for size in (0.02, 300.0):
        trail = [(size * torch.randn(1, 64)).to(dtype) for _ in range(3)]
        expected = router.of(2).decider()([state.float() for state in trail])
        assert copy.deepcopy(router).to(dtype).of(2).decider()(trail) == pytest.approx(expected, abs=0.03)
        assert abs(expected - 0.5) > 0.15  # else any divisor would do


@torch.no_grad()
def test_the_loss_is_balanced_cross_entropy_by_hand() -> None:
    """Of every gate, over the tokens that have one ahead; either class counts by the share of the other."""
    models, text, weights = pair("llama"), prompt_of(12), [1.0] * 6 + [0.5] * 6
    method = method_of("arla")
    module = untrained_as(TwoStreams, method, models.target)
    (all_scores, labels), expected = router_scores(module, batch_of(models.naive, [text])), 0.0
    for interval in module.intervals:
        scores, agrees = all_scores[interval.gate][0].tolist(), labels[interval.gate][0].tolist()
        ahead = list(zip(scores, agrees, weights[1:], strict=False))
        share = sum(weight for _, right, weight in ahead if right) / sum(weights[1:])
        for score, right, weight in ahead:
            chance = torch.tensor(score, dtype=torch.float64).sigmoid()
            cost = -(1 - share) * chance.log() if right else -share * (1 - chance).log()
            expected += weight * float(cost)
    loss = method.loss(module, batch_of(models.naive, [text], [weights]))
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert expected > 0


def _with_trained_adapters(method: M2R2, batch: TrainingBatch, models: Pair) -> TwoStreams:
    """Adapters that agree with the last layer here and not there, under a fresh router."""
    torch.manual_seed(0)
    module = method.build(models.target.info, models.target.lm_head.weight)
    assert isinstance(module, TwoStreams) and module.router is not None
    module.adapters.requires_grad_(True)
    module.router.requires_grad_(False)
    learn(gate_loss, module, batch, 8)
    module.adapters.requires_grad_(False)
    module.router.requires_grad_(True)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROUTERS)
def test_training_teaches_where_the_accelerated_state_agrees(kind: str) -> None:
    models, method = pair("llama"), method_of(kind)
    batch = batch_of(models.naive, answered(models.naive, 12))
    module = _with_trained_adapters(method, batch, models)
    before = {name: tally.share for name, tally in method.yardsticks(module, batch).items()}
    learn(method.loss, module, batch, 120)
    after = {name: tally.share for name, tally in method.yardsticks(module, batch).items()}
    for gate in (1, 3):
        fresh, learnt = (found[f"exit_{gate}_found"] + found[f"exit_{gate}_held"] for found in (before, after))
        assert learnt > max(fresh, 1.0) + 0.15
    scores, right = router_scores(module, batch)
    careless = {gate: torch.ones_like(score) for gate, score in scores.items()}
    assert after["agreement"] > exit_yardsticks(careless, batch, right)["agreement"].share + 0.1
    assert after["depth"] < 1.0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of random weights, adapters for it, and a router on top of these."""
    folder = tmp_path_factory.mktemp("routers")
    words = (*with_target(folder), *BATCHES, *COMMON)
    done("train", "m2r2[gates=1+2]", *words, "--out", folder / "adapters", "--steps", 2)
    label = f"m2r2_dynamic[gates=1+2,modules={folder / 'adapters'}]"
    printed = done("train", label, *words, "--out", folder / "both", "--steps", 3)
    assert f"--method 'm2r2_dynamic[modules={folder / 'both'},gates=1+2]'" in printed
    assert "exit_2_found" in printed
    return folder


def words_of(trained: Path) -> tuple[object, ...]:
    return ("--model", trained / "target", "--data", trained / "data", *BATCHES, *COMMON)


def test_the_second_stage_leaves_the_adapters_as_they_were_bit_by_bit(trained: Path) -> None:
    """What was measured of them was once lost."""
    first, both = (load_file(trained / name / WEIGHTS) for name in ("adapters", "both"))
    assert {name for name in both if not name.startswith("router.")} == set(first)
    assert all(torch.equal(both[name], weight) for name, weight in first.items())
    assert {name.split(".")[1] for name in both if name.startswith("router.")} == {"1", "2"}
    before, facts = read_facts(str(trained / "adapters")), read_facts(str(trained / "both"))
    assert (facts.options["router"], "modules" in facts.options) == ("arla", False)
    assert "gate_1_accelerated" in before.yardsticks and before.yardsticks.items() <= facts.yardsticks.items()
    assert set(facts.yardsticks) > {"exit_1_found", "exit_2_held", "agreement", "depth"}


def test_nothing_written_says_where_the_adapters_lay(trained: Path) -> None:
    for name in ("README.md", "training.json", "modules.json"):
        assert str(trained) not in (trained / "both" / name).read_text()
    assert "m2r2_dynamic[gates=1+2,modules=adapters]" in (trained / "both" / "training.json").read_text()


def test_a_router_can_be_trained_anew_on_a_folder_that_has_one(trained: Path, tmp_path: Path) -> None:
    label = f"m2r2_dynamic[router=linear,gates=1+2,modules={trained / 'both'}]"
    done("train", label, *words_of(trained), "--out", tmp_path / "linear", "--steps", 1)
    weights = load_file(tmp_path / "linear" / WEIGHTS)
    assert {one for one in weights if one.startswith("router.1.")} == {"router.1.score.weight", "router.1.score.bias"}


def test_the_second_stage_resumes_only_on_the_same_adapters(trained: Path, tmp_path: Path) -> None:
    label = "m2r2_dynamic[gates=1+2,modules={}]"
    words = [*words_of(trained), "--out", trained / "both", "--steps", 3, "--resume"]
    assert "Wrote" in done("train", label.format(trained / "adapters"), *words)
    others = shutil.copytree(trained / "both", tmp_path / "others")  # the same adapters, and a router beside them
    printed = refused("train", label.format(others), *words)
    assert "cannot be resumed" in printed and "modules: " in printed


def test_what_cannot_be_gone_on_from_is_refused_before_any_training(trained: Path, tmp_path: Path) -> None:
    words = [*words_of(trained), "--out", tmp_path / "out", "--steps", 1]
    printed = refused("train", "m2r2_dynamic[gates=1+2]", *words)
    assert "train those first: benchctl train 'm2r2' --model MODEL --out FOLDER" in printed
    assert "benchctl train 'm2r2_dynamic[gates=1+2,modules=FOLDER]' --model MODEL --out NEW" in printed
    there = trained / "adapters"
    assert "leave out modules" in refused("train", f"m2r2[gates=1+2,modules={there}]", *words)
    needless = f"m2r2_dynamic[router=softmax_gap,gates=1+2,modules={there}]"
    assert "leave out modules" in refused("train", needless, *words)
    assert "gates=1+2" in refused("train", f"m2r2_dynamic[gates=1,modules={there}]", *words)
    assert "no such folder" in refused("train", "m2r2_dynamic[modules=nowhere]", *words)
    tiny_folder(tmp_path / "other", seed=5)
    words[1] = tmp_path / "other"
    printed = refused("train", f"m2r2_dynamic[gates=1+2,modules={there}]", *words)
    assert "made for target" in printed and "name modules trained for this target" in printed


def test_the_cost_of_the_second_stage_can_be_estimated_without_a_folder(trained: Path) -> None:
    printed = done("train", "m2r2_dynamic[gates=1+2]", "--model", trained / "target", "--estimate")
    assert "by formula" in printed
