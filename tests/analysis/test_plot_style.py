"""Pictures can be read at each size, with any eyes, and on paper without colour."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from fixtures_pictures import contrast, linear
from pictures import texts

from benchctl.analysis.plots.axes import dress, new_figure, save
from benchctl.analysis.plots.style import SIZES

# What readers see who lack the cones for red (protanopia) or green (deuteranopia): matrices of linear RGB at severity 1
# in Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009).
EYES = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}


def lab(colour: str, eyes: str) -> np.ndarray:
    """The colour in CIELAB of D65 as those eyes see it."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(EYES[eyes] @ linear(colour), 0, 1) / np.array([0.95047, 1.0, 1.08883])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_text_and_colours_stand_out_from_the_ground() -> None:
    """WCAG 2.2, 1.4.3 and 1.4.11: 4.5 for text, 3 for what a picture needs to be understood. Faded bars are still
    seen."""
    style = SIZES["screen"]
    assert contrast(style.ink, style.ground) > 12
    assert contrast(style.muted, style.ground) >= 4.5
    assert all(contrast(colour, style.ground) >= 3 for colour in style.colours)
    assert all(contrast(style.faded(colour), style.ground) >= 1.6 for colour in (style.ink, *style.colours))
    assert 1.1 < contrast(style.grid, style.ground) < 1.6


@pytest.mark.parametrize("eyes", EYES)
def test_colours_are_told_apart_by_eyes_that_lack_a_cone(eyes: str) -> None:
    """A difference of 2 in CIELAB is seen side by side; thin lines far from their key need many times that."""
    style = SIZES["screen"]
    seen = [lab(colour, eyes) for colour in (style.ink, *style.colours)]
    assert min(float(np.linalg.norm(one - other)) for one, other in combinations(seen, 2)) >= 20


def test_a_method_has_the_same_colour_in_every_picture() -> None:
    """Orange was prompt_lookup in one picture and all lossy methods in another."""
    style = SIZES["screen"]
    built_in = ("two_model", "prompt_lookup", "lookahead", "medusa", "early_exit", "deed", "m2r2", "skip_decode",
                "mixture_of_depths")  # fmt: skip
    own = {style.colour_of(name) for name in built_in}
    assert len(own) == len(built_in) and style.colour_of("autoregressive") == style.ink
    assert style.colour_of("m2r2[exit=2]") == style.colour_of("m2r2") == style.colour_of("m2r2_dynamic")
    assert {style.colour_of(name) for name in ("follow", "repeat", "mine")} <= set(style.colours) - own


@pytest.mark.parametrize("size", SIZES)
def test_a_picture_is_as_wide_as_its_place_and_its_letters_as_high_as_they_must_be(size: str) -> None:
    style = SIZES[size]
    least = {"screen": 8, "column": 7}[size]
    assert min(style.small, style.text, style.title) >= least
    figure = new_figure(style, 2.0)
    wide, high = figure.get_size_inches()
    assert wide == pytest.approx({"screen": 7.2, "column": 3.35}[size], abs=1e-3)
    assert high == 2.0
    assert new_figure(style, 9.0).get_figheight() == {"screen": 9, "column": 3}[size]
    axes = figure.add_subplot()
    axes.plot([1, 2], [3, 4])
    axes.set(xlabel="x", ylabel="y")
    dress(axes, style)
    words = [axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels()]
    assert min(float(word.get_fontsize()) for word in words) >= least
    assert {word.get_color() for word in words} == {style.ink}


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_pictures_of_equal_data_are_equal_bytes(tmp_path: Path, ending: str) -> None:
    """They once held the time of writing, so that a picture kept in git changed whenever it was drawn."""
    first, second = tmp_path / f"first.{ending}", tmp_path / f"second.{ending}"
    for path in (first, second):
        axes = (figure := new_figure(SIZES["screen"], 2.0)).add_subplot()
        axes.plot([1, 2], [3, 4], "o--")
        save(figure, path)
    assert first.read_bytes() == second.read_bytes()
    assert b"Date" not in first.read_bytes()


def test_text_stays_text_and_dollars_stay_dollars(tmp_path: Path) -> None:
    """A label between dollar signs was set as a formula, and one with a broken formula was an error."""
    axes = (figure := new_figure(SIZES["screen"], 2.0)).add_subplot()
    axes.set_title(r"costs $5, or $\frac{")
    axes.set_xticks([0, 1], ["$a$", "b"])
    save(figure, tmp_path / "a.svg")
    assert {r"costs $5, or $\frac{", "$a$", "b"} <= set(texts(tmp_path / "a.svg").splitlines())
    save(figure, tmp_path / "a.pdf")
    assert b"/FontFile2" in (tmp_path / "a.pdf").read_bytes(), "TrueType: letters, not outlines"
