"""Data sets of the `datasets` library: from the hub, saved with save_to_disk, or parquet files. Its one door."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchctl.decoding.model.tokenizer import hub_reachable
from benchctl.errors import UserError

Rows = Iterable[Mapping[str, Any]]

SAVED = ("dataset_dict.json", "dataset_info.json")  # what save_to_disk writes, for several splits and for one
LONGEST_REASON = 300


def is_saved(folder: Path) -> bool:
    """Whether save_to_disk wrote this folder."""
    return any((folder / name).is_file() for name in SAVED)


def saved_splits(folder: Path) -> dict[str, Rows]:
    """Rows per split of a folder that save_to_disk wrote. Raises UserError when it is broken."""
    datasets = _library(str(folder))
    try:
        return _by_split(datasets.load_from_disk(str(folder)))
    except Exception as error:  # a broken folder raises whatever the reader of the broken file happens to raise
        raise UserError(f"{folder}: not a folder that save_to_disk of `datasets` wrote: {_reason(error)}") from error


def parquet_rows(path: Path) -> Rows:
    """Rows of a parquet file. Raises UserError when it is broken."""
    datasets = _library(str(path))
    try:
        return list(datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True))
    except Exception as error:  # as above
        raise UserError(f"{path}: not a parquet file that can be read: {_reason(error)}") from error


def hub_splits(name: str) -> dict[str, Rows]:
    """Rows per split of `owner/name` or `owner/name:configuration` on the hub, or in its cache when that is offline."""
    datasets = _library(name)
    identity, _, configuration = name.partition(":")
    cached = Path(datasets.config.HF_DATASETS_CACHE) / identity.replace("/", "___")
    if not hub_reachable() and not cached.is_dir():  # the library would try for half a minute before it says so
        raise UserError(
            f"{name}: no such file or folder here, the hub cannot be reached, and its cache does not hold such a data "
            "set. Correct the path, connect to the network, or give the folder that save_to_disk of `datasets` wrote "
            "where there is one"
        )
    try:
        return _by_split(datasets.load_dataset(identity, configuration or None))
    except Exception as error:  # the hub's client raises many kinds; every one of them ends the reading
        raise UserError(
            f"{name}: no such file or folder here, and not to be had from the hub ({_reason(error)}). Correct the path "
            f"or the name; where the data set asks for a configuration, write {identity}:CONFIGURATION"
        ) from error


def _library(wanted: str) -> Any:
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError as error:
        raise UserError(
            f"{wanted}: reading this needs the library `datasets`; install it with "
            "`pip install 'benchctl[datasets]'`, or give JSON lines files"
        ) from error
    return datasets


def _by_split(loaded: Any) -> dict[str, Rows]:
    """A data set of several splits by their names; one of a single split as that."""
    return dict(loaded) if isinstance(loaded, Mapping) else {str(loaded.split or "train"): loaded}


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:LONGEST_REASON]}"
