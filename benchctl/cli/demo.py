"""`benchctl demo`: methods measured, compared, drawn and reported by the usual verbs."""

from __future__ import annotations

import io
import shlex
from contextlib import redirect_stderr, suppress
from pathlib import Path

import click

from benchctl.cli import INTERRUPTED
from benchctl.errors import UserError

REAL = "smollm2"  # where it was fetched; it needs more time for a token
EMBEDDED = ("ref-dense", "ref-moe")  # methods that load experts need the second
SUITES = ("tasks", "wizardlm")  # texts that repeat their prompts, where drafting methods are at their best
PROMPTS, REAL_PROMPTS, EXPERT_PROMPTS = 9, 3, 5  # of each suite
_BRIEF = ("--source", "embedded", "--max-new-tokens", "48", "--repeats", "1", "--warm-up", "1")

_ABOUT_EXPERTS = (
    "Now the methods for a mixture of experts. They keep a quarter of the experts in fast memory, the baseline all. "
    "They save memory at the cost of speed."
)
_HONEST = (
    "The embedded models have at most 11 million parameters: they answer badly, and their speed-ups are theirs only."
)
_HINT = f"`benchctl fetch {REAL}` gets a real chat model (93 MB), which the demo then uses."
_OF_REAL = f"{REAL} has 135 million parameters and 4-bit weights: these speed-ups are its own."


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A new folder for all files.  [default: results/demo-<time>]",
)
@click.pass_context
def demo(context: click.Context, out: Path | None) -> None:
    """Measure methods on embedded prompts; show table, plot and report. No network, no GPU.

    Methods whose modules are not in the package are left out.
    The target is smollm2 if `benchctl fetch smollm2` was run before, otherwise an embedded model. It takes one to three
    minutes on two cores, with smollm2 up to six. It uses `run`, `compare`, `plot` and `report`. Ctrl-C keeps what is
    measured.

    \b
    Examples:
      benchctl demo
      benchctl demo --out first-look
    """
    from benchctl.bundled import is_fetched, models
    from benchctl.measuring.clock import Clock, utc_now

    clock = Clock()
    started_s = clock()
    folder = out or Path("results") / f"demo-{utc_now():%Y%m%dT%H%M%S}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            "folder_not_empty",
            f"{folder}: is not an empty folder, and the demo does not overwrite files. Give another --out.",
        )
    real = any(model.name == REAL and is_fetched(model) for model in models())
    targets, prompts = ((REAL, EMBEDDED[1]), REAL_PROMPTS) if real else (EMBEDDED, PROMPTS)
    every, experts = demo_labels(EMBEDDED)
    dense = demo_labels(targets)[0]
    files = (folder / "methods.jsonl", folder / "experts.jsonl")
    try:
        click.echo(
            f"Measuring methods with {targets[0]} on {prompts} prompts from each of two suites. Ctrl-C stops and keeps "
            "the results.",
            err=True,
        )
        if left_out := [label for label in every if label not in dense]:
            click.echo(
                f"Left out, since {targets[0]} has no modules for these options: {', '.join(left_out)}.", err=True
            )
        _verb(context, "run", *_arguments(dense, SUITES, prompts, files[0], "--model", targets[0]))
        click.echo(_ABOUT_EXPERTS, err=True)
        _verb(context, "run", *_arguments(experts, SUITES[:1], EXPERT_PROMPTS, files[1], "--model", targets[1]))
        with redirect_stderr(io.StringIO()):  # the table shows the same warnings
            _verb(context, "plot", "--pareto", str(files[0]), "--out", str(folder / "pareto.png"))
        _verb(context, "report", *map(str, files), "--out", str(folder / "report.html"))
    except KeyboardInterrupt:
        kept = [str(file) for file in files if file.exists()]
        click.echo("\nInterrupted.", err=True)
        if kept:
            click.echo(f"Everything measured is kept. See it with:  benchctl compare {shlex.join(kept)}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    about = _OF_REAL if real else f"{_HONEST} {_HINT}"
    click.echo(f"Done in {clock() - started_s:.0f} s. {about}\n\nNext, after opening the report in a browser:")
    for command, what in (
        (f"benchctl compare {shlex.quote(str(files[0]))} --full --by-suite", "every figure, suite by suite"),
        ("benchctl run --suite tasks --limit 40 --sessions 3", "more prompts, narrower intervals"),
        ("benchctl run --model FOLDER --suite my_prompts.jsonl", "your model, your prompts"),
        ("benchctl list methods", "the methods and their options"),
    ):
        click.echo(f"  {command}\n      {what}")


def demo_labels(targets: tuple[str, ...]) -> list[tuple[str, ...]]:
    """For each target the labels of `Method.demo` that it is the first to run: none that lack models or modules."""
    from benchctl import bundled
    from benchctl.decoding.model.tokenizer import load_tokenizer
    from benchctl.measuring.check import STATIC, choose_method, choose_models
    from benchctl.measuring.settings import ModelSettings
    from benchctl.registry import BASELINE, builtin_names, method_class

    names = [name for name in builtin_names() if name != BASELINE]
    labels = [f"{name}[{options}]" for name in names for options in method_class(name).demo]
    labels = [label.removesuffix("[]") for label in labels]
    of_targets: list[tuple[str, ...]] = []
    for target in targets:
        models = choose_models(ModelSettings(target))
        tokenizer = load_tokenizer(bundled.resolve(target))
        fitting = []
        for label in labels:
            with suppress(UserError):
                choose_method(label, models).fit(tokenizer, STATIC)
                fitting.append(label)
        of_targets.append(tuple(fitting))
        labels = [label for label in labels if label not in fitting]
    return of_targets


def _arguments(
    methods: tuple[str, ...], suites: tuple[str, ...], prompts: int, out: Path, *more: str
) -> tuple[str, ...]:
    """The arguments of `benchctl run`."""
    labels = (word for label in methods for word in ("--method", label))
    names = (word for suite in suites for word in ("--suite", suite))
    return (*labels, *names, "--limit", str(prompts), *_BRIEF, *more, "--out", str(out))


def _verb(context: click.Context, name: str, *words: str) -> None:
    """Runs `benchctl NAME WORDS`."""
    group = context.find_root().command
    assert isinstance(group, click.Group)
    command = group.get_command(context, name)
    assert command is not None
    with command.make_context(name, list(words), parent=context.parent, obj=[name, *words]) as inner:
        try:
            command.invoke(inner)
        except click.exceptions.Exit as end:
            if end.exit_code:
                raise
