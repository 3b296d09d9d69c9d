"""`benchctl doctor`: holds methods to what they claim, on random targets made in memory."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from benchctl.conformance.findings import Finding


@click.command()
@click.option(
    "--method",
    "-m",
    "methods",
    multiple=True,
    required=True,
    metavar="LABEL",
    help="Method, built in or of another distribution, perhaps with options: two_model[draft_tokens=5]. May be "
    "repeated. `all` is every built-in one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def doctor(methods: tuple[str, ...], as_json: bool) -> None:
    """Hold methods to what they claim: answers, counts, limits, stop tokens, isolation, cache, determinism.

    Runs on a CPU in under a minute per method, on tiny random targets in float64: a Llama-like one and a mixture of
    experts. It needs no model and no network: a draft model is the target with noise, modules are untrained ones. The
    exit code is 1 where a check fails.

    \b
    Examples:
      benchctl doctor --method two_model
      benchctl doctor --method 'm2r2[mode=dynamic]' --method prompt_lookup
      benchctl doctor --method all --json
    """
    from benchctl.conformance.examine import examine
    from benchctl.registry import build, split_labels

    labels = split_labels(methods)
    for label in labels:
        build(label)  # a label that cannot be is refused before the first minute is spent
    found: list[Finding] = []
    for label in labels:
        if not as_json:
            click.echo(label)
        for finding in examine(label):
            found.append(finding)
            if not as_json:
                click.echo(_line(finding))
    click.echo(json.dumps([asdict(finding) for finding in found], indent=2) if as_json else _sum(found))
    if any(finding.verdict == "fail" for finding in found):
        raise click.exceptions.Exit(1)


def _line(finding: Finding) -> str:
    """Verdict, check and target; what is wrong and what to do about it, folded where it is long."""
    from benchctl.conformance.examine import WHAT

    head = f"  {finding.verdict}  {finding.check:<11}  {finding.target:<7}  "
    text = WHAT[finding.check]
    if finding.verdict == "skip":
        text = finding.detail
    if finding.verdict == "fail":
        text = f"expected {finding.expected}; seen: {finding.seen}. To do: {finding.action}."
    return textwrap.fill(text, 80, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)


def _sum(found: Sequence[Finding]) -> str:
    counts = Counter(finding.verdict for finding in found)
    return f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped."
