"""`benchctl train METHOD --calibrate`: its options, what it refuses, what it tells."""

from __future__ import annotations

import click
from click.core import ParameterSource

from benchctl.cli.train.options import Adder, options_of
from benchctl.cli.train.session import surroundings
from benchctl.errors import UserError
from benchctl.training.modules.risk import Risk
from benchctl.training.options import TrainOptions

PROMPTS = 200
_OPTIONS = (
    *("calibrate", "calibrate_prompts", "model", "data", "out", "reference_mix"),
    *("answer_tokens", "seed", "device", "dtype", "threads"),
)


def calibrate_options() -> Adder:
    """What a calibration is asked for."""
    return options_of(
        click.option(
            "--calibrate",
            default="",
            metavar="DELTA,EPSILON",
            help="Train nothing; find the lowest threshold whose answers lose at most a share DELTA of the target's, "
            "with chance 1 - EPSILON. Of early_exit, deed and m2r2_dynamic.",
        ),
        click.option(
            "--calibrate-prompts",
            type=click.IntRange(min=1),
            default=PROMPTS,
            show_default=True,
            metavar="N",
            help="Held-out prompts that --calibrate decodes.",
        ),
    )


def run_calibration(options: TrainOptions, label: str, promised: str, prompts: int, threads: int | None) -> None:
    """Calibrates a method's threshold, shows each one tested, and tells the label to run.

    Raises UserError where no threshold was shown to be safe.
    """
    risk = _risk(promised)
    with surroundings(options, threads) as around:
        from benchctl.training.modules.calibrate import calibrate

        result = calibrate(options, label, risk, prompts, around)
    click.echo(f"Wrote {options.out}/calibration.json.")
    if result.label is None:
        raise UserError(
            f"over {result.prompts} prompts not even threshold {result.found.tested[0].threshold:g} was shown to keep "
            f"the risk below {risk.delta:g}; train the exits, give more prompts, or allow a larger delta"
        )
    click.echo(
        f"With chance {1 - risk.epsilon:g} or more, answers lose at most a share {risk.delta:g} of the target's own.\n"
        f"Use it with:\n  benchctl run --model {options.model} --method '{result.label}' "
        f"--max-new-tokens {options.answer_tokens}"
    )


def _risk(text: str) -> Risk:
    """Raises click.UsageError for what is no promise, and for options of a training beside it."""
    context = click.get_current_context()
    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    others = [name for name in given if name not in _OPTIONS]
    if others:
        raise click.UsageError(f"--calibrate trains nothing; leave out --{others[0].replace('_', '-')}.")
    try:
        return Risk.read(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--calibrate") from error
