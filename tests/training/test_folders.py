"""A folder that is replaced is the earlier one or the new one, whatever fails in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference.pack import replacing


def _fill(folder: Path, text: str) -> None:
    with replacing(folder) as partial:
        (partial / "file").write_text(text)


def _only(folder: Path) -> str:
    """What the folder holds, nothing else being beside it."""
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    return (folder / "file").read_text()


def _fail() -> None:
    raise OSError(28, "No space left on device")


def test_the_earlier_folder_comes_back_where_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were deleted."""
    _fill(tmp_path / "model", "first")
    rename = Path.rename

    def refuse_partial(path: Path, to: Path) -> Path:
        if path.name.startswith(".partial"):
            _fail()
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", refuse_partial)
    with pytest.raises(OSError, match="No space left"):
        _fill(tmp_path / "model", "second")
    assert _only(tmp_path / "model") == "first"


def test_what_a_kill_left_aside_comes_back_before_all_else(tmp_path: Path) -> None:
    """Killed between the two renames; what was left aside was deleted as rubbish, and then the disk was full."""
    _fill(tmp_path / "model", "first")
    (tmp_path / "model").rename(tmp_path / ".earlier-model")
    with pytest.raises(OSError, match="No space left"), replacing(tmp_path / "model"):
        _fail()
    assert _only(tmp_path / "model") == "first"
