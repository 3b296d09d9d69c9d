"""A file of texts to draft from.

JSON lines. The first names the tokenizer and counts the texts, each other line is a text as a list of token ids:

    {"tokenizer_sha256": "1f0c...", "texts": 2}
    [5, 17, 2]
    [5, 9, 40, 2]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from benchctl.decoding.model.tokenizer import TargetTokenizer
from benchctl.errors import UserError


class UsesTexts:
    """Mix-in of a method with an option ``texts``: a file of texts that it drafts from; empty for none."""

    texts: str

    def read_texts(self, tokenizer: TargetTokenizer) -> list[list[int]]:
        """The texts of the file. `benchctl run` calls this before it reads weights, too.

        Raises UserError for a file that is not there or not whole, and for one of another tokenizer.
        """
        try:
            first, *rest = Path(self.texts).read_text(encoding="utf-8").splitlines() or [""]
            header, texts = json.loads(first), [json.loads(line) for line in rest]
            sha256, count = header["tokenizer_sha256"], header["texts"]
            if len(texts) != count:
                raise ValueError(f"it has {len(texts)} of {count} texts")
            if not all(type(token) is int and 0 <= token < tokenizer.vocabulary for token in chain(*texts)):
                raise ValueError("a text is not a list of the tokenizer's ids")
        except OSError as error:
            reason = f"{self.texts}: cannot be read ({error.strerror}); name a file that is there"
            raise UserError("texts_not_readable", reason) from error
        except (ValueError, TypeError, LookupError) as error:
            raise UserError(
                "texts_not_readable",
                f"{self.texts}: cannot be read as a file of texts ({error}). Write it again, see docs/methods.md.",
            ) from error
        if sha256 != tokenizer.sha256:
            raise UserError(
                "texts_of_other_tokenizer",
                f"{self.texts}: its texts are ids of another tokenizer, so they mean something else to this target. "
                "Write the file with the target's tokenizer, see docs/methods.md.",
            )
        return texts


def write_texts(path: str | Path, tokenizer_sha256: str, texts: Sequence[Sequence[int]]) -> None:
    """Write a file of texts; ``texts`` are lists of token ids."""
    lines = ({"tokenizer_sha256": tokenizer_sha256, "texts": len(texts)}, *map(list, texts))
    Path(path).write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
