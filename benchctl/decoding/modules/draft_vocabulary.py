"""The tokens that a drafter scores: a subset of a large vocabulary, kept in a file next to the drafter's weights.

Ids that are frequent in text, as in FR-Spec, Zhao et al. 2025, arXiv 2502.14856. Verification scores all tokens.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchctl.errors import UserError

DRAFT_VOCABULARY = "draft_vocabulary.safetensors"


def read_draft_vocabulary(folder: str | Path) -> Tensor | None:
    """The ids [k], int64 and ascending, of the draft vocabulary in ``folder``; None where the folder has none.

    Raises UserError for a file that holds anything else.
    """
    file = Path(folder) / DRAFT_VOCABULARY
    if not file.is_file():
        return None
    try:
        tensors = load_file(file)
        if list(tensors) != ["ids"] or tensors["ids"].dtype != torch.int32:
            raise ValueError("it must hold one tensor, ids, of int32")
        ids = tensors["ids"].long()
        _check(ids)
    except (OSError, ValueError, SafetensorError) as error:
        message = f"{file}: cannot be read ({error}); train the modules again, or get the folder again"
        raise UserError("file_not_readable", message) from error
    return ids


def write_draft_vocabulary(folder: Path, ids: Tensor) -> None:
    """Keep ``ids`` [k] in ``folder``. Raises ValueError unless they ascend from 0 or more and fit into int32."""
    _check(ids)
    save_file({"ids": ids.to("cpu", torch.int32).contiguous()}, folder / DRAFT_VOCABULARY)


def _check(ids: Tensor) -> None:
    if ids.dim() != 1 or len(ids) == 0:
        raise ValueError(f"ids have shape {list(ids.shape)}; they must be a list of one id at least")
    if int(ids[0]) < 0 or int(ids[-1]) > torch.iinfo(torch.int32).max or not bool((ids[1:] > ids[:-1]).all()):
        raise ValueError("ids must ascend, from 0 or more, without repeats")
