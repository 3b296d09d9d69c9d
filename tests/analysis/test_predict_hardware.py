"""The model of other hardware, against made-up machines on which every step's time is simulated layer by layer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fixtures_predict import Step, file_of, row_of, usual_file
from fixtures_records import BASELINE, DRAFTED, EXITING, LAYERS, RUN, TARGET

from benchctl.analysis.predict.hardware import Hardware, Passes, extrapolate, hardware_of
from benchctl.analysis.predict.speedup import Prediction, predict
from benchctl.errors import UserError
from benchctl.records.schema import Row

PROMPT_TOKENS = 5  # of every made-up answer
WIDTH = TARGET.hidden_size
LAYER_WEIGHTS, HEAD_WEIGHTS = 1_000_000, TARGET.vocabulary * WIDTH
KEY_VALUE_NUMBERS = 2 * WIDTH  # per layer and token of text
STATED = replace(
    RUN,
    step_bytes=4 * (LAYERS * LAYER_WEIGHTS + HEAD_WEIGHTS),
    cache_token_bytes=4 * LAYERS * KEY_VALUE_NUMBERS,
)


@dataclass(frozen=True)
class Machine:
    """Reads and computes at these rates at once, so that work takes as long as the slower of the two."""

    bytes_per_s: float
    flops_per_s: float
    item_bytes: int = 4

    def pass_s(self, rows: int, texts: int, text_tokens: float, layers: int = LAYERS) -> float:
        """Of the target: layer by layer, then the head; both rates are busy from the first layer to the head."""
        read_bytes = flops = 0.0
        for _ in range(layers):
            read_bytes += self.item_bytes * (LAYER_WEIGHTS + texts * text_tokens * KEY_VALUE_NUMBERS)
            flops += rows * (2 * LAYER_WEIGHTS + text_tokens * (2 * WIDTH + 2 * WIDTH))
        read_bytes += self.item_bytes * HEAD_WEIGHTS
        flops += rows * 2 * HEAD_WEIGHTS
        return max(read_bytes / self.bytes_per_s, flops / self.flops_per_s)

    def draft_s(self, texts: int, text_tokens: float) -> float:
        """Of a draft model that is a twentieth of the target in all, for one token of each text."""
        return self.pass_s(texts, texts, text_tokens) / 20

    def step_s(self, drafted: int, texts: int, text_tokens: float) -> tuple[float, float, float, float]:
        """Draft and verify; commit and host cost nothing."""
        verify_s = self.pass_s(texts * (1 + drafted), texts, text_tokens)
        return drafted * self.draft_s(texts, text_tokens), verify_s, 0.0, 0.0

    @property
    def hardware(self) -> Hardware:
        dtype = {4: "float32", 2: "bfloat16"}[self.item_bytes]
        return Hardware("made-up", "made up", self.bytes_per_s / 1e9, {dtype: self.flops_per_s / 1e12}, "a test")


DRAFTS = [(4, 3), (4, 4), (6, 2), (2, 1), (4, 0), (6, 5)] * 3  # drafted and accepted, step by step
NARROW = Machine(bytes_per_s=5e9, flops_per_s=1e14)  # reading is all that counts
SLOW = Machine(bytes_per_s=5e9, flops_per_s=3e9)  # from 2 rows on, computing takes longer
FAST = Machine(bytes_per_s=3e12, flops_per_s=6e13)
HALF = Machine(bytes_per_s=2e12, flops_per_s=3e14, item_bytes=2)


def steps_on(machine: Machine, texts: int = 1) -> tuple[list[Step], list[Step]]:
    """The steps of the drafting method, then those of the baseline, for the same text."""
    drafting, plain, tokens = [], [], PROMPT_TOKENS + 1
    for drafted, accepted in DRAFTS:
        drafting.append(Step(drafted, accepted, machine.step_s(drafted, texts, tokens)))
        for _ in range(accepted + 1):
            plain.append(Step(0, 0, machine.step_s(0, texts, tokens)))
            tokens += 1
    return drafting, plain


def measured_on(machine: Machine) -> Prediction:
    drafting, plain = steps_on(machine)
    rows = [
        row for prompt in range(3) for row in profiled(DRAFTED, drafting, prompt) + profiled(BASELINE, plain, prompt)
    ]
    (account,) = predict([file_of(rows, STATED)])
    assert isinstance(account, Prediction)
    return account


def profiled(label: str, steps: Sequence[Step], prompt: int) -> list[Row]:
    return [row_of(label, steps, "free", f"p{prompt}"), row_of(label, steps, "profile", f"p{prompt}")]


def true_speedup(machine: Machine, texts: int) -> float:
    drafting, plain = steps_on(machine, texts)
    return sum(step.seconds for step in plain) / sum(step.seconds for step in drafting)


@pytest.mark.parametrize(
    ("there", "batch_size"),
    [(NARROW, 1), (SLOW, 1), (FAST, 1), (FAST, 2), (FAST, 8), (FAST, 64), (HALF, 1), (HALF, 32), (HALF, 512)],
)
def test_what_was_measured_on_one_machine_predicts_another(there: Machine, batch_size: int) -> None:
    """The measured one is bound by reading throughout, so the cost of several rows there says nothing about here.

    Within 3%, for the model gives all steps the same mean length of text.
    """
    dtype = next(iter(there.hardware.tflops))
    found = extrapolate(measured_on(NARROW), STATED, there.hardware, dtype, batch_size)
    assert found.speedup == pytest.approx(true_speedup(there, batch_size), rel=0.03)
    assert found.batch_size == batch_size


def test_the_cases_tell_machines_and_batches_apart() -> None:
    """Nothing would be shown by truths that are all alike."""
    truths = [true_speedup(NARROW, 1), true_speedup(SLOW, 1), true_speedup(FAST, 8), true_speedup(FAST, 64)]
    assert truths[0] > 2 > 1 > truths[1]
    assert truths[0] > truths[2] > truths[3]


@pytest.mark.parametrize(
    ("there", "batch_size"), [(NARROW, 1), (SLOW, 1), (FAST, 1), (FAST, 64), (HALF, 1), (HALF, 512)]
)
def test_a_method_that_leaves_early_still_pays_for_the_head(there: Machine, batch_size: int) -> None:
    """At half depth of this target it is 1.85 times as fast, not twice, where neither is bound by its cache.

    None of its rows came to the last layer; where computing decides, such rows once cost nothing.
    """
    account = next(each for each in predict([usual_file()]) if each.label == EXITING)
    assert isinstance(account, Prediction)
    text_tokens = account.costs.text_tokens
    early, whole = (there.pass_s(batch_size, batch_size, text_tokens, layers) for layers in (LAYERS // 2, LAYERS))
    assert batch_size > 1 or whole / early == pytest.approx(1.85, abs=0.01)
    dtype = next(iter(there.hardware.tflops))
    found = extrapolate(account, STATED, there.hardware, dtype, batch_size)
    assert found.speedup == pytest.approx(whole / early)


def test_a_pass_takes_as_long_as_reading_or_computing_whichever_is_longer() -> None:
    """The examples of Passes.seconds, and 10,000 operations a row at 1e12 a second; of half the layers 5,900."""
    passes = Passes(weight_bytes=1000, head_bytes=200, cache_token_bytes=10, row_flops=9000, row_token_flops=20)
    machine = Hardware("x", "x", 1, {"float32": 1}, "")
    assert passes.seconds(machine, "float32", 3, 2, 50) == pytest.approx(2e-6)
    assert passes.seconds(machine, "float32", 300, 2, 50) == pytest.approx(3e-6)
    assert passes.seconds(machine, "float32", 3, 2, 50, depth=0.5) == pytest.approx(1.1e-6)
    assert passes.seconds(machine, "float32", 300, 2, 50, depth=0.5) == pytest.approx(300 * 5.9e-9)


def test_another_dtype_halves_what_is_read_and_not_what_is_computed() -> None:
    whole, half = Passes.of(STATED, "float32"), Passes.of(STATED, "bfloat16")
    assert (half.weight_bytes, half.cache_token_bytes) == (whole.weight_bytes / 2, whole.cache_token_bytes / 2)
    assert (whole.head_bytes, half.head_bytes) == (4 * HEAD_WEIGHTS, 2 * HEAD_WEIGHTS)
    assert (half.row_flops, half.row_token_flops) == (whole.row_flops, whole.row_token_flops)
    assert whole.row_flops == 2 * (LAYERS * LAYER_WEIGHTS + HEAD_WEIGHTS)


@pytest.mark.parametrize(
    ("run", "dtype", "message"),
    [
        (RUN, "float32", "does not say what a step reads.*Measure again"),
        (replace(STATED, target=replace(TARGET, family="mixtral")), "float32", "has experts"),
        (STATED, "float64", "no FLOP rate for float64. Give --dtype one of: float32"),
    ],
)
def test_what_the_model_does_not_know_is_refused(run: object, dtype: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        extrapolate(measured_on(NARROW), run, FAST.hardware, dtype)  # type: ignore[arg-type]


def test_drafting_that_was_not_profiled_cannot_be_carried_over() -> None:
    drafting, plain = steps_on(SLOW)
    rows = [row_of(DRAFTED, drafting * 3), row_of(BASELINE, plain * 3)]
    (account,) = predict([file_of(rows, STATED)])
    assert isinstance(account, Prediction) and account.basis == "steps"
    with pytest.raises(UserError, match="Measure with `benchctl run --profile`"):
        extrapolate(account, STATED, FAST.hardware)


@pytest.mark.parametrize(
    ("name", "bandwidth", "bfloat16", "float32"),
    [("h100", 3350, 989.4, 66.9), ("a100", 2039, 312, 19.5), ("h200", 4800, 989.4, 66.9), ("l4", 300, 121, 30.3)],
)
def test_known_hardware_has_the_rates_of_its_datasheet_without_sparsity(
    name: str, bandwidth: float, bfloat16: float, float32: float
) -> None:
    found = hardware_of(name)
    assert (found.bandwidth_gb_s, found.tflops["bfloat16"], found.tflops["float32"]) == (bandwidth, bfloat16, float32)


def test_every_known_machine_names_its_source(root: Path) -> None:
    known = json.loads((root / "benchctl/assets/hardware.json").read_text())
    for name in known:
        found = hardware_of(name)
        assert "https://" in found.source and found.title.startswith("NVIDIA ")
        assert found.tflops.keys() <= {"float64", "float32", "bfloat16", "float16"}
        assert all(rate > 0 for rate in (found.bandwidth_gb_s, *found.tflops.values()))


def test_a_machine_can_be_described_by_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"bandwidth_gb_s": 20.5, "tflops": {"float32": 0.08}, "source": "benchctl doctor"}')
    assert hardware_of(str(path)) == Hardware("mine", "mine", 20.5, {"float32": 0.08}, "benchctl doctor")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is not JSON"),
        ("[1]", "does not describe hardware"),
        ('{"bandwidth_gb_s": 20}', "does not describe hardware"),
        ('{"bandwidth_gb_s": 0, "tflops": {"float32": 1}}', "does not describe hardware"),
        ('{"bandwidth_gb_s": NaN, "tflops": {"float32": 1}}', "does not describe hardware"),
        ('{"bandwidth_gb_s": 20, "tflops": {"float32": -1}}', "does not describe hardware"),
        ('{"bandwidth_gb_s": 20, "tflops": {"fp8": 1}}', "does not describe hardware"),
        ('{"bandwidth_gb_s": 20, "tflops": {}}', "does not describe hardware"),
    ],
)
def test_a_file_that_describes_no_machine_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "mine.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message):
        hardware_of(str(path))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="'h300' is no hardware known here. Name one of h100, .*a100.* or a .json file"):
        hardware_of("h300")
