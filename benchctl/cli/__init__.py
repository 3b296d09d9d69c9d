"""The command line: one file per verb, imported when the verb is called."""

import shlex
from difflib import get_close_matches
from importlib import import_module
from keyword import iskeyword

import click

from benchctl import __version__
from benchctl.errors import InvalidData, UserError, is_out_of_memory

# One line for each verb, which begins its docstring: `benchctl --help` imports no verb.
GROUPS = {
    "Measure": {
        "run": "Measure methods against the baseline",
        "demo": "Measure methods on embedded prompts",
        "sweep": "Plan many runs, and execute them on many machines",
    },
    "Read": {
        "compare": "Compare the methods in results files",
        "plot": "Draw one picture of results files",
        "report": "Write one HTML page about results files",
    },
    "Check": {
        "doctor": "Check this machine, or what methods claim",
        "gate": "Check results against conditions, for CI",
    },
    "More": {
        "judge": "Let a judge score the answers in results files",
        "fetch": "Download a model",
        "train": "Train a draft model, or the modules of a method",
        "import": "Import answers published by other projects",
        "predict": "Predict each method's speed-up from acceptance and costs",
        "list": "List the methods, engines, judges, suites or models",
    },
}
VERBS = {verb: line for verbs in GROUPS.values() for verb, line in verbs.items()}
# A verb named like a Python builtin has an underscore behind the name of its file and function.
_SHADOWED = frozenset({"list"})
OUT = "benchctl.out"  # key of a context: what a command with --resume writes
WRONG_USAGE = 2
INVALID_DATA = 3
INTERRUPTED = 130


class _Verbs(click.Group):
    """Imports a verb when it is called, and prints an error that a user can fix as one message."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{verb:<8}", f"{line}.") for verb, line in verbs.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        name = f"{cmd_name}_" if cmd_name in _SHADOWED or iskeyword(cmd_name) else cmd_name
        verb = getattr(import_module(f"{__name__}.{name}"), name)
        assert isinstance(verb, click.Command)
        return verb

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in VERBS and (close := get_close_matches(args[0], VERBS, 1)):
            raise click.UsageError(f"No such command '{args[0]}'. Did you mean '{close[0]}'?", ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = list(args)  # the verb and its arguments, which an interrupt prints
        for word in args:
            if any("\ud800" <= letter <= "\udfff" for letter in word):  # no results file could hold it
                raise click.UsageError(f"{word!a} is not UTF-8. Rename the file, or write the word in UTF-8.", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except UserError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(INVALID_DATA if isinstance(error, InvalidData) else WRONG_USAGE)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            hint = "Use a smaller model, batch or --dtype. `run` and `train` print what they need with --estimate."
            click.echo(f"Error: out of memory: {reason}. {hint}", err=True)
            ctx.exit(WRONG_USAGE)
        except KeyboardInterrupt:
            command = shlex.join(["benchctl", *self._continuing(ctx)])
            click.echo(f"\nInterrupted. Everything written so far is kept. Continue with:\n  {command}", err=True)
            ctx.exit(INTERRUPTED)

    def _continuing(self, ctx: click.Context) -> list[str]:
        """The words typed, and what makes them continue."""
        words, out = list(ctx.obj), ctx.meta.get(OUT)
        verb = self.get_command(ctx, words[0])
        names = {each.name for each in verb.params} if verb else set()
        if out is None or not (isinstance(verb, click.Group) or "resume" in names):
            return words
        if not any(word.partition("=")[0] == "--out" for word in words):
            words += ["--out", str(out)]
        return words if "--resume" in words else [*words, "--resume"]


_MORE = """\b
Exit codes: 0 success; 1 finished, with a negative result; 2 wrong usage, or
another problem that you can fix; 3 invalid data; 4 `gate` cannot decide;
130 interrupted, and everything written is kept.

\b
Environment:
  BENCHCTL_DATA     folder with the published prompts of the suites
  BENCHCTL_CACHE    folder of fetched prompts and models; default: in
                    XDG_CACHE_HOME
  OPENAI_API_KEY    key of `judge`
  BENCHCTL_ENGINE_KEY
                    key of the server of an engine
  HF_HOME, HF_TOKEN, HF_HUB_OFFLINE, HTTPS_PROXY, ALL_PROXY
                    models from the hub
  RANK, WORLD_SIZE, LOCAL_RANK, OMP_WAIT_POLICY
                    `train` in several processes
  CUDA_VISIBLE_DEVICES, RAY_ADDRESS, SLURM_JOB_ID
                    GPUs and cluster of `sweep run`
  NO_COLOR, COLUMNS colours and width of tables

`benchctl VERB --help` has the options of a verb, with examples."""


@click.group(
    cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, epilog=_MORE
)
@click.version_option(__version__, prog_name="benchctl")
def main() -> None:
    """Measure ways to speed up the decoding of language models: same target, same loop, same clock.

    \b
    Examples:
      benchctl demo
      benchctl run --method two_model --limit 10 --out results/first.jsonl
      benchctl compare results/first.jsonl
      benchctl plot --pareto results/first.jsonl --out pareto.png
    """
