"""Puts a finished model, or the modules of a method, into the reference pack: the files, and what the index says."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file

from benchctl import registry
from benchctl.bundled import EMBEDDING, TOKENIZER, WEIGHTS, PackModel, read_index
from benchctl.decoding.model.loading import DRAFT_VOCABULARY, folder_sha256
from benchctl.decoding.modules.folders import FACTS, read_facts
from benchctl.decoding.modules.folders import WEIGHTS as MODULES
from benchctl.errors import UserError
from benchctl.training.checkpoint import writing
from benchctl.training.jobs import RECORD
from benchctl.training.models import TOKENIZER_FILES

INDEX = "index.json"
FILES = (
    "README.md",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    WEIGHTS,
    "special_tokens_map.json",
    TOKENIZER,
    "tokenizer_config.json",
    RECORD,
)


MODULE_FILES = ("README.md", FACTS, MODULES, RECORD)


@dataclass(frozen=True)
class PackEntry:
    """What the index says of a model in addition to what its files hold."""

    name: str
    role: str
    licence: str
    description: str
    data: str
    draft: str = ""
    shares: str = ""


def add_to_pack(model: Path, entry: PackEntry, pack: Path) -> PackModel:
    """Copies `model` to `pack`/<name> and writes its line into `pack`/index.json, in place of an earlier one.

    The earlier one goes with its modules, which were made for its weights. Raises UserError when the folder lacks a
    file or lies in the pack, when the pack has no such draft model, and when the disk is full: the pack is then as it
    was.
    """
    names = [name for name in FILES if not entry.shares or name not in TOKENIZER_FILES]
    _check_files(model, names, "model")
    folder = pack / entry.name
    if folder.resolve() == model.resolve():
        raise UserError(
            "already_packed", f"{model}: lies in this pack already; name the folder that it was trained into"
        )
    if entry.draft and entry.draft not in {there.name for there in _entries(pack)}:
        raise UserError(
            "draft_not_packed", f"{pack} has no model '{entry.draft}' to draft for {entry.name}; pack that one first"
        )
    list_it = lambda: _write_index(pack, _line(entry, folder))  # noqa: E731
    with writing(pack, f"the model {entry.name}"), replacing(folder, list_it) as partial:
        _copy(model, names, partial)
        if entry.shares:
            _leave_out_embedding(partial / WEIGHTS, _entry(pack, entry.shares).fetched / WEIGHTS)
    if entry.shares:
        _write_index(pack, replace(_entry(pack, entry.shares), draft=entry.name))
    return _entry(pack, entry.name)


def _entry(pack: Path, name: str) -> PackModel:
    return next(there for there in _entries(pack) if there.name == name)


def _leave_out_embedding(weights: Path, of_target: Path) -> None:
    """Writes the weights as float16, without the embedding. Raises UserError for one that is not the target's."""
    tensors = load_file(weights)
    embedding = tensors.pop(EMBEDDING)
    with safe_open(of_target, framework="pt") as file:
        if not embedding.equal(file.get_tensor(EMBEDDING).to(embedding.dtype)):
            raise UserError("other_embedding", f"{weights}: its embedding is not the target's, so it cannot share that")
    save_file({name: tensor.to(torch.float16) for name, tensor in tensors.items()}, weights)


def _line(entry: PackEntry, folder: Path) -> PackModel:
    """What the index says of the model in `folder`."""
    return PackModel(
        name=entry.name,
        folder=entry.name,
        role=entry.role,
        parameters=stored_parameters(folder / WEIGHTS),
        bytes=(folder / WEIGHTS).stat().st_size,
        sha256=_sha256(folder / WEIGHTS),
        tokenizer_sha256="" if entry.shares else _sha256(folder / TOKENIZER),
        licence=entry.licence,
        description=entry.description,
        data=entry.data,
        draft=entry.draft,
        shares=entry.shares,
    )


def add_modules_to_pack(modules: Path, pack: Path, name: str = "") -> PackModel:
    """Copies the modules of a method next to the target that they were trained for; float32 becomes bfloat16.

    `name` is a method that uses these modules and not those that the method they were trained for has.

    Raises UserError when the folder lacks a file, when the pack has no such target or one of other weights, and when
    the disk is full: the pack is then as it was.
    """
    _check_files(modules, MODULE_FILES, "folder of modules")
    facts = read_facts(str(modules))
    if name and getattr(registry.method_class(name), "modules_of", "") != facts.method:
        raise UserError("modules_of_other_method", f"{name} does not use modules of {facts.method}; give no --name")
    model = next((entry for entry in _entries(pack) if entry.name == facts.target.name), None)
    held = None if model is None else model.fetched if model.package else pack / model.folder
    if model is None or held is None or folder_sha256(held) != facts.target.weights_sha256:
        raise UserError(
            "modules_of_other_target",
            f"{modules}: made for {facts.target.name}, which is not in {pack} with the same weights",
        )
    name = name or facts.method
    folder = pack / model.folder / "modules" / name
    weights = load_file(modules / MODULES).items()
    halved = {name: weight.to(torch.bfloat16) if weight.dtype == torch.float32 else weight for name, weight in weights}
    packed = replace(model, modules={**model.modules, name: hashlib.sha256(save(halved)).hexdigest()})
    with (
        writing(pack, f"the modules of {name}"),
        replacing(folder, lambda: _write_index(pack, packed)) as partial,
    ):
        _copy(modules, MODULE_FILES, partial)
        card = (partial / "README.md").read_text(encoding="utf-8")
        named = f"[modules={modules.name}"  # in the package a label does not name the folder
        for old, new in ((f"# {modules.name}\n", f"# {name}\n"), (f"{named},", "["), (f"{named}]", "")):
            card = card.replace(old, new, 1)
        (partial / "README.md").write_text(card, encoding="utf-8")
        save_file(halved, partial / MODULES)
    return packed


def _copy(source: Path, names: Sequence[str], folder: Path) -> None:
    """The files of these names, and the draft vocabulary where there is one."""
    for file in (*(source / name for name in names), *source.glob(DRAFT_VOCABULARY)):
        shutil.copyfile(file, folder / file.name)


@contextmanager
def replacing(folder: Path, last: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """An empty folder that takes the place of `folder` when it has been filled, and goes when that fails.

    `last` is done with the new one in its place: where it fails, the earlier one comes back. So it does after a kill
    in between, when this is called again.
    """
    partial, earlier = (folder.with_name(f".{what}-{folder.name}") for what in ("partial", "earlier"))
    if earlier.exists() and not folder.exists():
        earlier.rename(folder)
    for left_over in (partial, earlier):
        shutil.rmtree(left_over, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        _take_place(partial, folder, earlier, last)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(earlier, ignore_errors=True)


def _take_place(partial: Path, folder: Path, earlier: Path, last: Callable[[], None]) -> None:
    if folder.exists():
        folder.rename(earlier)
    try:
        partial.rename(folder)
        last()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if earlier.exists():
            earlier.rename(folder)
        raise


def _check_files(folder: Path, names: Sequence[str], what: str) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UserError(
            "training_unfinished",
            f"{folder} is not a finished {what}: {', '.join(missing)} missing; train it to its end first",
        )


def stored_parameters(weights: Path) -> int:
    """Number of values in a safetensors file; tied weights are stored once."""
    with safe_open(weights, framework="pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 - not a dict
    total = 0
    for shape in shapes:
        values = 1
        for size in shape:
            values *= int(size)
        total += values
    return total


def _entries(pack: Path) -> list[PackModel]:
    """What the index of a pack lists; nothing where there is none yet."""
    index = pack / INDEX
    return list(read_index(index)) if index.is_file() else []


def _write_index(pack: Path, packed: PackModel) -> None:
    earlier = _entries(pack)
    if any(entry.name == packed.name for entry in earlier):
        entries = [packed if entry.name == packed.name else entry for entry in earlier]
    else:
        entries = [*earlier, packed]
    partial = pack / f".partial-{INDEX}"
    partial.write_text(json.dumps([asdict(entry) for entry in entries], indent=2) + "\n", encoding="utf-8")
    partial.replace(pack / INDEX)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
