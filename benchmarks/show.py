"""The figures of each section as tables and sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from benchmarks.goals import against_goal

Figures = Mapping[str, Any]


def show(sections: tuple[str, ...], found: Figures) -> None:
    console = Console(width=120)
    for section in sections:
        _SHOWN[section](console, found)


def _library(console: Console, found: Figures) -> None:
    table = Table("ours", "theirs", "threads", "ratio [95%]", "tokens/s", "theirs", "same text", title="transformers")
    for row in found["library"]:
        speeds = (f"{row['our_tokens_per_s']:.0f}", f"{row['their_tokens_per_s']:.0f}")
        same = f"{row['same_tokens']}/{row['prompts']}"
        table.add_row(_plain(row["ours"]), row["theirs"], str(row["threads"]), _times(row), *speeds, same)
    console.print(table)


def _exact(console: Console, found: Figures) -> None:
    table = Table("method", "suite", "threads", "speed-up over autoregressive [95%]", title="exact methods")
    for part in found["exact"]:
        for suite in part["table"]["groups"][0]["suites"]:
            for method in suite["methods"]:
                speedup = method["metrics"]["speedup"]
                text = _times({"ratio": speedup["value"], **speedup})
                table.add_row(_plain(method["label"]), suite["suite"], str(part["threads"]), text)
    console.print(table)


def _default(console: Console, found: Figures) -> None:
    default = found["default"]
    print(f"benchctl --help: {found['help_seconds']:.2f} s (median of 10)")
    print(f"default run: {default['seconds']:.0f} s, peak {default['peak_memory_bytes'] / 1e9:.2f} GB")
    print(f"outside steps: {default['harness_share']:.2%} of the measuring time")


def _trainer(console: Console, found: Figures) -> None:
    ratio, goal = found["trainer_ratio"], found["trainer_goal"]["ratio"]
    rates = f"{ratio['trainer_tokens_per_s']:.0f} and {ratio['bare_tokens_per_s']:.0f} tokens/s"
    size = f"{ratio['layers']} layers, {ratio['threads']} threads, {ratio['steps']} steps"
    print(f"trainer against a bare PyTorch loop: {_times(ratio)}, {rates} ({size} each)")
    print(f"goal {goal}x: {against_goal(ratio['low'], ratio['high'], goal)}")


def _costs(console: Console, found: Figures) -> None:
    part = found["costs"]
    title = f"steps against what their rows explain, {_threads(part)}"
    columns = ("timed", "rows", "measured", "predicted", "measured / predicted [95%]", "goal")
    table = Table(_whole("method"), *columns, title=title)
    for row in part["methods"]:
        times = (f"{row['measured_ms']:.2f} ms", f"{row['predicted_ms']:.2f} ms")
        goal = row["goal"].partition(",")[0]
        table.add_row(_plain(row["label"]), row["timed"], f"{row['rows']:.1f}", *times, _times(row), goal)
    console.print(table)
    _tell_share("verifications", part)


def _tell_share(what: str, part: Figures) -> None:
    print(f"{what} within {part['within']:.0%} by the whole interval: {part['share_within']:.0%}")
    for label, reason in part["left_out"].items():
        print(f"left out: {label}: {reason}")


def _threads(part: Figures) -> str:
    return f"on {part['threads']} thread{'s' * (part['threads'] > 1)}"


def _whole(header: str) -> Column:
    """Of labels that are too long for one line."""
    return Column(header, overflow="fold")


def _times(row: Figures) -> str:
    return f"{row['ratio']:.2f}x [{row['low']:.2f}, {row['high']:.2f}]"


def _plain(label: str) -> str:
    """A label's brackets are no markup."""
    return label.replace("[", "\\[")


_SHOWN: Mapping[str, Callable[[Console, Figures], None]] = {
    "library": _library,
    "exact": _exact,
    "default": _default,
    "trainer": _trainer,
    "costs": _costs,
}
