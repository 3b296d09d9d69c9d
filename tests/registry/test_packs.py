"""Names of models to folders."""

import json
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from command import cli
from refusals import refused

from benchctl import bundled
from benchctl.decoding.modules import folders

WEIGHTS, TOKENIZER = b"weights", b"{}"


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A pack of one target and its draft model, whose weights are seven bytes each."""
    entries = [_entry("big", "target", draft="small"), _entry("small", "draft")]
    for entry in entries:
        folder = tmp_path / str(entry["folder"])
        folder.mkdir()
        (folder / bundled.WEIGHTS).write_bytes(WEIGHTS)
        (folder / bundled.TOKENIZER).write_bytes(TOKENIZER)
    (tmp_path / "index.json").write_text(json.dumps(entries))
    monkeypatch.setattr(bundled, "MODELS", tmp_path)
    _forget()
    yield tmp_path
    _forget()


def _forget() -> None:
    bundled.models.cache_clear()
    bundled._checked.cache_clear()


def _entry(name: str, role: str, draft: str = "") -> dict[str, object]:
    about = {"licence": "Apache-2.0", "description": "A model", "data": "tasks and public chats", "draft": draft}
    sums = {"sha256": sha256(WEIGHTS).hexdigest(), "tokenizer_sha256": sha256(TOKENIZER).hexdigest()}
    sizes = {"parameters": 10, "bytes": len(WEIGHTS)}
    return {"name": name, "folder": f"{name}-folder", "role": role, **sizes, **sums, **about}


def test_names_folders_and_hub_ids_are_resolved(pack: Path, tmp_path: Path) -> None:
    assert bundled.resolve("big") == pack / "big-folder"
    assert bundled.resolve(tmp_path) == bundled.resolve(str(tmp_path)) == tmp_path
    assert bundled.resolve("owner/some-model_1.1B") == "owner/some-model_1.1B"
    assert (bundled.default_target().name, bundled.default_target().draft) == ("big", "small")


def test_a_folder_with_an_embedded_name_is_refused(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft model was trained for an hour on the answers of the embedded model of that name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "big").mkdir()
    with refused("ambiguous_model", "./big"):
        bundled.resolve("big")
    assert bundled.resolve("./big") == Path("big")
    assert bundled.resolve("small") == pack / "small-folder"


@pytest.mark.parametrize("file", [bundled.WEIGHTS, bundled.TOKENIZER])
def test_an_altered_or_missing_file_is_refused(pack: Path, file: str) -> None:
    """Files are hashed once per process."""
    bundled.resolve("big")
    (pack / "big-folder" / file).write_bytes(b"other")
    assert bundled.resolve("big") == pack / "big-folder"
    _forget()
    with refused("damaged_embedded_model", file, "'big'"):
        bundled.resolve("big")
    (pack / "small-folder" / file).unlink()
    with refused("damaged_embedded_model", file, "'small'"):
        bundled.resolve("small")


def test_modules_belong_to_a_model_and_are_checked(pack: Path) -> None:
    folder = pack / "big-folder" / "modules" / "medusa"
    folder.mkdir(parents=True)
    (folder / bundled.MODULES).write_bytes(WEIGHTS)
    entries = json.loads((pack / "index.json").read_text())
    entries[0]["modules"] = {"medusa": sha256(WEIGHTS).hexdigest()}
    (pack / "index.json").write_text(json.dumps(entries))
    _forget()
    assert bundled.modules_for("big", "medusa") == folder
    assert bundled.modules_for("big", "early_exit") is None
    assert bundled.modules_for("small", "medusa") is None
    _forget()
    (folder / bundled.MODULES).write_bytes(b"other")
    with refused("damaged_embedded_model", "modules.safetensors", "medusa", "'big'"):
        bundled.modules_for("big", "medusa")


def test_a_method_has_its_own_modules_before_those_that_it_shares(pack: Path) -> None:
    folders = {name: pack / "big-folder" / "modules" / name for name in ("m2r2", "m2r2_dynamic")}
    for folder in folders.values():
        folder.mkdir(parents=True)
        (folder / bundled.MODULES).write_bytes(WEIGHTS)
    entries = json.loads((pack / "index.json").read_text())
    for held in (["m2r2"], ["m2r2", "m2r2_dynamic"]):
        entries[0]["modules"] = dict.fromkeys(held, sha256(WEIGHTS).hexdigest())
        (pack / "index.json").write_text(json.dumps(entries))
        _forget()
        assert bundled.modules_for("big", "m2r2_dynamic", "m2r2") == folders[held[-1]]
        assert bundled.modules_for("big", "m2r2", "m2r2") == folders["m2r2"]


@pytest.mark.parametrize("name", ["bigg", "./missing/folder", "/missing/folder", "../missing", "a/b/c", ""])
def test_anything_else_lists_the_embedded_names(pack: Path, name: str) -> None:
    with refused("unknown_model", f"'{name}'", "big, small"):
        bundled.resolve(name)


def test_a_package_without_models_says_so(pack: Path) -> None:
    (pack / "index.json").unlink()
    assert bundled.models() == ()
    with refused("no_embedded_target", "--model"):
        bundled.default_target()


def test_the_shipped_index_is_true() -> None:
    """Every model of the index is there, with the size and the hashes the index gives."""
    drafts = {model.name for model in bundled.models() if model.role == "draft"}
    assert bundled.default_target().draft in drafts
    for model in bundled.models():
        if model.package is not None:  # not in the package; its weights are checked when it is fetched
            continue
        weights = model.path / bundled.WEIGHTS
        if model.shares:  # its folder is completed where the model whose embedding it shares was fetched
            assert model.shares in {other.name for other in bundled.models() if other.package is not None}
            assert sha256(weights.read_bytes()).hexdigest() == model.sha256
        else:
            assert bundled.resolve(model.name) == model.path
        assert weights.stat().st_size == model.bytes
        assert not model.draft or model.draft in drafts
        for method in model.modules:
            assert bundled.modules_for(model.name, method) == model.path / "modules" / method


def test_the_shipped_models_keep_the_wheel_below_100_megabytes_and_modules_are_named_as_in_training() -> None:
    files = (file for file in bundled.MODELS.rglob("*") if file.is_file())
    assert sum(len(zlib.compress(file.read_bytes())) for file in files) < 98e6
    assert bundled.MODULES == folders.WEIGHTS  # neither of the two may import the other


def test_the_list_has_a_line_of_80_columns_for_each_model(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("list", "models").output.splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "name role parameters size licence data",
        "big target 10 0.0 MB Apache-2.0 tasks and public chats",
        "small draft 10 0.0 MB Apache-2.0 tasks and public chats",
    ]
