"""CITATION.cff is what tools that cite software can read, and says the version that there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from benchctl import __version__

yaml = pytest.importorskip("yaml", reason="no reader of YAML here")

# https://citation-file-format.github.io/1.2.0/schema: the properties of its root that are texts, and those it asks for.
TEXTS = {"abstract", "cff-version", "license", "message", "title", "type", "version"}
REQUIRED = {"authors", "cff-version", "message", "title"}


def test_it_has_what_the_format_asks_for_and_the_facts_of_the_package(root: Path) -> None:
    """No address: there is none to be named yet, and an invented one would send readers astray."""
    text = (root / "CITATION.cff").read_text(encoding="utf-8")
    citation: dict[str, Any] = yaml.safe_load(text)
    assert REQUIRED <= citation.keys() <= TEXTS | {"authors", "keywords"}
    assert all(isinstance(citation[name], str) and citation[name] for name in TEXTS & citation.keys())
    assert all(isinstance(word, str) and word for word in citation["keywords"])
    assert len(set(citation["keywords"])) == len(citation["keywords"])
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert citation["authors"] == [{"name": "The benchctl authors"}]
    assert citation["version"] == Version(__version__).base_version
    assert f'license = "{citation["license"]}"' in (root / "pyproject.toml").read_text(encoding="utf-8")
    assert "://" not in text and "doi" not in text.lower()
