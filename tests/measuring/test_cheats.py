"""Each way to look faster than one is, measured by `run` and compared: impossible, refused, or named in a warning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from inspect import getmembers, isclass
from pathlib import Path

import cheats
import pytest
import torch
from fixtures_run import invoke_run, make_folder, write_prompts

from benchctl import registry
from benchctl.analysis.comparison import Group, compare
from benchctl.analysis.metrics.drafting import BLOCK_EFFICIENCY, DEPTH_FRACTION
from benchctl.analysis.warnings import warnings
from benchctl.analysis.winner import fastest
from benchctl.methods.autoregressive import Autoregressive
from benchctl.records.schema import Run
from benchctl.records.writer import read

PROMPTS = [{"id": f"p{n}", "prompt": f"Tell me {n} things about the number {n * n}."} for n in range(12)]
ALONE = ("ChangesWeightsFirst", "ChangesWeightsLater", "ChangesThreads", "SlowsBaseline", "LeavesThread")
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Seen:
    """What a run of a cheat came to: `errors` of its generations by label, `warned` ids by label ("" for the run's)."""

    group: Group
    errors: dict[str, str]
    warned: dict[str, set[str]]

    @property
    def run(self) -> Run:
        return self.group.run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_folder(tmp_path_factory.mktemp("cheats"))
    write_prompts(folder / "three.jsonl", PROMPTS)
    return folder


def _plugins(patch: pytest.MonkeyPatch) -> list[str]:
    """All cheats as another distribution would announce them."""
    names = [name for name, kind in getmembers(cheats, isclass) if kind.__module__ == "cheats" and name != "Drafts"]
    entries = {name: EntryPoint(name, f"cheats:{name}", registry.METHODS) for name in names}
    patch.setattr(registry, "_plugins", lambda group: entries)
    return names


def _measured(folder: Path, patch: pytest.MonkeyPatch, out: str, *labels: str) -> Seen:
    patch.chdir(folder)
    words = [word for label in labels for word in ("--method", label)]
    result = invoke_run(*words, "--max-new-tokens", "24", "--repeats", "2", "--out", out)
    file = read(folder / out)
    answered = {row.label for row in file.rows if row.error is None}
    assert result.exit_code == int(answered != {row.label for row in file.rows}), result.output
    (group,) = compare([file])
    errors = {row.label: row.error.partition(":")[0] for row in file.rows if row.error}
    warned: dict[str, set[str]] = {}
    for warning in warnings(group):
        warned.setdefault(str(warning.values.get("label", "")), set()).add(warning.id)
    return Seen(group, errors, warned)


@pytest.fixture(scope="module")
def together(folder: Path) -> Iterator[Seen]:
    """One run of all cheats that leave the others alone, after one of the baseline, whose answers some of them read."""
    with pytest.MonkeyPatch.context() as patch:
        names = _plugins(patch)
        first = _measured(folder, patch, "first.jsonl", "Honest")
        lines = (folder / "first.jsonl").read_text().splitlines()[1:]
        tokenizer = _tokenizer(folder)
        for row in map(json.loads, lines):
            prompt = next(each for each in PROMPTS if each["id"] == row["prompt_id"])
            cheats.ANSWERS[tuple(tokenizer(str(prompt["prompt"])))] = row["token_ids"]
        assert not first.errors
        yield _measured(folder, patch, "all.jsonl", *(name for name in names if name not in ALONE))


def _tokenizer(folder: Path):  # type: ignore[no-untyped-def]
    from benchctl.decoding.model.target import Target

    tokenizer = Target.load(folder / "target").tokenizer
    return lambda prompt: tokenizer.encode_chat([{"role": "user", "content": prompt}])


@pytest.mark.parametrize(
    ("label", "error"),
    [
        ("RecitesFromStart", "more_tokens_than_passes"),
        ("RemembersAnswers", "more_tokens_than_passes"),
        ("CountsFalsely", "more_tokens_than_passes"),
        ("SkipsLayers", "layers_skipped"),
        ("RunsNothing", "ValueError"),
    ],
)
def test_what_cannot_be_is_an_error_of_the_generation(together: Seen, label: str, error: str) -> None:
    assert together.errors[label] == error


@pytest.mark.parametrize(
    ("label", "warning"),
    [
        ("WorksInPrepare", "drafts_foreseen"),
        ("ReadsResults", "drafts_foreseen"),
        ("RemembersDrafts", "remembers"),
        ("DropsTokens", "claim_broken"),
        ("AcceptsSecondBest", "claim_broken"),
        ("StopsEarly", "claim_broken"),
    ],
)
def test_what_is_implausible_or_false_is_named_in_a_warning(together: Seen, label: str, warning: str) -> None:
    assert warning in together.warned[label]


def test_the_honest_method_beside_them_has_no_mark_but_that_doctor_has_not_seen_it(together: Seen) -> None:
    assert together.warned["Honest"] == {"not_examined"} and "Honest" not in together.errors


def test_a_refused_method_is_never_the_fastest(together: Seen) -> None:
    refused = {method.label: method.refused for method in together.group.pooled.methods if method.refused}
    assert refused == {
        "RemembersDrafts": "remembers",
        **dict.fromkeys(("AcceptsSecondBest", "DropsTokens", "StopsEarly"), "claim_broken"),
    }
    winner = fastest(together.group)
    assert winner is not None and not {winner.label, *winner.tied, *winner.slower} & refused.keys()


def test_four_passes_in_a_step_are_one_token_a_pass(together: Seen) -> None:
    (merged,) = (method for method in together.group.pooled.methods if method.label == "MergesPasses")
    assert merged.estimate(BLOCK_EFFICIENCY).value == pytest.approx(1.0)
    assert merged.estimate(DEPTH_FRACTION).value == pytest.approx(1.0)


def test_time_spent_before_the_first_pass_and_under_a_false_clock_counts(together: Seen, folder: Path) -> None:
    rows = [row for row in read(folder / "all.jsonl").rows if row.repeat >= 0]
    assert min(row.ttft_s or 0 for row in rows if row.label == "WorksInServe") > cheats.SPENT_S
    assert min(min(row.step_s) for row in rows if row.label == "ReplacesClock") > cheats.SPENT_S
    assert together.run.prepare_s["WorksInPrepare"] > cheats.PREPARED_S > together.run.prepare_s["Honest"]


@pytest.mark.parametrize(
    ("label", "error"),
    [
        ("ChangesWeightsFirst", "weights_changed"),
        ("ChangesWeightsLater", "weights_changed"),
        ("ChangesThreads", "threads_changed"),
    ],
)
def test_changing_the_baseline_ends_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, raised: list[str], label: str, error: str
) -> None:
    _plugins(monkeypatch)
    monkeypatch.chdir(folder)
    threads = torch.get_num_threads()
    result = invoke_run("--method", label, "--out", f"{label}.jsonl")
    torch.set_num_threads(threads)
    assert result.exit_code == 2 and label in result.stderr and error in raised


def test_a_baseline_that_is_made_to_wait_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _plugins(monkeypatch)
    monkeypatch.setattr(Autoregressive, "step", Autoregressive.step)
    seen = _measured(folder, monkeypatch, "slowed.jsonl", "SlowsBaseline")
    assert "baseline_waits" in seen.warned[""]


def test_a_thread_that_is_left_running_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _plugins(monkeypatch)
    try:
        seen = _measured(folder, monkeypatch, "thread.jsonl", "LeavesThread")
    finally:
        cheats.LeavesThread.stop.set()
    if cheats.LeavesThread.share < 0.7:
        pytest.skip(f"a busy machine: the thread had {cheats.LeavesThread.share:.0%} of a core")
    assert "threads_left_running" in seen.warned[""]
