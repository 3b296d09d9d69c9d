"""The command line: one file per verb, imported when the verb is called."""

import shlex
from importlib import import_module
from keyword import iskeyword

import click

from benchctl import __version__
from benchctl.errors import InvalidData, UserError

# One line for each verb, which begins its docstring: `benchctl --help` imports no verb.
VERBS = {
    "demo": "Measure every method on embedded models and prompts",
    "run": "Measure methods against the baseline",
    "judge": "Let a judge score the answers in results files",
    "compare": "Compare the methods in results files",
    "gate": "Hold results to conditions",
    "plot": "Draw one picture of results files",
    "report": "Write one HTML page about results files",
    "predict": "Predict each method's speed-up from its acceptance and its costs",
    "validate": "Check every line of results files",
    "import": "Read answers published by Spec-Bench, EAGLE, Medusa",
    "train": "Train a draft model, or the modules of a method",
    "doctor": "Examine this machine",
    "verify": "Check what methods claim on your own model",
    "list": "List the methods, the judges, the benches",
    "completion": "Print the script that teaches a shell to complete",
}
# A verb named like a Python builtin has an underscore behind the name of its file and function.
_SHADOWED = frozenset({"list"})
WRONG_USAGE = 2
INVALID_DATA = 3
INTERRUPTED = 130


class _Verbs(click.Group):
    """Imports a verb when it is called, and prints an error that a user can fix as one message."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, f"{line}.") for verb, line in VERBS.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        name = f"{cmd_name}_" if cmd_name in _SHADOWED or iskeyword(cmd_name) else cmd_name
        verb = getattr(import_module(f"{__name__}.{name}"), name)
        assert isinstance(verb, click.Command)
        return verb

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = list(args)  # the verb and its arguments, which an interrupt prints
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except UserError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(INVALID_DATA if isinstance(error, InvalidData) else WRONG_USAGE)
        except KeyboardInterrupt:
            verb = self.get_command(ctx, ctx.obj[0])
            resumes = verb is not None and any(parameter.name == "resume" for parameter in verb.params)
            advice = "--resume" if resumes else shlex.join(["benchctl", *ctx.obj])
            click.echo(f"\nInterrupted. Everything written so far is kept. Continue with: {advice}", err=True)
            ctx.exit(INTERRUPTED)


_MORE = """\b
Exit codes:
  0    success
  1    finished, with a negative result: all generations failed, a gate or a
       check failed, or --max-usd ended the judging
  2    wrong usage, or another error that you can fix: the message says how
  3    invalid data file
  4    `gate`: the data cannot decide
  130  interrupted; everything written is kept

\b
Environment:
  OPENAI_API_KEY   the key of `judge`; --key-env names another variable
  HF_HOME          folder of models from the hub; HF_TOKEN opens gated models,
                   HF_HUB_OFFLINE=1 uses only models that are on this machine
  BENCHCTL_DATA    folder with the published files of the prompt suites
  BENCHCTL_CACHE   folder of fetched prompts; default: benchctl/ in
                   XDG_CACHE_HOME or in ~/.cache
  HTTPS_PROXY      or ALL_PROXY: proxy for the hub
  NO_COLOR         turns colours off; they are off outside a terminal anyway
  COLUMNS          width of tables; default: that of the terminal
  RANK, WORLD_SIZE, LOCAL_RANK
                   set by torchrun, for training in several processes
  OMP_WAIT_POLICY  PASSIVE while training, unless it is set

\b
Files:
  results/*.jsonl         results: the settings, then a line per generation
  results/*.scores.jsonl  judges' scores for the results of the same name
  results/judge-cache/    judges' replies, so that no reply is paid for twice

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
