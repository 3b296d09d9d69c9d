"""Medusa heads in the format in which the authors and others publish them, such as those for Vicuna-7B.

Cai et al.: Medusa, 2024, arXiv 2401.10774; the authors' code. A folder has config.json, with ``medusa_num_heads``,
``medusa_num_layers`` (residual blocks of each head) and ``base_model_name_or_path``, and medusa_lm_head.safetensors or
.pt, with the names of heads.py. Where none has an LM head of its own, they are of the second form. Nothing tells which
weights the target must have, but for width and, in the first form, vocabulary.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from benchctl.decoding.model.target import Target
from benchctl.errors import UserError

CONFIG = "config.json"
_WEIGHTS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")  # the first that is there is read


@dataclass(frozen=True)
class Published:
    """What a folder holds: ``weights`` by name, in the file until used; ``shared``: of the second form."""

    folder: str
    base_model: str
    heads: int
    blocks: int
    shared: bool
    weights: Mapping[str, Tensor]

    def fit(self, target: Target, heads: int) -> dict[str, Tensor]:
        """Those of the first ``heads``, where and as the target is; UserError for another width or vocabulary."""
        width, vocabulary = target.info.hidden_size, target.vocabulary
        part, size = (f"{self.blocks}.weight", [vocabulary, width])
        if self.shared:
            part, size = "0.linear.weight", [width, width]
        if (made := list(self.weights[f"0.{part}"].shape)) != size:
            raise UserError(
                "modules_of_other_target",
                f"{self.folder}: made for {self.base_model}; {part} of its heads has shape {made}, but the target "
                f"needs {size}; name heads made for it",
            )
        for name, weight in self.weights.items():
            wanted = [width] if name.endswith(".bias") else [width, width]
            if name.endswith(f".{self.blocks}.weight"):
                wanted = [vocabulary, width]
            if list(weight.shape) != wanted:
                message = f"{self.folder}: {name} has shape {list(weight.shape)}, not {wanted}; get it again"
                raise UserError("shapes_do_not_fit", message)
        asked = [name for name in self.weights if int(name.partition(".")[0]) < heads]
        return {name: self.weights[name].to(target.device, target.dtype) for name in asked}


def read_published(folder: str) -> Published | None:
    """What ``folder`` holds in this format; None where it holds nothing of it.

    Raises UserError where it cannot be read, lacks weights, or holds others than config.json names. More heads than it
    names are read: config.json of the heads for Vicuna-7B names two, and there are five.
    """
    place = Path(folder)
    file = next((place / name for name in _WEIGHTS if (place / name).is_file()), None)
    if file is None:
        return None
    config, weights = _config(place / CONFIG), _read(file)
    heads, blocks = len({name.partition(".")[0] for name in weights}), config["medusa_num_layers"]
    named = max(heads, config["medusa_num_heads"])
    parts = [f"{block}.linear.{kind}" for block in range(blocks) for kind in ("weight", "bias")]
    shared = all(".linear." in name for name in weights)
    parts += [] if shared else [f"{blocks}.weight"]
    wanted = {f"{head}.{part}" for head in range(named) for part in parts}
    expected = f"{CONFIG} has medusa_num_layers={blocks}, and there seem to be {named} heads"
    if missing := sorted(wanted - weights.keys()):
        message = f"{file}: lacks {missing[0]} ({expected}); name a whole set of heads"
        raise UserError("not_medusa_heads", message)
    if unknown := sorted(weights.keys() - wanted):
        raise UserError("not_medusa_heads", f"{file}: holds {unknown[0]}, which is none of such heads ({expected})")
    base_model = str(config.get("base_model_name_or_path", "an unnamed model"))
    return Published(folder, base_model, heads, blocks, shared, weights)


def _config(file: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        counts = [config[name] for name in ("medusa_num_heads", "medusa_num_layers")]
        if not all(isinstance(count, int) and count > 0 for count in counts):
            raise ValueError("medusa_num_heads and medusa_num_layers must be positive")
        return dict(config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{file}: cannot be read as that of Medusa heads ({error!r}); get the folder again"
        raise UserError("file_not_readable", message) from error


def _read(file: Path) -> dict[str, Tensor]:
    """Of a .pt only tensors are unpickled: strangers' files run nothing; torch's error advises to unpickle the rest."""
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        weights = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        if not all(isinstance(weight, Tensor) for weight in weights.values()):
            raise ValueError("there is more in it than tensors")
        return dict(weights)
    except pickle.UnpicklingError as error:
        message = f"{file}: holds more than tensors, or is torn, and was not read; get one that holds no more"
        raise UserError("unsafe_file", message) from error
    except (OSError, ValueError, RuntimeError, AttributeError, SafetensorError) as error:
        raise UserError("file_not_readable", f"{file}: cannot be read ({error}); get it again") from error
