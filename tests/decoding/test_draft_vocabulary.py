"""A draft vocabulary: its file, what may stand in it, and drafting with one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from refusals import refused
from safetensors.torch import save_file
from torch import Tensor

from benchctl.decoding.modules.draft_vocabulary import (
    DRAFT_VOCABULARY,
    read_draft_vocabulary,
    write_draft_vocabulary,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_draft_vocabulary(tmp_path) is None
    write_draft_vocabulary(tmp_path, torch.tensor([0, 3, 95]))
    ids = read_draft_vocabulary(str(tmp_path))
    assert ids is not None and ids.dtype == torch.int64 and ids.tolist() == [0, 3, 95]


@pytest.mark.parametrize("ids", [[], [3, 1], [1, 1], [-1, 2], [0, 1 << 31]])
def test_ids_that_cannot_be_one_are_not_written(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(ValueError):
        write_draft_vocabulary(tmp_path, torch.tensor(ids, dtype=torch.int64))
    assert not (tmp_path / DRAFT_VOCABULARY).exists()


@pytest.mark.parametrize(
    "tensors",
    [
        {"ids": torch.tensor([2, 1], dtype=torch.int32)},
        {"ids": torch.tensor([[1, 2]], dtype=torch.int32)},
        {"ids": torch.tensor([1, 2])},
        {"ids": torch.tensor([-1, 2], dtype=torch.int32)},
        {"tokens": torch.tensor([1, 2], dtype=torch.int32)},
        {"ids": torch.tensor([1], dtype=torch.int32), "more": torch.tensor([1], dtype=torch.int32)},
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, tmp_path / DRAFT_VOCABULARY)
    with refused("file_not_readable", str(tmp_path / DRAFT_VOCABULARY)):
        read_draft_vocabulary(tmp_path)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    write_draft_vocabulary(tmp_path, torch.arange(9))
    file = tmp_path / DRAFT_VOCABULARY
    file.write_bytes(file.read_bytes()[:-4])
    with refused("file_not_readable", str(file)):
        read_draft_vocabulary(tmp_path)
