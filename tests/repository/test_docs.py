"""What README and the pages in docs/ show is true: commands parse, methods run.

Links and headings: test_docs_pages.py; the page of the files: test_docs_files.py; help texts: test_help.py.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import count
from pathlib import Path

import pytest
from command import cli, ok
from documents import DOCS, blocks, check_parses, command_ids
from tiny import tiny_folder

from benchctl import registry
from benchctl.conformance.checks import CHECKS, examine
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.model.target import Target
from benchctl.records.writer import read
from benchctl.training.jobs import JobContext
from benchctl.training.modules.job import train_modules
from benchctl.training.train_options import ModuleOptions, Provenance


@pytest.fixture
def bigram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The method of docs/training.md as a file that benchctl finds."""
    (tmp_path / "methods").mkdir()
    (code,) = blocks(DOCS / "training.md", "python")
    (tmp_path / "methods" / "bigram.py").write_text(code, encoding="utf-8")
    folders = import_module(registry.METHODS).__path__
    monkeypatch.setattr(import_module(registry.METHODS), "__path__", [*folders, str(tmp_path / "methods")])
    yield
    sys.modules.pop("benchctl.methods.bigram", None)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution of docs/add-a-method.md, made of the page's files and installed without network."""
    page, source = DOCS / "add-a-method.md", tmp_path_factory.mktemp("follow")
    for name, language in (("pyproject.toml", "toml"), ("benchctl_follow.py", "python")):
        (code,) = blocks(page, language)
        (source / name).write_text(code, encoding="utf-8")
    folder = tmp_path_factory.mktemp("site")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet")
    pip = [sys.executable, "-m", "pip", "install", *offline, "--target", str(folder), str(source)]
    subprocess.run(pip, check=True)
    return folder


@pytest.fixture
def follow(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """That distribution as if it were installed beside benchctl."""
    monkeypatch.syspath_prepend(site)
    registry._plugins.cache_clear()
    yield
    registry._plugins.cache_clear()
    sys.modules.pop("benchctl_follow", None)


@pytest.mark.usefixtures("bigram", "follow")
@pytest.mark.parametrize("words", [words for _, words in command_ids()], ids=" ".join)
def test_every_command_on_a_page_parses(words: list[str]) -> None:
    check_parses(words)


def test_every_label_of_the_literature_can_be_built() -> None:
    """And every method that ships has a row, but for the baseline and what puts two drafters together."""
    text = (DOCS / "literature.md").read_text(encoding="utf-8").replace("FILE", "file.safetensors")
    labels = [
        label for label in re.findall(r"`([a-z0-9_]+(?:\[[^`]*\])?)`", text) if "." not in label.partition("[")[0]
    ]
    built = {registry.parse_label(label).name for label in labels if registry.build(label)}
    assert built == set(registry.SHIPPED) - {"autoregressive"}


@pytest.mark.usefixtures("follow")
def test_the_commands_of_the_workflow_parse() -> None:
    (workflow,) = blocks(DOCS / "gate.md", "yaml")
    lines = re.findall(r"/bin/benchctl (.*)", workflow)
    assert [line.split()[0] for line in lines] == ["run", "gate"]
    for line in lines:
        check_parses(shlex.split(line))


@pytest.mark.slow
@pytest.mark.usefixtures("follow")
def test_the_distribution_of_the_page_is_a_method_like_any_other(tmp_path: Path) -> None:
    """Found by its entry point, passed by doctor but for batches, and measured: its answers are the baseline's."""
    assert "follow" in registry.names(registry.METHODS) and "follow" not in registry.builtin_names()
    examined = ok(cli("doctor", "--method", "follow"))
    assert examined.stdout.splitlines()[-1] == "23 passed, 0 failed, 2 skipped."
    folder, prompts, out = tiny_folder(tmp_path / "target"), tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('{"prompt": "one two one two one two"}\n', encoding="utf-8")
    words = "--method follow[draft_tokens=3] --max-new-tokens 24 --warm-up 0 --repeats 1 --device cpu"
    ok(cli("run", "--no-watch", *words.split(), "--model", folder, "--bench", prompts, "--out", out))
    rows = read(out).rows
    assert {row.label for row in rows} == {"autoregressive", "follow[draft_tokens=3]"}
    assert len({tuple(row.token_ids) for row in rows}) == 1
    assert sum(sum(row.drafted) for row in rows) > 0


@pytest.mark.slow
@pytest.mark.usefixtures("follow")
def test_doctor_finds_the_mistake_that_the_page_tells_to_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(registry.method_class("follow"), "start")
    assert {finding.check for finding in examine("follow") if finding.verdict == "fail"} == {"isolation"}


def test_the_page_shows_every_check_of_doctor() -> None:
    page = (DOCS / "add-a-method.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \| [^|]+ \|$", page, re.MULTILINE)[: len(CHECKS)] == list(CHECKS)


@pytest.mark.usefixtures("bigram")
def test_the_method_it_shows_can_be_trained_and_gives_the_targets_tokens(tmp_path: Path) -> None:
    folder, heads = tiny_folder(tmp_path / "target"), tmp_path / "modules"
    lines = [{"instruction": f"Count to {n}.", "output": f"One, two, and so on to {n}."} for n in range(20)]
    for name in ("chats.jsonl", "chats_val.jsonl"):
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    data = tuple(str(tmp_path / name) for name in ("chats.jsonl", "chats_val.jsonl"))
    options = ModuleOptions(data, heads, model=str(folder), steps=8, row_tokens=64, batch_tokens=256)
    job_context = JobContext(map(float, count()).__next__, Provenance("", "", {}))
    with job_context.held:
        result = train_modules(options, "bigram", job_context)
    assert result is not None
    assert result.held_out["instruct"]["top1"].of > 0
    target, answers = Target.load(folder), set()
    ids = target.tokenizer.encode_chat([{"role": "user", "content": "Count to 3."}])
    for label in ("autoregressive", f"bigram[modules={heads}]"):
        method = registry.build(label)
        method.prepare(target)
        answers.add(tuple(decode(method, target, DecodeRequest(ids, 16)).token_ids))
    assert len(answers) == 1
