"""Options of a verb from the fields of a settings dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import click
import pytest
from click.testing import CliRunner, Result
from fixtures_records import usual_rows, write
from refusals import refused

from benchctl.cli.options import options_from, read_files
from benchctl.measuring.settings import RunSettings
from benchctl.options import setting


@dataclass(frozen=True)
class Inner:
    rate: float = setting(0.5, "Rate.", above=0, most=1)
    kind: Literal["a", "b"] = setting("a", "Kind.")


@dataclass(frozen=True)
class Settings:
    names: tuple[str, ...] = setting((), "Names.", flags=("--name", "-n"), metavar="NAME")
    count: int | None = setting(None, "Count.", least=1)
    inner: Inner = field(default_factory=Inner)
    deep: bool = setting(False, "Deep.")
    watch: bool = setting(True, "Watch.")
    out: Path | None = setting(None, "Out.")
    hidden: int = 7


@click.command()
@options_from(Settings, "settings")
@click.option("--other", default=1)
def verb(settings: Settings, other: int) -> None:
    click.echo(repr((settings, other)))


def invoke(words: str) -> Result:
    return CliRunner().invoke(verb, words.split())


def test_every_field_takes_its_value_or_default_and_fields_without_a_setting_are_no_options() -> None:
    assert invoke("").stdout.strip() == repr((Settings(), 1))
    words = "-n one --name two --count 3 --rate 1 --kind b --deep --no-watch --out a/b --other 2"
    expected = Settings(("one", "two"), 3, Inner(1.0, "b"), True, False, Path("a/b"))
    assert invoke(words).stdout.strip() == repr((expected, 2))
    assert "--hidden" not in invoke("--help").output


@pytest.mark.parametrize("words", ["--count 0", "--rate 0", "--rate 1.5", "--rate nan", "--kind c", "--count x"])
def test_values_out_of_range_are_refused(words: str) -> None:
    assert invoke(words).exit_code == 2


def test_sweeps_alone_do_not_measure_every_method() -> None:
    sweep = "two_model[draft_tokens=2|3]"
    assert RunSettings().labels == ("all",)
    assert RunSettings(methods=("deed",)).labels == ("deed",)
    assert RunSettings(sweeps=(sweep,)).labels == ("two_model[draft_tokens=2]", "two_model[draft_tokens=3]")


def test_a_file_without_generations_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The note said so, but the file was kept, and counted in the report's title."""
    full, empty = write(tmp_path / "a.jsonl", usual_rows(2)), write(tmp_path / "b.jsonl", [])
    assert [file.path for file in read_files((str(full), str(empty)))] == [full]
    assert f"{empty}: contains no generations yet and is left out." in capsys.readouterr().err
    with refused("no_generations", "--resume"):
        read_files((str(empty),))
