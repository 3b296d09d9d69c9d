"""The command line: one file per verb, imported when the verb is called, so that `benchctl --help` stays fast."""

from importlib import import_module
from keyword import iskeyword

import click

from benchctl import __version__
from benchctl.errors import InvalidData, UserError

VERBS = (
    *("demo", "run", "watch", "judge", "compare", "plot", "report", "predict", "validate"),
    *("import", "train", "doctor", "verify", "list", "completion"),
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


_MORE = """\b
Exit codes:
  0    done
  1    done, but not as wanted: all generations failed, a gate broke, a check
       did not pass, --max-usd ended the judging
  2    wrong usage, or something else that you can mend: the message says how
  3    a file holds what cannot be true
  130  interrupted; what was written is kept

\b
Environment:
  OPENAI_API_KEY   the key of `judge`; --key-env names another variable
  HF_HOME          where models of the hub are kept; HF_TOKEN opens gated
                   ones, HF_HUB_OFFLINE=1 takes only what is kept
  BENCHCTL_CACHE   where fetched prompts are kept; else benchctl/ in
                   XDG_CACHE_HOME, else in ~/.cache
  HTTPS_PROXY      or ALL_PROXY: the way to the hub, where it needs one
  NO_COLOR         no colours; away from a terminal there are none anyway
  COLUMNS          the width of tables; else the terminal's
  RANK, WORLD_SIZE, LOCAL_RANK
                   set by torchrun, for training in several processes
  OMP_WAIT_POLICY  PASSIVE while training, unless it is set

\b
Files:
  results/*.jsonl         results: the settings, then a line per generation
  results/*.scores.jsonl  what judges said of the results of the same name
  results/judge-cache/    replies of judges, so that nothing is paid for twice

\b
See also:
  benchctl VERB --help        the options of a verb, with examples
  benchctl list methods       the methods, with their options
  benchctl completion --help  completion in bash, zsh and fish"""


@click.group(
    cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, epilog=_MORE
)
@click.version_option(__version__, prog_name="benchctl")
def main() -> None:
    """Measure ways to speed up the decoding of language models: same target, same loop, same clock.

    \b
    Examples:
      benchctl demo
      benchctl run --method two_model --method prompt_lookup --bench koala --out results/first.jsonl
      benchctl compare results/first.jsonl
      benchctl plot --pareto results/first.jsonl --out pareto.png
    """
