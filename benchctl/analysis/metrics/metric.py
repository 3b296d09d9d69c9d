"""What a metric is, and how the files of this folder are found.

A metric is a ratio of two sums over pairs (see frame/build.py, `pair`), or the difference between two such ratios.
To add one, assign a `Metric` at the top level of a new file of this folder: `compare` measures and shows it.
A file that needs another file's metric imports that file, not the metric, which would become its own.
"""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import nan
from typing import Literal

import pandas as pd

from benchctl.records.schema import Mode

Better = Literal["higher", "lower"]
Rate = Literal["tokens/s", "MB/s", "nats/token"]
Unit = Literal["ratio", "share", "s", "tokens", "experts", "bytes", "J", "points"] | Rate
Column = Callable[[pd.DataFrame], pd.Series]
FOLDER = "benchctl.analysis.metrics"


@dataclass(frozen=True)
class Metric:
    """A number about one method on a set of prompts: sum of `top` / sum of `bottom` over its pairs.

    A ratio of sums gives every second, step or token the same weight. A mean of per-prompt ratios would count short
    answers as much as long ones. `less` has the top and bottom of a second ratio, which is subtracted.
    With `uses_baseline` the baseline's times or counts are part of the number: where the two were measured in
    different sessions, the difference between these sessions is part of its error. A share `of_answers` counts whole
    answers or judgements.

    `mode` is the mode whose pairs are summed (replay and profile pairs exist only where a run measured them). `needs`
    says whether pairs hold what the metric sums; without it the metric always applies.

    A metric with a `table` has a column there, headed by `title`: `scale` times the value, formatted by `cell`, with
    its 95% interval if `interval`. The column is left out where no method of a comparison
    has a value other than `trivial`, and a table without columns is left out. New tables come after the built-in ones.
    """

    name: str
    label: str
    unit: Unit
    better: Better
    top: Column
    bottom: Column
    less: tuple[Column, Column] | None = None
    uses_baseline: bool = False
    of_answers: bool = False
    mode: Mode = "free"
    needs: Callable[[pd.DataFrame], bool] | None = None
    table: str = ""
    title: str = ""
    cell: str = "{:.3f}"
    scale: float = 1
    interval: bool = False
    trivial: float | None = None


@cache
def all_metrics() -> tuple[Metric, ...]:
    """Every metric of every file of the folder, by file name, in the order of the files' lines; names must differ."""
    files = sorted(file.name for file in pkgutil.iter_modules(import_module(FOLDER).__path__))
    values = (value for file in files for value in vars(import_module(f"{FOLDER}.{file}")).values())
    return tuple(dict.fromkeys(value for value in values if isinstance(value, Metric)))


@cache  # one function for each column, so that metrics that share it compute it once
def column(name: str, missing: float | None = None) -> Column:
    """A column of pairs as floats. With `missing`, this number stands for empty values and for an absent column."""

    def values(pairs: pd.DataFrame) -> pd.Series:
        if missing is None:
            return pairs[name].astype(float)
        if name not in pairs:
            return pd.Series(missing, index=pairs.index)
        return pairs[name].astype(float).fillna(missing)

    return values


@cache
def where_known(name: str, amount: Column | None = None, *, only_if_all: bool = False) -> Column:
    """`amount`, by default the column itself, for pairs that have a value in column `name`; 0 for the others, and with
    `only_if_all` for every pair if there are others."""

    def values(pairs: pd.DataFrame) -> pd.Series:
        known = column(name, nan)(pairs)
        found = known if amount is None else amount(pairs)
        return zeros(pairs) if only_if_all and known.isna().any() else found.where(known.notna(), 0.0)

    return values


def ones(pairs: pd.DataFrame) -> pd.Series:
    """1 for each pair."""
    return pd.Series(1.0, index=pairs.index)


def zeros(pairs: pd.DataFrame) -> pd.Series:
    """0 for each pair."""
    return pd.Series(0.0, index=pairs.index)
