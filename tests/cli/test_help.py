"""Help texts: every verb and every part of one shows examples that parse, options that say what they do, exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from documents import check_parses, commands

from benchctl.cli import main


def every_command(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    """All verbs and what is below them, groups too, by their words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield " ".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from every_command(command, *path, name)


EVERY = dict(every_command(main))


def help_of(name: str) -> str:
    """What `--help` prints."""
    result = CliRunner().invoke(main, [*name.split(), "--help"], terminal_width=100)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("name", ["", *EVERY])
def test_every_verb_shows_examples_of_itself_that_parse(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that an example names are there: whether they hold what they should is found when the verb runs."""
    monkeypatch.chdir(tmp_path)
    _, heading, after = help_of(name).partition("Examples")
    shown = list(commands(after.partition("Options:")[0]))
    assert heading and any(" ".join(words).startswith(name) for words in shown)
    for words in shown:
        for word in words:
            if word.endswith((".jsonl", ".json")) and "*" not in word:
                (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / word).touch()
        check_parses(words)


@pytest.mark.parametrize("name", EVERY)
def test_help_fits_and_every_option_says_what_it_is_and_shows_its_default(name: str) -> None:
    """Text is wrapped at 100; examples are not, so that they can be copied."""
    assert max(map(len, help_of(name).splitlines())) <= 110
    for option in EVERY[name].params:
        if isinstance(option, click.Option):
            assert option.help, option.opts
            default = option.default
            without = option.is_flag or not isinstance(default, str | int | float | Path | list | tuple) or not default
            assert without or option.show_default or "default" in option.help.lower(), option.opts
