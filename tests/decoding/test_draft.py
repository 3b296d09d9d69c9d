"""Drafts: rows below the root, their depths and what is refused."""

from __future__ import annotations

import pytest

from benchctl.decoding.draft import ROOT, Draft


def test_a_tree_knows_its_depths_and_children() -> None:
    """The example of the docstring: "5 7" and, besides, "9"."""
    draft = Draft((5, 7, 9), (ROOT, 0, ROOT))
    assert len(draft) == 3
    assert draft.depths == (1, 2, 1)
    assert draft.depth == 2
    assert draft.children(ROOT) == [0, 2]
    assert draft.children(0) == [1]
    assert draft.children(1) == []


def test_scratch_rows_are_nobody_s_children_and_do_not_count_as_depth() -> None:
    draft = Draft((5, 6, 7), (ROOT, 0, 1), scratch=(False, True, True))
    assert draft.depths == (1, 2, 3)
    assert draft.depth == 1
    assert draft.children(0) == draft.children(1) == []


@pytest.mark.parametrize("parents", [(0,), (ROOT, 1), (ROOT, 2, ROOT), (-2,)])
def test_a_parent_that_does_not_precede_its_child_is_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"row \d names parent"):
        Draft(tuple(range(len(parents))), parents)


def test_a_row_that_could_be_accepted_below_scratch_is_refused() -> None:
    with pytest.raises(ValueError, match="row 1 .*parent 0"):
        Draft((5, 6), (ROOT, 0), scratch=(True, False))


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 tokens .* 1 parents"):
        Draft((5, 6), (ROOT,))
    with pytest.raises(ValueError, match="2 tokens .* 1 scratch"):
        Draft((5, 6), (ROOT, 0), scratch=(True,))
