"""`benchctl demo`: every method, the usual verbs, a folder of its own, no network."""

from __future__ import annotations

import shlex
import socket
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import pytest
from command import cli, ok
from fixtures_records import usual_rows, write

from benchctl import bundled, registry
from benchctl.cli import INTERRUPTED
from benchctl.measuring.settings import RunSettings
from benchctl.records.writer import read

SHOWN = import_module("benchctl.cli.demo")
RUN = import_module("benchctl.cli.run")
MADE = {"methods.jsonl", "experts.jsonl", "pareto.png", "report.html"}


@pytest.fixture(autouse=True)
def nothing_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        pytest.fail("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_every_method_is_measured_and_the_baseline_comes_by_itself() -> None:
    """On ref-dense, or on the mixture of experts; a method without settings for the demo takes its defaults.

    No modules of these are embedded.
    """
    untrained = {"dflash", "kangaroo", "pseudo", "sequential", "specee"}
    dense, experts = SHOWN.demo_labels(SHOWN.EMBEDDED)
    shown = [registry.parse_label(label).name for label in (*dense, *experts)]
    assert sorted({*shown, *untrained, registry.BASELINE}) == list(registry.builtin_names())
    assert not untrained & {*shown}
    assert {registry.parse_label(label).name for label in experts} == {"expert_offload", "m2r2_prefetch"}


@pytest.mark.slow
@pytest.mark.usefixtures("no_network")
def test_it_measures_compares_draws_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the real demo only the numbers of prompts and tokens are smaller."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SHOWN, "SUITES", ("tasks",))
    monkeypatch.setattr(SHOWN, "PROMPTS", 1)
    monkeypatch.setattr(SHOWN, "EXPERT_PROMPTS", 1)
    monkeypatch.setattr(SHOWN, "_BRIEF", (*SHOWN._BRIEF, "--max-new-tokens", "3", "--warm-up", "0", "--no-watch"))
    result = ok(cli("demo", "--out", "first"))
    assert {file.name for file in Path("first").iterdir()} == MADE
    of_methods, of_experts = (read(Path("first") / name) for name in ("methods.jsonl", "experts.jsonl"))
    assert {row.label for row in of_methods.rows} == {registry.BASELINE, *SHOWN.demo_labels(SHOWN.EMBEDDED)[0]}
    assert {row.label for row in of_experts.rows} == {registry.BASELINE, *SHOWN.demo_labels(SHOWN.EMBEDDED)[1]}
    assert not any(row.error for file in (of_methods, of_experts) for row in file.rows)
    assert result.stdout.count("\nautoregressive ") == 2
    assert all(label.partition("[")[0] in result.stdout for label in SHOWN.demo_labels(SHOWN.EMBEDDED)[0])
    assert of_methods.run.command[:3] == ("benchctl", "run", "--method")
    for printed in ("Plot: first/pareto.png", "Report: first/report.html", "Results: first/methods.jsonl"):
        assert printed in result.stdout
    page = Path("first/report.html").read_text()
    assert all(label.partition("[")[0] in page for labels in SHOWN.demo_labels(SHOWN.EMBEDDED) for label in labels)


def test_the_commands_it_runs_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(SHOWN, "_verb", lambda context, *words: asked.append(words))
    ok(cli("demo", "--out", tmp_path / "new"))
    assert [words[0] for words in asked] == ["run", "run", "plot", "report"]
    first, second = (RUN.run.make_context("run", list(words[1:])).params for words in asked[:2])
    assert (first["source"], first["target"], first["methods"]) == (
        "embedded",
        "ref-dense",
        SHOWN.demo_labels(SHOWN.EMBEDDED)[0],
    )
    assert (second["target"], first["out"]) == ("ref-moe", tmp_path / "new" / "methods.jsonl")


def test_it_measures_the_real_model_where_that_was_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(SHOWN, "_verb", lambda context, *words: asked.append(words))
    monkeypatch.setattr(SHOWN, "demo_labels", lambda targets: tuple((f"on-{target}",) for target in targets))
    for fetched, expected, hinted in ((False, "ref-dense", True), (True, "smollm2", False)):
        asked.clear()
        monkeypatch.setattr(bundled, "is_fetched", lambda model, there=fetched: there)
        result = ok(cli("demo", "--out", tmp_path / expected))
        first, second = (RUN.run.make_context("run", list(words[1:])).params for words in asked[:2])
        assert (first["target"], first["methods"]) == (expected, (f"on-{expected}",))
        assert (second["target"], second["methods"]) == ("ref-moe", ("on-ref-moe",))
        assert ("benchctl fetch smollm2" in result.stdout) == hinted


@pytest.mark.parametrize("kept", ["mine", "mine/notes.txt"])
def test_it_overwrites_nothing(kept: str, tmp_path: Path) -> None:
    (tmp_path / kept).parent.mkdir(exist_ok=True)
    (tmp_path / kept).write_text("mine")
    result = cli("demo", "--out", tmp_path / "mine")
    assert (result.exit_code, "--out" in result.stderr) == (2, True)
    assert (tmp_path / kept).read_text() == "mine"


@pytest.mark.parametrize("measured", [True, False])
def test_an_interruption_prints_the_command_that_shows_what_was_measured(
    measured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(settings: RunSettings) -> NoReturn:
        if measured:
            assert settings.out is not None
            settings.out.parent.mkdir()
            write(settings.out, usual_rows())
        raise KeyboardInterrupt

    monkeypatch.setattr(RUN, "measure", interrupted)
    result = cli("demo", "--out", tmp_path / "my demo")
    assert result.exit_code == INTERRUPTED
    command = shlex.split(result.stderr.partition("See it with:  ")[2])
    assert command == (["benchctl", "compare", str(tmp_path / "my demo" / "methods.jsonl")] if measured else [])
    assert not measured or cli(*command[1:]).exit_code == 0
