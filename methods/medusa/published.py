"""Medusa heads in the format in which the authors and others publish them, such as those for Vicuna-7B.

Cai et al.: Medusa, 2024, arXiv 2401.10774; the authors' code. A folder has config.json, with ``medusa_num_heads``,
``medusa_num_layers`` (residual blocks of each head) and ``base_model_name_or_path``, and medusa_lm_head.safetensors or
.pt, with the names of heads.py. Where none has an LM head of its own, they are of the second form. Nothing tells which
weights the target must have, but for width and, in the first form, vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.others import CONFIG, MEDUSA_WEIGHTS, read_config, read_weights, weights_file
from benchctl.errors import UserError


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
    if (file := weights_file(folder, MEDUSA_WEIGHTS)) is None:
        return None
    config, weights = _config(file.parent / CONFIG), read_weights(file)
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
    config = read_config(file, "Medusa heads")
    counts = [config.get(name) for name in ("medusa_num_heads", "medusa_num_layers")]
    if not all(isinstance(count, int) and count > 0 for count in counts):
        message = f"{file}: medusa_num_heads and medusa_num_layers must be positive; get the folder again"
        raise UserError("file_not_readable", message)
    return config
