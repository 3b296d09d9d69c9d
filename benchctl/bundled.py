"""The models that travel inside the package with the modules trained for them: their index, and where files are."""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from benchctl.errors import UserError

MODELS = Path(__file__).parent / "assets" / "models"
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
MODULES = "modules.safetensors"
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


@dataclass(frozen=True)
class PackModel:
    """One embedded model. `role` is target, draft or moe (a target too), `bytes` and `sha256` are those of its weights.

    `draft` names the model that drafts for it, if any; `data` says in a few words what it has read. `modules` gives the
    sha256 of the weights of each method whose modules were trained for it, by the method's name.
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

    @property
    def path(self) -> Path:
        return MODELS / self.folder


@cache
def models() -> tuple[PackModel, ...]:
    """Every embedded model, in the order of the index; none where the package carries no index."""
    index = MODELS / "index.json"
    if not index.exists():
        return ()
    return tuple(PackModel(**entry) for entry in json.loads(index.read_text(encoding="utf-8")))


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
    sha256 once per process), an existing folder as it is, or the text itself when it can be a hub id (`owner/name`).

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
            _checked(model.path / TOKENIZER, model.tokenizer_sha256, f"model '{name}'")
            return _checked(model.path / WEIGHTS, model.sha256, f"model '{name}'")
    if name and Path(name).is_dir():
        return Path(name)
    if isinstance(name_or_path, str) and _HUB_ID.fullmatch(name):
        return name
    embedded = ", ".join(model.name for model in models()) or "none in this installation"
    raise UserError(
        "unknown_model",
        f"'{name}' is neither an embedded model nor a folder. Embedded models: {embedded}; or give a folder, "
        "or a hub id of the form owner/name.",
    )


def modules_for(target: str, method: str) -> Path | None:
    """The folder of the embedded modules of a method for an embedded target, checked as `resolve` does; None where
    there are none."""
    for model in models():
        if model.name == target and method in model.modules:
            folder = model.path / "modules" / method
            return _checked(folder / MODULES, model.modules[method], f"modules of {method} for '{target}'")
    return None


@cache
def _checked(file: Path, sha256: str, name: str) -> Path:
    """The folder of an embedded file. Raises UserError where the file is missing or altered."""
    if not file.is_file():
        raise UserError("damaged_embedded_model", f"The embedded {name} lacks {file.name}; reinstall benchctl.")
    with file.open("rb") as stream:
        actual = hashlib.file_digest(stream, "sha256").hexdigest()
    if actual != sha256:
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
