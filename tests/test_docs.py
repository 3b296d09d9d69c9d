"""What README and the pages in docs/ show is true: commands parse, the method runs, the table is what is computed."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import count
from pathlib import Path

import click
import pytest
from tiny import tiny_folder

from benchctl import registry
from benchctl.cli import main
from benchctl.decoding.loop import Limits, decode
from benchctl.decoding.sampling import Sampling
from benchctl.decoding.target import Target
from benchctl.training.estimate import GPUS, estimate
from benchctl.training.jobs import Surroundings
from benchctl.training.module_job import train_modules
from benchctl.training.options import Provenance, TrainOptions

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str = "") -> list[str]:
    """The fenced blocks of a page in one language."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[list[str]]:
    """Every benchctl command of a page as words, what starts it (torchrun) taken away."""
    for block in blocks(page):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True) if re.match("(benchctl|torchrun) ", line) else []
            if words[:1] == ["torchrun"]:
                words = words[words.index("benchctl") :]
            if words[:1] == ["benchctl"]:
                yield words[1:]


def command_ids() -> list[tuple[Path, list[str]]]:
    return [(page, words) for page in PAGES for words in commands(page)]


@pytest.fixture
def bigram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The method of docs/training.md as a file that benchctl finds."""
    (tmp_path / "methods").mkdir()
    (code,) = blocks(ROOT / "docs" / "training.md", "python")
    (tmp_path / "methods" / "bigram.py").write_text(code, encoding="utf-8")
    folders = import_module(registry.METHODS).__path__
    monkeypatch.setattr(import_module(registry.METHODS), "__path__", [*folders, str(tmp_path / "methods")])
    yield
    sys.modules.pop("benchctl.methods.bigram", None)


@pytest.mark.usefixtures("bigram")
@pytest.mark.parametrize("words", [words for _, words in command_ids()], ids=" ".join)
def test_every_command_on_a_page_parses(words: list[str]) -> None:
    command: click.Command = main
    context = click.Context(main)
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, name
        command, context = found, click.Context(found, info_name=name, parent=context)
    command.make_context(command.name, words)
    labels = [label for flag, label in zip(words, words[1:], strict=False) if flag == "--method"]
    labels += [
        label
        for flag, sweep in zip(words, words[1:], strict=False)
        if flag == "--sweep"
        for label in registry.expand_sweep(sweep)
    ]
    assert all(registry.build(label) for label in labels)


def test_there_are_pages_with_commands() -> None:
    assert all(any(page == of for of, _ in command_ids()) for page in PAGES) and len(command_ids()) >= 20


@pytest.mark.usefixtures("bigram")
def test_the_method_it_shows_can_be_trained_and_gives_the_targets_tokens(tmp_path: Path) -> None:
    folder, heads = tiny_folder(tmp_path / "target"), tmp_path / "modules"
    lines = [{"instruction": f"Count to {n}.", "output": f"One, two, and so on to {n}."} for n in range(20)]
    for name in ("chats.jsonl", "chats_val.jsonl"):
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    data = tuple(str(tmp_path / name) for name in ("chats.jsonl", "chats_val.jsonl"))
    options = TrainOptions(data, heads, str(folder), steps=8, row_tokens=64, batch_tokens=256, reference_mix=False)
    ticks = count()
    result = train_modules(options, "bigram", Surroundings(lambda: float(next(ticks)), Provenance("", "", {})))
    assert result is not None
    assert result.held_out["instruct"]["top1"].of > 0
    target = Target.load(folder)
    texts = {label: _tokens(label, target) for label in ("autoregressive", f"bigram[modules={heads}]")}
    assert len(set(texts.values())) == 1


def _tokens(label: str, target: Target) -> tuple[int, ...]:
    method = registry.build(label)
    method.prepare(target, lambda name: target, "")
    ids = target.tokenizer.encode_chat([{"role": "user", "content": "Count to 3."}])
    return tuple(decode(method, target, ids, Limits(16), Sampling(), lambda: 0.0).token_ids)


@pytest.mark.slow
def test_the_table_of_time_and_memory_is_what_the_estimate_says() -> None:
    model = "TinyLlama/TinyLlama-1.1B-Chat-v1.0"
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {model} \|.*$", page, re.MULTILINE)
    found = estimate(TrainOptions((), Path(), model, micro_rows=4), "medusa")
    numbers = (found.cost.target_parameters / 1e9, found.cost.module_parameters / 1e9)
    _, target, heads, peak, _, *minutes = (cell.strip() for cell in row.strip("|").split("|"))
    assert [target, heads] == [f"{number:.2f} billion" for number in numbers]
    assert peak == f"{found.cost.peak_bytes / 1e9:.1f} GB"
    assert minutes == [f"{found.seconds(gpu) / 60:.1f} min" for gpu in GPUS]
