"""What the tests of training jobs share: a small text, the command line in this process, a hardly trained target."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from benchctl.cli import main
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


def _said(words: tuple[object, ...], exit_code: int) -> Result:
    """Of `benchctl words...` in this process, or of `python -m reference --no-mix ...` for the word reference."""
    first, *rest = map(str, words)
    command, arguments = (reference, ["--no-mix"]) if first == "reference" else (main, [first])
    result = CliRunner().invoke(command, [*arguments, *rest])
    assert result.exit_code == exit_code, f"{result.output}\n{result.exception!r}"
    return result


def done(*words: object) -> str:
    """What a command says that must succeed."""
    return _said(words, 0).output


def refused(*words: object) -> str:
    """What a command says that must be refused as wrong usage."""
    return _said(words, 2).stderr


def train_tiny_target(data: Path, out: Path) -> Path:
    """A target of three narrow layers with a tokenizer of 300 entries, trained for three steps."""
    sizes = (*SHAPE, "--mlp", 64, "--vocabulary", 300, "--batch-tokens", 2048)
    done("reference", "target", "--data", data, "--out", out, "--steps", 3, *sizes, *COMMON)
    return out
