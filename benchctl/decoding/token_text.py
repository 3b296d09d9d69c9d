"""Ids to text where nothing but the text is wanted: neither torch nor transformers, which take seconds to load."""

from collections.abc import Callable, Sequence
from pathlib import Path


def token_text(folder: Path) -> Callable[[Sequence[int]], str] | None:
    """What turns ids into text without special tokens, as TargetTokenizer.decode_text does; None for a folder without
    the file of a fast tokenizer."""
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(file))
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True))
