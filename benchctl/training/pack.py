"""Puts a finished model into the reference pack: its files, and its line in the index."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import safe_open

from benchctl.errors import UserError
from benchctl.packs import WEIGHTS, PackModel

FILES = (
    "README.md",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    WEIGHTS,
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "training.json",
)


@dataclass(frozen=True)
class PackEntry:
    """What the index says of a model besides what its files tell."""

    name: str
    role: str
    licence: str
    description: str
    data: str
    draft: str = ""


def add_to_pack(model: Path, entry: PackEntry, pack: Path) -> PackModel:
    """Copies `model` to `pack`/<name> and writes its line into `pack`/index.json, in place of an earlier one.

    Raises UserError when the folder lacks a file.
    """
    missing = [name for name in FILES if not (model / name).is_file()]
    if missing:
        raise UserError(f"{model} is not a finished model: {', '.join(missing)} missing; train it to its end first")
    folder = pack / entry.name
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(model / name, folder / name)
    packed = PackModel(
        name=entry.name,
        folder=entry.name,
        role=entry.role,
        parameters=stored_parameters(folder / WEIGHTS),
        bytes=(folder / WEIGHTS).stat().st_size,
        sha256=_sha256(folder / WEIGHTS),
        tokenizer_sha256=_sha256(folder / "tokenizer.json"),
        licence=entry.licence,
        description=entry.description,
        data=entry.data,
        draft=entry.draft,
    )
    _write_index(pack / "index.json", packed)
    return packed


def stored_parameters(weights: Path) -> int:
    """Number of values in a safetensors file; tied weights are stored once."""
    with safe_open(weights, framework="pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 - not a dict
    total = 0
    for shape in shapes:
        values = 1
        for size in shape:
            values *= int(size)
        total += values
    return total


def _write_index(index: Path, packed: PackModel) -> None:
    earlier = json.loads(index.read_text(encoding="utf-8")) if index.is_file() else []
    line = asdict(packed)
    if any(entry["name"] == packed.name for entry in earlier):
        entries = [line if entry["name"] == packed.name else entry for entry in earlier]
    else:
        entries = [*earlier, line]
    index.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
