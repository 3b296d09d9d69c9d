"""`benchctl demo`: every method, the usual verbs, a folder of its own, no network."""

from __future__ import annotations

import shlex
import socket
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import click
import pytest
from click.testing import CliRunner
from fixtures_records import usual_rows, write

from benchctl import registry
from benchctl.cli import INTERRUPTED, main
from benchctl.cli.options import options_from
from benchctl.decoding.model.target import Target
from benchctl.measuring.settings import RunSettings
from benchctl.records.writer import read

SHOWN = import_module("benchctl.cli.demo")
MADE = {"methods.jsonl", "experts.jsonl", "pareto.png", "report.html"}


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        pytest.fail("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_every_method_is_measured_and_the_baseline_comes_by_itself() -> None:
    """On ref-dense, or on the mixture of experts; a method without settings for the demo takes its defaults."""
    dense, experts = SHOWN.demo_labels()
    shown = [registry.parse_label(label).name for label in (*dense, *experts)]
    assert sorted({*shown, registry.BASELINE}) == list(registry.builtin_names())
    assert {registry.parse_label(label).name for label in experts} == {"expert_offload", "m2r2_prefetch"}


@pytest.mark.slow
@pytest.mark.usefixtures("no_network")
def test_it_measures_compares_draws_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the real demo only the numbers of prompts and tokens are smaller."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SHOWN, "BENCHES", ("tasks",))
    monkeypatch.setattr(SHOWN, "PROMPTS", 1)
    monkeypatch.setattr(SHOWN, "_BRIEF", (*SHOWN._BRIEF, "--max-new-tokens", "3", "--warm-up", "0", "--no-watch"))
    result = CliRunner().invoke(main, ["demo", "--out", "first"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert {file.name for file in Path("first").iterdir()} == MADE
    of_methods, of_experts = (read(Path("first") / name) for name in ("methods.jsonl", "experts.jsonl"))
    assert {row.label for row in of_methods.rows} == {registry.BASELINE, *SHOWN.demo_labels()[0]}
    assert {row.label for row in of_experts.rows} == {registry.BASELINE, *SHOWN.demo_labels()[1]}
    assert not any(row.error for file in (of_methods, of_experts) for row in file.rows)
    assert result.stdout.count("In brief") == 2
    assert all(name in result.stdout for name in registry.builtin_names())
    for told in ("Plot: first/pareto.png", "Report: first/report.html", "Results: first/methods.jsonl", SHOWN._HONEST):
        assert told in result.stdout
    assert all(name in Path("first/report.html").read_text() for name in registry.builtin_names())


@click.command()
@options_from(RunSettings, "settings")
def _asked(settings: RunSettings) -> None:
    assert (settings.prompts.source, settings.models.target) == ("embedded", "")
    assert settings.methods == SHOWN.demo_labels()[0]


def test_the_command_it_records_is_one_that_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RunSettings] = []
    monkeypatch.setattr(import_module("benchctl.cli.run"), "measure", asked.append)
    monkeypatch.setattr(SHOWN, "_verb", lambda *_: None)
    monkeypatch.setattr(SHOWN, "_in_background", lambda *_: nullcontext())
    result = CliRunner().invoke(main, ["demo", "--out", str(tmp_path / "new")], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    first, second = asked
    assert first.command[:2] == second.command[:2] == ("benchctl", "run")
    assert CliRunner().invoke(_asked, list(first.command[2:]), catch_exceptions=False).exit_code == 0
    assert second.models.target == "ref-moe"
    assert first.out == tmp_path / "new" / "methods.jsonl"


@pytest.mark.parametrize("held", ["folder", "file"])
def test_it_overwrites_nothing(held: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    place = tmp_path / "mine"
    if held == "folder":
        place.mkdir()
    kept = place / "notes.txt" if held == "folder" else place
    kept.write_text("mine")
    result = CliRunner().invoke(main, ["demo", "--out", str(place)])
    assert result.exit_code == 2
    assert "is not an empty folder. Give another --out" in result.stderr
    assert kept.read_text() == "mine"


def test_an_interruption_says_where_the_measured_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured_and_interrupted(settings: RunSettings) -> NoReturn:
        assert settings.out is not None
        settings.out.parent.mkdir()
        write(settings.out, usual_rows())
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("benchctl.cli.run"), "measure", measured_and_interrupted)
    place = tmp_path / "my demo"
    result = CliRunner().invoke(main, ["demo", "--out", str(place)])
    assert result.exit_code == INTERRUPTED
    command = result.stderr.partition("See it with:  ")[2].splitlines()[0]
    assert shlex.split(command) == ["benchctl", "compare", str(place / "methods.jsonl")]
    assert CliRunner().invoke(main, shlex.split(command)[1:]).exit_code == 0


def test_an_interruption_before_anything_is_measured_promises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(settings: RunSettings) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("benchctl.cli.run"), "measure", interrupted)
    result = CliRunner().invoke(main, ["demo", "--out", str(tmp_path / "new")])
    assert result.exit_code == INTERRUPTED
    assert "Interrupted." in result.stderr and "kept" not in result.stderr
