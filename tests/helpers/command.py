"""The command line, in this process."""

from __future__ import annotations

from click.testing import CliRunner, Result

from benchctl.cli import main


def cli(*words: object) -> Result:
    """What `benchctl words...` did."""
    return CliRunner().invoke(main, [*map(str, words)])


def ok(result: Result) -> Result:
    """Of a command that must have succeeded."""
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result
