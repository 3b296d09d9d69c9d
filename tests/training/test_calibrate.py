"""Calibration keeps its promise on simulated risks; `benchctl train METHOD --calibrate` keeps it on a target."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fixtures_training import BATCHES, COMMON, done, refused, with_target
from safetensors.torch import load_file, save_file
from scipy.stats import binom

from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.model.target import Target
from benchctl.registry import build
from benchctl.training.data.chats import ChatFormat, Message
from benchctl.training.modules.calibrate import THRESHOLDS, Calibration, Risk, disagreement, learn_then_test, p_value

PROMISED = Risk(0.2, 0.1)
SIMULATED = 80
REPEATS = 1500
# Three standard deviations of a share of REPEATS that is epsilon.
ALLOWED = PROMISED.epsilon + 3 * (PROMISED.epsilon * (1 - PROMISED.epsilon) / REPEATS) ** 0.5
RISING = {0.9: 0.02, 0.8: 0.08, 0.7: 0.14, 0.6: 0.19, 0.5: 0.22, 0.4: 0.24, 0.3: 0.3}
ALL_ABOVE = {0.99 - number / 100: 0.205 for number in range(20)}
# The safest is not the highest: fewer pass, none wrongly.
FALLING = {0.9: 0.3, 0.8: 0.21, 0.7: 0.21, 0.6: 0.21, 0.5: 0.1}


def _simulated(risk: float, chance: random.Random, kind: str) -> list[float]:
    """Losses with this mean: all or nothing, or in between."""
    if kind == "coins":
        return [float(chance.random() < risk) for _ in range(SIMULATED)]
    return [min(1.0, chance.betavariate(risk, 1 - risk)) for _ in range(SIMULATED)]


def _ours(losses: dict[float, list[float]]) -> float | None:
    chosen = learn_then_test(tuple(losses), losses.__getitem__, PROMISED).chosen
    return None if chosen is None else chosen.threshold


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["coins", "shares"])
@pytest.mark.parametrize("risks", [RISING, ALL_ABOVE, FALLING], ids=["rising", "all above", "falling"])
def test_no_more_than_epsilon_of_calibrations_break_the_promise(risks: dict[float, float], kind: str) -> None:
    chance, wrong = random.Random(0), 0
    for _ in range(REPEATS):
        chosen = _ours({threshold: _simulated(risk, chance, kind) for threshold, risk in risks.items()})
        wrong += chosen is not None and risks[chosen] > PROMISED.delta
    assert wrong / REPEATS <= ALLOWED


def test_calibration_finds_a_threshold_where_there_is_one() -> None:
    """Else the promise would be kept by never choosing: nearly all end, and half well below the highest."""
    lows = []
    chance = random.Random(1)
    for _ in range(200):
        lows.append(_ours({at: _simulated(risk, chance, "coins") for at, risk in RISING.items()}))
    assert sum(low is not None for low in lows) >= 198
    assert sum(low is not None and low <= 0.8 for low in lows) > 100


def test_p_values_are_bounds_of_the_true_chance() -> None:
    """Of coins whose risk is delta itself, the worst case: P(p <= level) <= level, by enumeration of all counts."""
    for count, delta in ((20, 0.1), (80, 0.2), (150, 0.05)):
        found = [p_value([1.0] * hits + [0.0] * (count - hits), delta) for hits in range(count + 1)]
        assert found == sorted(found)
        for level in (0.01, 0.05, 0.1, 0.3):
            chance = sum(binom.pmf(hits, count, delta) for hits in range(count + 1) if found[hits] <= level)
            assert chance <= level
    assert p_value([0.0] * 29, 0.1) == pytest.approx(0.9**29)
    assert Risk(0.1, 0.05).fewest == 29 and 0.9**28 > 0.05 >= 0.9**29


def test_a_prompt_counts_up_to_its_first_difference() -> None:
    """The example of the docstring; what comes after the first difference is another text."""
    assert disagreement([5, 6, 7, 8], [5, 6, 9]) == 0.5
    assert disagreement([5, 6], [5, 6]) == 0.0
    assert disagreement([5, 6], [5, 6, 7, 8]) == 0.5
    assert disagreement([9, 6, 7], [5, 6, 7]) == 1.0


def test_testing_stops_at_the_first_threshold_that_is_not_shown_to_be_safe() -> None:
    asked: list[float] = []

    def losses_at(threshold: float) -> Sequence[float]:
        asked.append(threshold)
        return [0.0] * 50 if threshold > 0.5 or threshold < 0.2 else [1.0] * 50

    found = learn_then_test((0.9, 0.6, 0.4, 0.1), losses_at, PROMISED)
    assert asked == [0.9, 0.6, 0.4]
    assert found.chosen is not None and found.chosen.threshold == 0.6
    assert Calibration(PROMISED, found.tested[2:]).chosen is None


@pytest.mark.parametrize(
    ("text", "message"),
    [("0.1", "delta.*epsilon"), ("0,0.1", r"delta.* 0\.0"), ("0.1,1", r"epsilon.* 1\.0"), ("nan,0.1", "delta.* nan")],
)
def test_promises_that_cannot_be_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Risk.read(text)


PROMPTS = [f"What is {a} and {b}?" for a in ("red", "green", "blue") for b in ("dog", "cat", "bird", "fish")]
TOKENS = 6
HOW = ("--answer-tokens", TOKENS, "--dtype", "float32", "--threads", 1, "--calibrate-prompts", 12)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target of random weights, text to learn from, and a dozen prompts held out."""
    folder = tmp_path_factory.mktemp("calibrate")
    with_target(folder)
    lines = [json.dumps({"source": "unit", "instruction": text, "output": "Yes."}) for text in PROMPTS]
    (folder / "data" / "val.jsonl").write_text("\n".join(lines))
    done("train", "deed[exits=1]", *_words(folder), "--out", folder / "deed", "--steps", 2, *BATCHES, *COMMON)
    return folder


def _words(folder: Path) -> tuple[object, ...]:
    return "--model", folder / "target", "--data", folder / "data"


def _calibrated(folder: Path, out: Path, label: str, promised: str) -> tuple[str, dict[str, Any]]:
    shown = done("train", label, *_words(folder), "--out", out, "--calibrate", promised, *HOW)
    return shown, json.loads((out / "calibration.json").read_text())


def _losses(folder: Path, label: str) -> list[float]:
    """Counted here: the share of an answer from the first token on that is not the target's."""
    target = Target.load(folder / "target")
    heads = ChatFormat.load(folder / "target").heads([(Message("user", text),) for text in PROMPTS])
    losses = []
    for head in heads:
        texts = []
        for method in (build("autoregressive"), build(label)):
            method.prepare(target)
            texts.append(decode(method, target, DecodeRequest(head.tolist(), TOKENS)).token_ids)
        agreed = 0
        while agreed < min(map(len, texts)) and texts[0][agreed] == texts[1][agreed]:
            agreed += 1
        losses.append(1 - agreed / max(map(len, texts)))
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(
    "label", ["early_exit[exits=1+2,confidence=state_cosine]", "deed[exits=1,modules={folder}/deed]"]
)
def test_risks_are_those_of_the_methods_answers(label: str, made: Path, tmp_path: Path) -> None:
    """Recounted at the threshold chosen and at the one where testing stopped; those between are the grid's."""
    label = label.format(folder=made)
    shown, found = _calibrated(made, tmp_path / "out", label, "0.75,0.3")
    tested = found["tested"]
    assert [entry["threshold"] for entry in tested] == list(THRESHOLDS[: len(tested)])
    for entry in (tested[0], tested[-1]):
        losses = _losses(made, f"{label[:-1]},threshold={entry['threshold']}]")
        assert entry["risk"] == pytest.approx(sum(losses) / len(PROMPTS))
        assert entry["p_value"] == pytest.approx(p_value(losses, 0.75))
    safe = [entry["threshold"] for entry in tested if entry["p_value"] <= 0.3]
    assert found["threshold"] == safe[-1]
    how = f"--max-new-tokens {TOKENS} --device cpu --dtype float32"
    assert f"{label[:-1]},threshold={safe[-1]:g}]' {how}\n" in shown
    assert re.search(rf"{tested[0]['threshold']}\b.* {tested[0]['risk']:.4f} .*\b12\b", shown)


def test_modules_of_an_exact_mode_are_not_calibrated(made: Path, tmp_path: Path) -> None:
    """Their label is exact whatever its threshold, so every risk would be 0."""
    shutil.copytree(made / "deed", tmp_path / "drafts")
    facts = json.loads((tmp_path / "drafts" / "modules.json").read_text())
    facts["asked"] |= {"mode": "draft"}
    (tmp_path / "drafts" / "modules.json").write_text(json.dumps(facts))
    words = (f"deed[modules={tmp_path / 'drafts'}]", *_words(made), "--out", tmp_path / "out")
    assert "mode=exit" in refused("train", *words, "--calibrate", "0.9,0.4", id="nothing_to_calibrate")


@pytest.mark.slow
def test_it_says_for_what_it_was_found_and_where_nothing_lies(made: Path, tmp_path: Path) -> None:
    _, found = _calibrated(made, tmp_path / "out", f"deed[modules={made}/deed]", "0.9,0.4")
    assert found["method"] == "deed[exits=1,modules=deed]"
    assert found["target"]["weights_sha256"] == Target.load(made / "target").weights_sha256
    assert len(found["modules_sha256"]) == 64
    assert found["promised"] == {"delta": 0.9, "epsilon": 0.4}
    assert (found["prompts"], found["answer_tokens"]) == (12, TOKENS)
    assert str(made) not in json.dumps(found)
    words = (f"deed[modules={made}/deed]", *_words(made), "--out", tmp_path / "out")
    assert "calibration.json" in refused("train", *words, "--calibrate", "0.9,0.4", id="out_not_empty")


def test_where_no_threshold_is_safe_it_says_so(made: Path, tmp_path: Path) -> None:
    """A classifier that is always sure leaves at the first exit whatever the threshold is."""
    label, folder = "early_exit[exits=1,confidence=classifier]", tmp_path / "classifier"
    done("train", label, *_words(made), "--out", folder, "--steps", 1, *BATCHES, *COMMON)
    weights = load_file(folder / "modules.safetensors")
    weights["classifier.1.bias"] += 1000.0
    save_file(weights, folder / "modules.safetensors")
    words = (*_words(made), "--out", tmp_path / "out", "--calibrate", "0.2,0.1", *HOW)
    shown = refused("train", f"{label[:-1]},modules={folder}]", *words, id="no_safe_threshold")
    assert "0.999" in shown and "0.2" in shown
    assert json.loads((tmp_path / "out" / "calibration.json").read_text())["threshold"] is None


def test_prompts_that_modules_learned_from_are_left_out(made: Path, tmp_path: Path) -> None:
    """With other answers, and in chats that went on. Without modules nothing was learned."""
    data = tmp_path / "data"
    shutil.copytree(made / "data", data)
    later = [{"role": "user", "content": "More."}, {"role": "assistant", "content": "No."}]
    chats = [[{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}] for text in PROMPTS[:9]]
    lines = [json.dumps({"messages": chat + (later if number < 5 else [])}) for number, chat in enumerate(chats)]
    (data / "more.jsonl").write_text("\n".join(lines))
    words = ("--model", made / "target", "--data", data, "--out", tmp_path / "out", "--calibrate", "0.2,0.1", *HOW)
    shown = refused("train", f"deed[exits=1,modules={made / 'deed'}]", *words, id="too_few_prompts")
    assert "3 held-out prompts with room" in shown
    assert "12 prompts" in done("train", "early_exit[exits=1]", *words)


@pytest.mark.parametrize(
    ("label", "arguments", "id", "facts"),
    [
        ("early_exit", ("--calibrate", "0.1"), "", ("--calibrate", "epsilon")),
        ("early_exit", ("--calibrate", "0.1,0.05", "--steps", "3"), "", ("--steps",)),
        ("early_exit", ("--calibrate", "0.1,0.05", "--compile"), "", ("--compile.",)),  # whose field is `compiled`
        ("early_exit[threshold=0.5]", ("--calibrate", "0.5,0.5"), "option_is_calibrated", ("threshold",)),
        ("early_exit[mode=draft]", ("--calibrate", "0.5,0.5"), "nothing_to_calibrate", ("mode=exit",)),
        ("medusa", ("--calibrate", "0.5,0.5"), "nothing_to_calibrate", ("medusa", "early_exit, deed")),
        ("mixture_of_depths", ("--calibrate", "0.5,0.5"), "threshold_not_monotone", ("mixture_of_depths", "--sweep")),
        ("early_exit", ("--calibrate-prompts", "9"), "", ("--calibrate-prompts has no effect",)),
        ("early_exit", ("--calibrate", "0.1,0.05", "--calibrate-prompts", "9"), "too_few_prompts", ("9 prompts", "29")),
        ("early_exit", ("--calibrate", "0.1,0.05", "--answer-tokens", "6"), "too_few_prompts", ("12 ", " 6 ", "29")),
        ("early_exit[exits=7]", ("--calibrate", "0.9,0.5"), "label_cannot_run", ("exit 7", "3 layers")),
        ("deed", ("--calibrate", "0.9,0.4"), "modules_missing", ("benchctl train deed",)),
    ],
)
def test_what_cannot_be_calibrated_is_refused_before_weights_are_loaded(
    label: str,
    arguments: tuple[str, ...],
    id: str,
    facts: tuple[str, ...],
    made: Path,
    tmp_path: Path,
    no_weights: None,
) -> None:
    shown = refused("train", label, *_words(made), "--out", tmp_path / "out", *arguments, id=id)
    assert all(fact in shown for fact in facts), shown
