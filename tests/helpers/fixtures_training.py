"""What the tests of training jobs share: a small text, the command line in this process, a hardly trained target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from command import cli, ok
from tiny import tiny_folder

from benchctl.errors import UserError
from reference.__main__ import main as reference

COLORS = ("red", "green", "blue", "white", "black")
ANIMALS = ("dog", "cat", "bird", "fish", "horse", "cow")
CHATS = [
    {"instruction": f"Who is {color}?", "output": f"The {animal} is {color} and sleeps in the {color} house."}
    for color in COLORS
    for animal in ANIMALS
]
TEXTS = [{"text": f"Once the {a} met the {b}. The {b} and the {a} went home."} for a in ANIMALS for b in ANIMALS]
SHAPE = ["--layers", "3", "--hidden", "32", "--heads", "2", "--kv-heads", "1", "--positions", "128"]
COMMON = ["--dtype", "float32", "--threads", "1"]
BATCHES = ["--row-tokens", "64", "--micro-rows", "2", "--batch-tokens", "256"]


def write_data(folder: Path) -> Path:
    """A folder of 66 records to train on and 25 held out."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"source": "unit", **record}) for record in CHATS + TEXTS]
    (folder / "train.jsonl").write_text("\n".join(lines))
    (folder / "val.jsonl").write_text("\n".join(lines[20:45]))
    return folder


def with_target(folder: Path, **sizes: Any) -> tuple[object, ...]:
    """Data and a target of random weights in a folder: the options that name them."""
    return "--model", tiny_folder(folder / "target", **sizes), "--data", write_data(folder / "data")


def _run(*words: object) -> Result:
    """`benchctl words...` in this process, or `python -m reference --no-mix ...` for the word reference."""
    if words[0] == "reference":
        return CliRunner().invoke(reference, ["--no-mix", *map(str, words[1:])])
    return cli(*words)


def done(*words: object) -> str:
    """What a command says that must succeed."""
    return ok(_run(*words)).output


def refused(*words: object, id: str = "") -> str:
    """What a command says that must be refused as wrong usage; with an id, the message of the error of that id."""
    errors, real = list[UserError](), UserError.__init__

    def noted(self: UserError, id: str, message: str) -> None:
        errors.append(self)
        real(self, id, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UserError, "__init__", noted)
        result = _run(*words)
    assert result.exit_code == 2, f"{result.output}\n{result.exception!r}"
    if not id:
        return result.stderr
    (shown,) = [error for error in errors if error.message in result.stderr][-1:]
    assert shown.id == id, result.output
    return shown.message


def train_tiny_target(data: Path, out: Path) -> Path:
    """A target of three narrow layers with a tokenizer of 300 entries, trained for three steps."""
    sizes = (*SHAPE, "--mlp", 64, "--vocabulary", 300, "--batch-tokens", 2048)
    done("reference", "target", "--data", data, "--out", out, "--steps", 3, *sizes, *COMMON)
    return out
