"""Comparisons with the code of the authors of methods, which is not part of this project."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path


def write_record(
    name: str,
    files: Iterable[Path],
    counts: Mapping[str, int],
    commits: Mapping[str, str] | None = None,
    packages: Sequence[str] = ("transformers", "torch"),
) -> int:
    """Write results/reference/oracles-NAME.json: hashes of the compared files, versions of packages, and the counts.

    Print the counts. Return the exit code: 1 where anything was unequal.
    """
    record = {
        **({"commits": dict(commits)} if commits else {}),
        "sha256": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files},
        "versions": {package: version(package) for package in packages},
        "counts": {"unequal": 0, **dict(sorted(counts.items()))},
    }
    text = json.dumps(record, indent=1) + "\n"
    Path(f"results/reference/oracles-{name}.json").write_text(text, encoding="utf-8")
    print(json.dumps(record["counts"]))
    return int(counts.get("unequal", 0) > 0)
