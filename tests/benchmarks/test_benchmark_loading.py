"""The simulator is given the trace of one setting and says what another one takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from offloading import HandTimer
from runs import prepared
from tiny import tiny_folder, tiny_target

from benchctl.decoding.experts.fast_tier import Counts
from benchctl.decoding.experts.trace import Trace
from benchctl.decoding.model.target import Target, folder_sha256
from benchctl.errors import UserError
from benchctl.measuring.choices import Models
from benchctl.offload.simulator import Setting, Simulated
from benchctl.registry import parse_label
from benchmarks.loading import AHEAD, OFFLOADING, Arm, Family, Real, agreement, choose, compare, decode_really, measure

PROMPTS = ([5, 9, 17, 4, 33, 21, 8, 60, 12, 13], [7, 7, 21, 40, 2, 9])
NEW_TOKENS = 8
TRACE = Trace("by hand", False, 2, 4, 2, 1000, ())


def arm(label: str, target: Target) -> Arm:
    """A setting and its generations, by a clock that stands still but where somebody waits for experts."""
    method: Any = prepared(label, target)
    found = Arm(label, method, method.offload)
    for prompt in PROMPTS:
        timer = HandTimer()
        found.real.append(decode_really(found, target, prompt, NEW_TOKENS, timer.now_s, timer))
    return found


@pytest.mark.parametrize("policy", ["lru", "lfu", "least_stale", "on_demand"])
def test_where_computing_takes_no_time_another_setting_is_predicted_exactly(policy: str) -> None:
    target = tiny_target("olmoe", layers=3)
    recorded = arm("expert_offload[prefetch=next_gate,capacity=9,bandwidth_mb_s=5]", target)
    real = arm(f"expert_offload[policy={policy},capacity=4,bandwidth_mb_s=0.5]", target)
    found = agreement(real, [recorded])
    assert (found.recorded_in, found.recordings) == (recorded.label, 1)
    assert found.real_loads == found.predicted_loads > 0
    assert (found.real_ms, found.ratio) == pytest.approx((found.predicted_ms, 1.0))
    assert (found.real_stall_ms, found.predicted_stall_ms) == pytest.approx((found.real_ms, found.real_ms))
    assert found.real_ms == pytest.approx(found.real_loads * recorded.offload.expert_bytes / 0.5e6 * 1e3)
    assert found.goal.startswith("met")


@pytest.mark.parametrize("label", ["expert_offload[prefetch=next_gate,{}]", "m2r2_prefetch[{}]"])
def test_what_was_predicted_in_one_setting_is_fetched_ahead_in_another(label: str) -> None:
    target = tiny_target("olmoe", layers=4)
    recorded = arm(label.format("capacity=12,bandwidth_mb_s=5"), target)
    real = arm(label.format("policy=least_stale,capacity=6,bandwidth_mb_s=0.5"), target)
    found = agreement(real, [recorded])
    assert real.setting == Setting("least_stale", "recorded", 6, 0.5)
    assert found.real_loads == found.predicted_loads > 0
    assert found.real_ms == pytest.approx(found.predicted_ms)


def test_the_simulator_is_asked_for_the_setting_that_ran() -> None:
    target = tiny_target("olmoe", layers=3)
    plain = arm("expert_offload[policy=lfu,capacity=5,bandwidth_mb_s=40]", target)
    ahead = arm("expert_offload[prefetch=next_gate,capacity=48,bandwidth_mb_s=50]", target)
    assert plain.setting == Setting("lfu", "none", 5, 40.0)
    assert ahead.setting == Setting("lru", "recorded", 18, 50.0), "the tier is no larger than all experts"


def test_other_texts_are_not_compared() -> None:
    target = tiny_target("olmoe", layers=3)
    one = arm("expert_offload[capacity=9,bandwidth_mb_s=5]", target)
    other = replace(one, real=[replace(real, token_ids=(1, 2)) for real in one.real])
    for recordings in ([other], [one, other]):
        with pytest.raises(RuntimeError, match="gave other answers"):
            agreement(one, recordings)


def test_each_setting_is_predicted_by_the_mean_of_its_recordings() -> None:
    """Two recordings whose computing took 1 s and 3 s at each visit, on a link that takes no time worth counting."""
    target = tiny_target("olmoe", layers=3)
    real = arm("expert_offload[capacity=4,bandwidth_mb_s=1e9]", target)
    recordings = [replace(real, real=[slowed(found, seconds) for found in real.real]) for seconds in (1.0, 3.0)]
    found = agreement(replace(real, real=[replace(each, decode_s=1.0) for each in real.real]), recordings)
    visits = (NEW_TOKENS - 1) * target.layers
    assert (found.recordings, found.tokens) == (2, len(PROMPTS) * (NEW_TOKENS - 1))
    assert found.predicted_s == pytest.approx((2.0 * visits,) * len(PROMPTS))
    assert found.predicted_ms == pytest.approx(2000.0 * target.layers)


def slowed(real: Real, seconds: float) -> Real:
    """As if each visit had followed on so much computing."""
    visits = tuple(replace(visit, before_s=seconds) for visit in real.trace.generations[0])
    return replace(real, trace=replace(real.trace, generations=(visits,)))


def test_agreement_is_of_sums_over_prompts_and_the_rest_per_token() -> None:
    real = [Real((), 2.0, 1.0, 30.0, TRACE), Real((), 4.0, 2.0, 60.0, TRACE)]
    setting = Setting("lru", "none", 4, 50.0)
    simulated = [
        [
            Simulated(setting, 10, 2.0, Counts(loads=30, stall_s=0.4)),
            Simulated(setting, 10, 2.2, Counts(loads=50, stall_s=0.6)),
        ],
        [
            Simulated(setting, 20, 4.2, Counts(loads=80, stall_s=1.0)),
            Simulated(setting, 20, 4.2, Counts(loads=80, stall_s=1.0)),
        ],
    ]
    found = compare("real", "recorded", real, simulated)
    assert (found.recordings, found.prompts, found.tokens) == (2, 2, 30)
    assert (found.real_ms, found.predicted_ms) == pytest.approx((200.0, 210.0))
    assert (found.ratio, found.low, found.high) == pytest.approx((1.05, 1.05, 1.05))
    assert found.real_s == pytest.approx((2.0, 4.0))
    assert found.predicted_s == pytest.approx((2.1, 4.2))
    assert (found.real_stall_ms, found.predicted_stall_ms) == pytest.approx((100.0, 50.0))
    assert (found.real_loads, found.predicted_loads) == (3.0, 4.0)
    assert found.goal.startswith("met")


@pytest.mark.parametrize("family", [OFFLOADING, AHEAD], ids=lambda family: family.label)
def test_no_setting_is_predicted_from_its_own_trace(family: Family) -> None:
    recorded, *predicted = (dict(parse_label(label).options) for label in family.labels)
    for options in predicted:
        assert options["capacity"] != recorded["capacity"]
        assert options["bandwidth_mb_s"] != recorded["bandwidth_mb_s"]
    assert len(set(family.labels)) == len(family.labels)


def test_the_settings_of_m2r2_are_left_out_without_modules() -> None:
    chosen, left_out = choose(Models("no-embedded-name", ""))
    assert [len(family) for family in chosen] == [1 + len(OFFLOADING.predicted)]
    assert list(left_out) == [AHEAD.labels[0]]
    assert "no trained modules" in left_out[AHEAD.labels[0]]


def test_a_target_without_experts_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "dense")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="the target is dense"):
        measure(Models(str(folder), ""), prompts=1, max_new_tokens=3, threads=1)


def test_a_tiny_mixture_is_measured_in_every_setting(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "moe", "olmoe", stop_ids=(), max_position_embeddings=2048)
    found: Any = measure(Models(str(folder), ""), prompts=1, max_new_tokens=3, threads=1)
    assert len(found["settings"]) == len(OFFLOADING.predicted)
    for line in found["settings"]:
        assert (line["prompts"], line["tokens"]) == (4, 8)
        assert "prefetch" in line["label"] or line["real_loads"] == line["predicted_loads"]
        assert line["low"] <= line["ratio"] <= line["high"]
        assert (line["recordings"], len(line["real_s"]), len(line["predicted_s"])) == (2, 4, 4)
        assert line["ratio"] == pytest.approx(sum(line["predicted_s"]) / sum(line["real_s"]))
    assert 0 <= found["share_within"] <= 1
    held = found["models"]["target"]
    assert (held["name"], held["weights_sha256"], found["modules_sha256"]) == ("moe", folder_sha256(folder), {})
    assert (found["prompts_per_suite"], found["max_new_tokens"], found["threads"]) == (1, 3, 1)
