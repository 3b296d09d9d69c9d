"""`benchctl doctor` passes every built-in method, and finds each kind of mistake in a method that makes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from command import cli
from doctor_mutants import MUTANTS, ChoosesItself, Plain, Raises, RaisingReason, Undecorated

from benchctl import registry
from benchctl.cli.doctor import _noted
from benchctl.conformance.checks import CHECKS, OF_THE_METHOD, ON_A_TARGET, _roles, examine
from benchctl.conformance.findings import Finding, finding
from benchctl.conformance.method_under_test import MethodUnderTest, answer
from benchctl.conformance.random_models import KINDS, NEW_TOKENS, prompt_of, random_models
from benchctl.decoding.batch import why_not_batched
from benchctl.decoding.method import Method

# Labels that act on random models, for the check `engaged`.
MODES = (
    "m2r2_dynamic[threshold=0.5]",
    "early_exit[threshold=0.3]",
    "early_exit[mode=draft,threshold=0.3]",
    "early_exit[head=trained,threshold=0.3,decay=4]",
    "deed[threshold=0.3]",
    "deed[mode=draft,threshold=0.3]",
    "medusa[accept=typical]",
)


def _name(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every mutant, announced as another distribution would."""
    others: list[type[Method]] = [Plain, Raises, RaisingReason, Undecorated, ChoosesItself]
    found = [*others, *(mutant for _, mutant, _ in MUTANTS)]
    entries = {of.__name__: EntryPoint(of.__name__, f"{of.__module__}:{of.__name__}", registry.METHODS) for of in found}
    monkeypatch.setattr(registry, "_plugins", lambda group: entries)
    yield


def _checked(check: str, label: str, folder: Path) -> Finding:
    subject = MethodUnderTest(label, folder)
    arguments = (subject, random_models("llama")) if check in ON_A_TARGET else (subject,)
    return finding(label, check, "", partial(CHECKS[check], *arguments))


def test_every_check_is_shown_to_fail() -> None:
    """All but `engaged`, which only tells whether the others had something to look at."""
    assert {*(check for check, _, _ in MUTANTS), "engaged"} == set(CHECKS)


@pytest.mark.parametrize(
    "label",
    [
        "two_model",
        "prompt_lookup",
        "medusa",
        "lookahead",
        "m2r2",
        "skip_decode",
        "mixture_of_depths[threshold=0.5]",
        *MODES,
    ],
)
def test_what_a_method_is_for_is_seen(label: str, tmp_path: Path) -> None:
    assert [ON_A_TARGET["engaged"](MethodUnderTest(label, tmp_path), random_models(kind)) for kind in KINDS] == [
        None,
        None,
    ]


def test_a_method_that_does_not_act_here_is_told_so(tmp_path: Path) -> None:
    """The exits of an untrained target are never sure enough: a wrong distribution of drafts once passed."""
    found = _checked("engaged", "early_exit[mode=draft]", tmp_path)
    assert found.verdict == "skip" and "lower threshold" in found.detail


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(("check", "mutant", "words"), MUTANTS, ids=_name)
def test_a_mistake_is_found_by_its_check(check: str, mutant: type[Method], words: str, tmp_path: Path) -> None:
    found = _checked(check, mutant.__name__, tmp_path)
    assert found.verdict == "fail"
    assert words in found.expected + found.seen and found.action


@pytest.mark.slow
@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize("label", ["Plain", "two_model"])
def test_what_the_mutants_spoil_passes_every_check(label: str) -> None:
    verdicts = {finding.check: finding.verdict for finding in examine(label) if finding.check != "engaged"}
    assert verdicts.pop("batches") == "skip" and set(verdicts.values()) == {"pass"}


def test_a_method_that_decodes_no_batches_has_that_check_skipped_with_its_reason(tmp_path: Path) -> None:
    """It once passed what it had not been asked."""
    found = _checked("batches", "prompt_lookup", tmp_path)
    assert found.verdict == "skip" and found.detail.startswith("it decodes no batches, since each sequence")
    assert _checked("batches", "autoregressive", tmp_path).verdict == "pass"


@pytest.mark.usefixtures("plugins")
def test_a_method_that_cannot_be_replayed_is_told_why(tmp_path: Path) -> None:
    """Only `run --replay` told so, in every row of its own."""
    found = _checked("replay", "ChoosesItself", tmp_path)
    assert found.verdict == "skip" and found.detail.startswith("run --replay cannot take it: the method said ")
    assert found.detail.endswith("replay takes methods that choose by Context.pick, or draft as Speculative does")
    assert _checked("greedy", "ChoosesItself", tmp_path).verdict == "pass"


@pytest.mark.slow
@pytest.mark.parametrize("label", [*registry.builtin_names(), "early_exit[head=trained]", "medusa[accept=typical]"])
def test_every_built_in_method_passes(label: str) -> None:
    found = list(examine(label))
    assert [finding for finding in found if finding.verdict == "fail"] == []
    assert len(found) == len(OF_THE_METHOD) + len(KINDS) * len(ON_A_TARGET)
    passed = {finding.check for finding in found if finding.verdict == "pass"}
    lossy = registry.build(label).exactness == "lossy"
    alone = {"batches"} if why_not_batched(registry.build(label)) else set()
    assert passed | {"engaged"} == set(CHECKS) - ({"greedy", "sampled", "cache"} if lossy else set()) - alone


def test_answers_hold_stop_tokens_in_every_role(tmp_path: Path) -> None:
    """Or the check of stop tokens would prove little."""
    for kind in KINDS:
        method = MethodUnderTest("two_model[confidence=0]", tmp_path).prepared(random_models(kind))
        full = answer(method, random_models(kind), prompt_of(13), NEW_TOKENS)
        assert set(_roles(full)) == {"first", "inner", "last accepted", "bonus"}


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize("label", ["Raises", "RaisingReason"])
def test_an_error_of_the_method_is_a_finding_that_says_where(label: str) -> None:
    failed = {finding.check: finding for finding in examine(label) if finding.verdict == "fail"}
    assert set(failed) >= ({"unsupported", "greedy", "cache"} if label == "RaisingReason" else {"greedy", "stops"})
    assert "doctor_mutants.py, line" in failed["greedy"].action
    assert failed["greedy"].seen.split(":")[0] in ("ZeroDivisionError", "RuntimeError")


_doctor = partial(cli, "doctor")


@pytest.mark.slow
@pytest.mark.usefixtures("plugins")
def test_doctor_exits_with_one_where_a_check_fails_and_says_what_to_do() -> None:
    result = _doctor("--method", "RunsUncounted")
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert "fail counting llama expected every pass through context.stream" in text
    assert "To do: run rows through context.stream only." in text
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_cache_that_cannot_be_written_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All checks passed, and then doctor ended with a traceback."""

    def refuse(name: str, label: str, passed: bool) -> None:
        raise OSError(30, "Read-only file system", "")

    monkeypatch.setattr(registry, "note_examined", refuse)
    assert list(_noted("mine", [])) == []
    assert "cannot be written (Read-only file system)" in capsys.readouterr().err


@pytest.mark.slow
def test_doctor_prints_json_and_exits_with_nought_where_all_is_well() -> None:
    result = _doctor("--method", "early_exit[threshold=0.90]", "--method", "expert_offload", "--json")
    lines = json.loads(result.stdout)
    assert result.exit_code == 0
    assert {line["label"] for line in lines} == {"early_exit", "expert_offload"}
    skipped = {(line["label"], line["target"]): line["detail"] for line in lines if line["verdict"] == "skip"}
    assert "mixture of experts" in skipped["expert_offload", "llama"]
    assert all(skipped.values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--method", "two_model", "--aa"), "--aa"),
        (("--method", "two_model", "a.jsonl"), "FILES"),
        (("a.jsonl",), "--aa"),
        (("--out", "aa.json"), "--aa"),
        (("--model", "m"), "--method or --aa"),
        (("--method", "two_model", "--draws", "5"), "--draws"),
        (("--aa", "a.jsonl", "--model", "m"), "--model and --out"),
        (("--aa", "--out", "aa.json", "a.jsonl"), "--model and --out"),
        (("--aa", "nosuch.jsonl"), "nosuch.jsonl"),
        (("--method", "nosuch"), "Unknown method 'nosuch'"),
        (("--method", "two_model", "--method", "two_model[depth=3]"), "has no option 'depth'"),
        (("--method", "Undecorated"), "put @dataclass above it"),
    ],
)
@pytest.mark.usefixtures("plugins")
def test_wrong_usage_of_doctor_is_exit_code_2_before_anything_is_examined(words: tuple[str, ...], said: str) -> None:
    result = _doctor(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
