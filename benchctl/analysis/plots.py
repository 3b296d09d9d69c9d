"""What all pictures share: where they may be written, and in which formats."""

from pathlib import Path

from matplotlib.figure import Figure

from benchctl.errors import UserError
from benchctl.recordfile import check_writable

ENDINGS = (".png", ".svg", ".pdf")


def check_image(path: Path) -> None:
    """Raises UserError if `path` does not end as a picture that can be written here, or cannot be written."""
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"{path}: cannot tell which format to write. End --out in {', '.join(ENDINGS)}.")
    check_writable(path)


def save(figure: Figure, path: Path) -> None:
    """Raises UserError when the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}. Give another --out.") from error
