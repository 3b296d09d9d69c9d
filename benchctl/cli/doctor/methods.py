"""`benchctl doctor --method`: methods held to what they claim, on random targets made in memory."""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.cli.doctor.findings import tell_findings


def examine_methods(methods: Sequence[str], as_json: bool) -> None:
    """Print a line for each check of each method, then their sum. Exits with 1 where a check fails.

    Raises UserError for labels that the registry refuses, before anything is examined.
    """
    from benchctl.conformance.examine import WHAT, examine
    from benchctl.registry import build, split_labels

    labels = split_labels(methods)
    for label in labels:
        build(label)  # a label that cannot be is refused before the first minute is spent
    tell_findings(((label, examine(label)) for label in labels), WHAT, as_json)
