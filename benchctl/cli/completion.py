"""Completion of names and files in a shell.

The shell asks at every press of a key, so nothing heavy is imported: names come from lists of files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import click
from click.shell_completion import CompletionItem, get_completion_class

Items: TypeAlias = "list[CompletionItem[str]]"  # click 8.4 has no generic CompletionItem at run time


def labels(context: click.Context, option: click.Parameter, incomplete: str) -> Items:
    """Methods, including those of other distributions."""
    from benchctl.registry import method_names

    return _starting(incomplete, method_names())


def judges(context: click.Context, option: click.Parameter, incomplete: str) -> Items:
    from benchctl.registry import judge_names

    return _starting(incomplete, judge_names())


def benches(context: click.Context, option: click.Parameter, incomplete: str) -> Items:
    from benchctl.measuring.prompts.suites import SUITES

    return _starting(incomplete, [suite.name for suite in SUITES]) or files(context, option, incomplete)


def models(context: click.Context, option: click.Parameter, incomplete: str) -> Items:
    from benchctl.bundled import models as embedded

    return _starting(incomplete, [model.name for model in embedded()]) or [CompletionItem(incomplete, type="dir")]


def files(context: click.Context, option: click.Parameter, incomplete: str) -> Items:
    return [CompletionItem(incomplete, type="file")]


def _starting(incomplete: str, names: Sequence[str]) -> Items:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


VARIABLE = "_BENCHCTL_COMPLETE"  # read by click


@click.command(no_args_is_help=True)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print the script that completes benchctl in a shell: its verbs, options and names.

    For bash or zsh, add this line to ~/.bashrc or ~/.zshrc: eval "$(benchctl completion bash)".

    \b
    Examples:
      benchctl completion bash > benchctl.bash && source benchctl.bash
      benchctl completion zsh > benchctl.zsh && source benchctl.zsh
      benchctl completion fish > ~/.config/fish/completions/benchctl.fish
    """
    click.echo(get_completion_class(shell)(context.find_root().command, {}, "benchctl", VARIABLE).source())
