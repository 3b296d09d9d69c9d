"""Whole runs of benchctl in a process of their own: exact methods against our baseline, and what the harness costs."""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchctl.analysis.comparison import compare
from benchctl.analysis.tables.export import to_json
from benchctl.measuring import settings as ask
from benchctl.measuring.check import check
from benchctl.measuring.run import run
from benchctl.records.writer import read
from benchmarks.figures import took

HELP_RUNS = 10


def measured_run(
    out: str, methods: list[str], benches: list[str], limit: int | None, max_new_tokens: int, threads: int
) -> dict[str, Any]:
    """One run on embedded prompts into ``out``: its table, the harness's share of the time, peak memory in bytes."""
    begin = time.perf_counter()
    settings = ask.RunSettings(
        methods=tuple(methods),
        prompts=ask.PromptSettings(tuple(benches), limit, source="embedded"),
        models=ask.ModelSettings(threads=threads, device="cpu"),
        answers=ask.AnswerSettings(max_new_tokens=max_new_tokens),
        out=Path(out),
        command=("python", "-m", "benchmarks"),
    )
    summary = run(check(settings, lambda notice: None), lambda event: None)
    return {
        "threads": threads,
        "seconds": time.perf_counter() - begin,
        "harness_share": summary.harness_share,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "table": json.loads(to_json(compare([read(Path(out))]))),
    }


def help_seconds() -> float:
    """Median of ten whole processes of ``benchctl --help``."""
    return statistics.median(took(["--help"]).wall_s for _ in range(HELP_RUNS))


if __name__ == "__main__":
    print(json.dumps(measured_run(**json.loads(sys.argv[1]))))
