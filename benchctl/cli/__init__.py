"""The command line: one file per verb, imported when the verb is called, so that `benchctl --help` stays fast."""

from importlib import import_module
from keyword import iskeyword

import click

from benchctl import __version__
from benchctl.errors import InvalidData, UserError

VERBS = (
    *("run", "watch", "judge", "compare", "plot", "report", "predict", "validate"),
    *("import", "train", "simulate", "doctor", "verify", "list"),
)
# Python's own names would be hidden by a verb of that name: such a verb carries an underscore in its file.
_SHADOWED = frozenset({"list"})
WRONG_USAGE = 2
INVALID_DATA = 3
INTERRUPTED = 130


class _Refusal(click.ClickException):
    """A UserError on its way to the terminal: "Error: message" and the exit code of wrong usage."""

    exit_code = WRONG_USAGE


class _Invalid(_Refusal):
    """The same for data that cannot be true."""

    exit_code = INVALID_DATA


class _Verbs(click.Group):
    """Finds a verb in the file of its name, and turns what a user can cause into one message."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        name = f"{cmd_name}_" if cmd_name in _SHADOWED or iskeyword(cmd_name) else cmd_name
        verb = getattr(import_module(f"{__name__}.{name}"), name)
        assert isinstance(verb, click.Command)
        return verb

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except InvalidData as error:
            raise _Invalid(str(error)) from error
        except UserError as error:
            raise _Refusal(str(error)) from error
        except KeyboardInterrupt:
            click.echo("\nInterrupted. What was written so far is kept; --resume goes on from there.", err=True)
            ctx.exit(INTERRUPTED)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="benchctl")
def main() -> None:
    """Measure ways to speed up the decoding of language models: same target, same loop, same clock.

    \b
    Example:
      benchctl run --method two_model --method prompt_lookup --bench koala --out results/first.jsonl
      benchctl compare results/first.jsonl
      benchctl plot --pareto results/first.jsonl --out pareto.png
    """
