"""Findings on methods, for `benchctl doctor --method` and `benchctl verify`: as lines, as JSON, as the exit code."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from benchctl.conformance.findings import Finding


def examine_methods(methods: Sequence[str], as_json: bool) -> None:
    """Check methods on random targets and print the findings. Exits with 1 where a check fails.

    Raises UserError for labels that the registry refuses, before anything is examined.
    """
    from benchctl.conformance.examine import WHAT, examine
    from benchctl.registry import build, split_labels

    labels = split_labels(methods)
    for label in labels:
        build(label)  # an impossible label is refused before the first minute is spent
    print_findings(((label, examine(label)) for label in labels), WHAT, as_json)


def print_findings(methods: Iterable[tuple[str, Iterable[Finding]]], what: Mapping[str, str], as_json: bool) -> None:
    """Print each label and a line for each of its findings as it is made, then their sum; or all as JSON.

    `what` says of each check what passes it. Exits with 1 where a check fails.
    """
    found: list[Finding] = []
    for label, findings in methods:
        if not as_json:
            click.echo(label)
        for finding in findings:
            found.append(finding)
            if not as_json:
                click.echo(_line(finding, what))
    click.echo(json.dumps([asdict(finding) for finding in found], indent=2) if as_json else _sum(found))
    if any(finding.verdict == "fail" for finding in found):
        raise click.exceptions.Exit(1)


def _line(finding: Finding, what: Mapping[str, str]) -> str:
    """Verdict, check and target; what is wrong and what to do about it, folded where it is long."""
    head = f"  {finding.verdict}  {finding.check:<11}  {finding.target:<7}  "
    text = what[finding.check] + (f": {finding.detail}" if finding.detail else "")
    if finding.verdict == "skip":
        text = finding.detail
    if finding.verdict == "fail":
        text = f"expected {finding.expected}; seen: {finding.seen}. To do: {finding.action}."
    return textwrap.fill(text, 80, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)


def _sum(found: Sequence[Finding]) -> str:
    counts = Counter(finding.verdict for finding in found)
    return f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped."
