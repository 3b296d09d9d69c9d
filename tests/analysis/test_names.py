"""Short labels: as few options as are needed."""

import pytest

from benchctl.analysis.names import short_labels

EXITING, DRAFTING = "early_exit[threshold=0.6,exits=8+12]", "early_exit[mode=draft,threshold=0.5,exits=4]"


@pytest.mark.parametrize(
    ("labels", "short"),
    [
        (["m[a=1,b=2]", "n[a=1]"], ["m", "n"]),
        (["m[a=1,b=2]", "m[a=1,b=3]"], ["m b=2", "m b=3"]),
        (["m", "m[a=1]"], ["m", "m a=1"]),
        ([EXITING, DRAFTING], ["early_exit", "early_exit mode=draft"]),
        (["m[a=n[b=1],c=2]", "m[a=o[b=1],c=2]"], ["m a=n", "m a=o"]),
        (["m[a=n[b=1]]", "m[a=n[b=2]]", "m[a=o]"], ["m a=n[b=1]", "m a=n[b=2]", "m a=o"]),
        (["m[4x]", "m[8x]"], ["m 4x", "m"]),
        (["m[a=1,b=1]", "m[a=1,b=2]", "m[a=2,b=1]"], ["m a=1 b=1", "m a=1 b=2", "m a=2 b=1"]),
    ],
)
def test_a_short_label_has_the_options_that_tell_it_apart(labels: list[str], short: list[str]) -> None:
    assert short_labels(labels) == dict(zip(labels, short, strict=True))
