"""Labels of version 0.1 that have another name now: recorded files and command lines may still contain them."""

import sys
from collections.abc import Mapping
from functools import cache

# Options of version 0.1 that chose between set-ups of one method, which are methods of their own now.
_RENAMED = {
    ("m2r2", "mode=speculative"): "m2r2",
    ("m2r2", "mode=dynamic"): "m2r2_dynamic",
    ("m2r2", "mode=aot"): "m2r2_prefetch",
}

# Defaults of version 0.1 that are others now. A label omits defaults, so it means these in a file of that version.
_OLD_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "two_model": {"draft_tokens": 5, "confidence": 0.0},
    "prompt_lookup": {"draft_tokens": 10, "max_ngram": 2, "match": "first"},
    "lookahead": {"ngram": 5, "window": 7, "guesses": 7, "prompt_pool": False},
    "medusa": {"nodes": 15},
    "m2r2": {"draft_tokens": 4, "confidence": 0.0},
    "skip_decode": {"fall_tokens": 64},
    "mixture_of_depths": {"threshold": 0.5},
}


def split_options(text: str, separator: str = ",") -> list[str]:
    """The options of a label, which are between commas (or other separators) outside brackets.

    >>> split_options("first=suffix[tree=true,factor=2],then=two_model")
    ['first=suffix[tree=true,factor=2]', 'then=two_model']
    """
    options, depth = [""], 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == separator and depth == 0:
            options.append("")
        else:
            options[-1] += character
    return options


def old_defaults(label: str, options: Mapping[str, object]) -> str:
    """The options that a label omits because they were defaults of version 0.1: `draft_tokens=4, confidence=0.0`."""
    name, _, given = label.partition("[")
    named = {option.partition("=")[0] for option in split_options(given.removesuffix("]"))}
    old = _OLD_DEFAULTS.get(name, {}).items()
    return ", ".join(f"{key}={value}" for key, value in old if key not in named and options.get(key) == value)


@cache
def current_label(label: str) -> str:
    """The label as this version writes it. Prints each renamed method once per process on stderr.

    `m2r2[mode=dynamic,threshold=0.3]` becomes `m2r2_dynamic[threshold=0.3]`.
    """
    name, _, text = label.partition("[")
    options = split_options(text.removesuffix("]"))
    for option in options:
        if new_name := _RENAMED.get((name, option)):
            kept = ",".join(other for other in options if other != option)
            note_rename(f"{name}[{option}]", new_name)
            return f"{new_name}[{kept}]" if kept else new_name
    return label


@cache
def note_rename(old: str, new: str) -> None:
    sys.stderr.write(f"Note: {old} is now called {new}.\n")
