"""What tables and pictures call a label."""

from collections import Counter
from collections.abc import Sequence


def label_lines(label: str) -> tuple[str, ...]:
    """A label with each of its options on a line of its own, where there is no room for long labels.

    `two_model[draft_tokens=5,tree=wide]` -> `two_model`, `draft_tokens=5`, `tree=wide`.
    """
    name, _, options = label.removesuffix("]").partition("[")
    return (name, *options.split(",")) if options else (name,)


def short_labels(labels: Sequence[str]) -> dict[str, str]:
    """Each label as its name and the options in which it differs from other labels of that name.

    `m[a=1,b=2]`, `m[a=1,b=3]`, `n[a=1]` -> `m b=2`, `m b=3`, `n`.
    """
    shortened = {}
    for label in labels:
        same_name = [lines for other in labels if (lines := label_lines(other))[0] == label_lines(label)[0]]
        counts = Counter(line for lines in same_name for line in lines)
        name, *options = label_lines(label)
        shortened[label] = " ".join([name, *(option for option in options if counts[option] < len(same_name))])
    return shortened
