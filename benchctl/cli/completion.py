"""`benchctl completion`: lets a shell complete verbs, options, and the names of methods, benches, models and judges."""

from __future__ import annotations

from typing import Literal

import click
from click.shell_completion import get_completion_class

VARIABLE = "_BENCHCTL_COMPLETE"  # what click asks for by a command of this name


@click.command(no_args_is_help=True)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print the script that teaches a shell to complete benchctl's verbs, options and names.

    In bash and zsh a line of ~/.bashrc or ~/.zshrc runs it: eval "$(benchctl completion bash)". Fish finds it in a
    file of its own.

    \b
    Examples:
      benchctl completion bash > benchctl.bash && source benchctl.bash
      benchctl completion zsh > benchctl.zsh && source benchctl.zsh
      benchctl completion fish > ~/.config/fish/completions/benchctl.fish
    """
    click.echo(get_completion_class(shell)(context.find_root().command, {}, "benchctl", VARIABLE).source())
