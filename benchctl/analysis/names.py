"""What tables and pictures call a label."""

from collections.abc import Sequence
from itertools import combinations

from benchctl.records.labels import split_options

_LONGEST = 34  # characters of a label with all its options in a table


def label_lines(label: str) -> tuple[str, ...]:
    """A label with each of its options on a line of its own, where there is no room for long labels.

    `two_model[draft_tokens=5,tree=wide]` -> `two_model`, `draft_tokens=5`, `tree=wide`.
    """
    name, _, options = label.removesuffix("]").partition("[")
    return (name, *split_options(options)) if options else (name,)


def table_labels(labels: Sequence[str]) -> dict[str, str]:
    """Each label with all its options where every one has at most 34 characters, else the short labels."""
    whole = {label: " ".join(label_lines(label)) for label in labels}
    return whole if max(map(len, whole.values()), default=0) <= _LONGEST else short_labels(labels)


def short_labels(labels: Sequence[str]) -> dict[str, str]:
    """Each label as its name and as few options as tell the labels of that name apart.

    `m[a=1,b=2]`, `m[a=2,b=3]`, `n[a=1]` -> `m a=1`, `m a=2`, `n`;
    `m`, `m[a=1]` -> `m`, `m a=1`;
    `m[a=n[b=1]]`, `m[a=n[b=2]]`, `m[a=o]` -> `m a=n[b=1]`, `m a=n[b=2]`, `m a=o`.
    """
    by_name: dict[str, dict[str, dict[str, str]]] = {}
    for label in labels:
        name, *options = label_lines(label)
        by_name.setdefault(name, {})[label] = {option.partition("=")[0]: option for option in options}
    shortened: dict[str, str] = {}
    for name, of_name in by_name.items():
        every = dict.fromkeys(key for options in of_name.values() for key in options)
        keys = [key for key in every if len({options.get(key) for options in of_name.values()}) > 1]
        choices = (
            {label: tuple(options[key] for key in subset if key in options) for label, options in of_name.items()}
            for size in range(len(keys) + 1)
            for subset in combinations(keys, size)
        )
        distinct = (shown for shown in choices if len(set(shown.values())) == len(of_name))
        whole = {label: label_lines(label)[1:] for label in of_name}
        fewest = min(distinct, key=lambda shown: sum(map(len, shown.values())), default=whole)
        inner: dict[str, list[str]] = {}
        for key, equals, value in {option.partition("="): None for options in fewest.values() for option in options}:
            inner.setdefault(key + equals, []).append(value)
        texts = {key + value: key + text for key, values in inner.items() for value, text in _within(values).items()}
        shortened |= {label: " ".join([name, *map(texts.__getitem__, options)]) for label, options in fewest.items()}
    return {label: shortened[label] for label in labels}


def _within(labels: Sequence[str]) -> dict[str, str]:
    """The short labels with brackets, as values of an option."""
    texts = {label: text.split(" ") for label, text in short_labels(labels).items()}
    return {label: name + f"[{','.join(options)}]" * bool(options) for label, (name, *options) in texts.items()}
