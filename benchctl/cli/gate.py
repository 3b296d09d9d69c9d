"""`benchctl gate`: checks results against conditions, for CI."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal
from xml.etree import ElementTree

import click

from benchctl.cli.options import check_comparable, options_from, read_files, read_scores
from benchctl.errors import InvalidData
from benchctl.options import setting

if TYPE_CHECKING:
    from benchctl.analysis.gate import Change, GateResult

_CODES = {"passed": 0, "failed": 1, "inconclusive": 4}
_ANNOTATIONS = {"passed": "notice", "failed": "error", "inconclusive": "warning"}  # of GitHub
_ELEMENTS = {"failed": "failure", "inconclusive": "error"}  # of JUnit


@dataclass(frozen=True)
class _Options:
    """The options of `benchctl gate`."""

    previous: tuple[str, ...] = setting(
        (),
        "Results of an earlier run, with which speed is compared. Repeat it for more sessions.",
        flags=("--previous", "-p"),
        metavar="FILE",
    )
    speedup: float = setting(
        0.9,
        "Lowest speed-up, as a share of that in --previous. A label fails if its speed-up is significantly lower, and "
        "below this.",
        flags=("--speedup-above",),
        metavar="RATIO",
        above=0,
        most=1,
    )
    tokens_per_s: float = setting(
        0.8,
        "Lowest tokens/s, the baseline's included, as a share of those in --previous. On the same machine only.",
        flags=("--tokens-above",),
        metavar="RATIO",
        above=0,
        most=1,
    )
    require: Literal["identical", "tie", "numeric", "lossless"] | None = setting(
        None,
        "All methods must have answered all prompts with this verdict or a stricter one. lossless: only methods that "
        "claim the target's own answers must.",
    )
    quality: float | None = setting(
        None,
        "Every judge with points must show that each method is at most POINTS worse than the baseline: the interval of "
        "the mean difference lies above -POINTS, on at least 10 prompts, with every turn judged in both orders.",
        flags=("--require-quality",),
        metavar="POINTS",
        least=0,
    )
    scores: tuple[str, ...] = setting(
        (),
        "More scores of these answers. Scores next to FILES are always read. May be repeated.",
        metavar="FILE",
    )
    format: Literal["text", "json", "github", "junit"] = setting(
        "text", "text: a line per label. github: annotations for GitHub Actions. junit: XML for CI servers."
    )


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@options_from(_Options, "options")
@click.pass_context
def gate(context: click.Context, options: _Options, files: tuple[str, ...]) -> None:
    """Check results against conditions, for CI: true claims, answers as good as before, speed that did not fall.

    A method whose answers contradict its claim always fails. Both runs need the same prompts; speed is compared on
    those that both have measured.

    Exit code: 0 passed; 1 failed; 4 inconclusive, with what would decide; 2 wrong usage, or a file that does not exist;
    3 for runs that cannot be compared, or an invalid data file.

    \b
    Examples:
      benchctl gate results/new.jsonl --previous results/old.jsonl
      benchctl gate results/new.jsonl --require lossless
      benchctl gate results/new.jsonl --previous results/old.jsonl --speedup-above 0.95 --format github
      benchctl gate results/new.jsonl --require lossless --format junit > gate.xml
    """
    from benchctl.analysis.comparison import compare
    from benchctl.analysis.gate import Conditions, check

    if not (options.previous or options.require or options.quality is not None):
        raise click.UsageError("No condition is given. Use --previous FILE, --require, or --require-quality POINTS.")
    groups = compare(read_files(files), read_scores(options.scores))
    check_comparable(groups, InvalidData)
    earlier = compare(read_files(options.previous)) if options.previous else ()
    check_comparable(earlier, InvalidData)
    conditions = Conditions(options.require, options.quality, options.speedup, options.tokens_per_s)
    result = check(groups[0], conditions, earlier[0] if earlier else None)
    click.echo("\n".join(_WRITERS[options.format](result)))
    context.exit(_CODES[result.outcome])


def _sentence(result: GateResult) -> str:
    """The result in one line."""
    if result.outcome == "passed":
        return f"Result: passed, {len(result.labels)} label{'s' * (len(result.labels) != 1)}."
    names = ", ".join(label.label for label in result.of(result.outcome))
    return f"Result: {result.outcome}, because of {names}."


def _text(result: GateResult) -> Iterator[str]:
    yield from (f"Note: {note}" for note in result.notes)
    yield from (f"{label.outcome:<12} {label.text()}" for label in result.labels)
    yield _sentence(result)


def _json(result: GateResult) -> Iterator[str]:
    labels = [
        {"label": label.label, "outcome": label.outcome, "prompts_needed": label.prompts_needed}
        | {"changes": list(map(_change, label.changes))}
        | {"problems": [asdict(problem) for problem in label.problems]}
        for label in result.labels
    ]
    document = {"outcome": result.outcome, "conditions": asdict(result.conditions)}
    yield json.dumps(document | {"labels": labels, "notes": result.notes}, indent=2, allow_nan=False)


def _change(change: Change) -> dict[str, object]:
    found = change.quotient
    figures = found._asdict() | {"interval": asdict(found.interval)} if found else {"now": None}
    return {"figure": change.figure, "outcome": change.outcome, "ratio": change.ratio, "least": change.least} | figures


def _github(result: GateResult) -> Iterator[str]:
    for label in result.labels:
        # A comma or colon in a label would end the title.
        yield f"::{_ANNOTATIONS[label.outcome]} title=benchctl gate {label.outcome}::{_escaped(label.text())}"
    yield _sentence(result)


def _escaped(text: str) -> str:
    """As GitHub reads the message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _junit(result: GateResult) -> Iterator[str]:
    counts = {f"{element}s": str(len(result.of(outcome))) for outcome, element in _ELEMENTS.items()}  # type: ignore[arg-type]
    suite = ElementTree.Element("testsuite", {"name": "benchctl gate", "tests": str(len(result.labels)), **counts})
    for label in result.labels:
        case = ElementTree.SubElement(suite, "testcase", {"classname": "benchctl.gate", "name": label.label})
        if element := _ELEMENTS.get(label.outcome):
            ElementTree.SubElement(case, element, {"type": label.outcome, "message": label.text()})
    ElementTree.indent(suite)
    yield ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


_WRITERS = {"text": _text, "json": _json, "github": _github, "junit": _junit}
