"""What the layers above an exit hold of a row that left there."""

from benchctl.decoding.adaptive import View
from benchctl.decoding.kv.stream import Stream


def copy_h(stream: Stream, view: View) -> None:
    """Of the slow state at the exit, in every layer: state propagation (CALM 2207.07061, section 3.1)."""
    stream.fill(view.layer)


def copy_p(stream: Stream, view: View) -> None:
    """Of the state that spoke at the exit, in every layer."""
    stream.fill(view.layer, view.state)


def deferred_exact(stream: Stream, view: View) -> None:
    """The row's own, computed with the next row that goes deeper (DEED 2311.08623)."""


def absent(stream: Stream, view: View) -> None:
    """Nothing: later rows do not see it there (as Mixture-of-Depths, 2404.02258, has it)."""
    stream.skip(view.layer)
