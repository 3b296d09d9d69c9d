"""Whether two checkouts compute the same figures from the kept results: for changes that must not move a number.

In each checkout, with its own environment:  python tests/same_figures.py write FOLDER
Then:                                        python tests/same_figures.py compare OLD_FOLDER NEW_FOLDER
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path("results/reference")
GROUPS = ("all-*.jsonl", "experts-*.jsonl", "exact-*.jsonl")


def write(folder: Path) -> None:
    """`compare --format json` of every kept results file, and of the files that belong together."""
    folder.mkdir(parents=True, exist_ok=True)
    patterns = [*GROUPS, *(path.name for path in sorted(RESULTS.glob("*.jsonl")))]
    for pattern in patterns:
        command = [sys.executable, "-m", "benchctl", "compare", str(RESULTS / pattern), "--format", "json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        print(f"{pattern}: exit code {done.returncode}")
        (folder / f"{pattern.replace('*', 'ALL')}.json").write_text(done.stdout or "null", encoding="utf-8")


def differences(old: Any, new: Any, at: str = "") -> Iterator[str]:
    """Where two documents differ: numbers by more than 1e-9 of their size, everything else at all."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key in old and key in new:
                yield from differences(old[key], new[key], f"{at}.{key}")
            else:
                yield f"{at}.{key}: only in {'old' if key in old else 'new'}"
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from differences(left, right, f"{at}[{number}]")
    elif isinstance(old, float) and isinstance(new, int | float):
        if not math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-10):
            yield f"{at}: {old} -> {new}"
    elif old != new:
        yield f"{at}: {old!r} -> {new!r}"


def compare(old: Path, new: Path) -> int:
    """Prints each difference; the exit code is 1 if there is one, or a file is missing."""
    failed = False
    for path in sorted(old.glob("*.json")):
        other = new / path.name
        lines = ["missing"]
        if other.exists():
            lines = list(differences(json.loads(path.read_text()), json.loads(other.read_text())))
        print(f"{path.stem}: {'equal' if not lines else f'{len(lines)} differences'}")
        for line in lines[:10]:
            print(f"  {line}")
        failed |= bool(lines)
    return int(failed)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", folder]:
            write(Path(folder))
        case ["compare", old, new]:
            sys.exit(compare(Path(old), Path(new)))
        case _:
            sys.exit(__doc__)
