"""Warnings as tests check them: by id and values."""

from __future__ import annotations

from typing import Any

from benchctl.analysis.comparison import Group
from benchctl.analysis.warnings import warnings


def warned(group: Group, id: str) -> list[dict[str, Any]]:
    """The values of each of the group's warnings of this id, which can be printed too."""
    found = [warning for warning in warnings(group) if warning.id == id]
    assert all(warning.text for warning in found)
    return [dict(warning.values) for warning in found]


def ids(group: Group) -> list[str]:
    return [warning.id for warning in warnings(group)]
