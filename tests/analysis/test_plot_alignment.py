"""The alignment picture shows what modules.json says, and says so where there is nothing to show."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from fixtures_pictures import contrast
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from pictures import assert_readable, texts, words_of
from refusals import refused

from benchctl.analysis.plots.alignment import draw_alignment, read_alignment
from benchctl.analysis.plots.axes import settle
from benchctl.analysis.plots.style import SIZES, THEMES, style_of
from benchctl.cli import main


def modules_of(folder: Path, **changed: Any) -> Path:
    """Facts of a target of eight layers with gates 2 and 4."""
    yardsticks = {f"gate_{gate}_{name}": 0.1 * gate for gate in (2, 4) for name in ("slow", "exit", "accelerated")}
    for layer in range(1, 5):
        yardsticks |= {f"cosine_{layer}_{name}": layer / 10 for name in ("slow", "accelerated", "target")}
    target = {"name": "tiny", "weights_sha256": "0", "layers": 8, "hidden_size": 4, "vocabulary": 9}
    facts = {"method": "m2r2", "options": {}, "target": target, "yardsticks": yardsticks, **changed}
    folder.mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(facts))
    return folder


def test_what_the_folder_says_is_read_by_layer(tmp_path: Path) -> None:
    found = read_alignment(modules_of(tmp_path / "m"))
    assert (found.title, found.layers, found.gates) == ("m2r2 on tiny", 8, (2, 4))
    assert found.intervals == [(0, 2), (2, 4)]
    assert found.cosines["slow"] == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}
    assert found.agreements["exit"] == {2: 0.2, 4: 0.4}


def test_the_picture_names_streams_gates_and_target(tmp_path: Path) -> None:
    out = tmp_path / "early.svg"
    folder = modules_of(tmp_path / "m")
    done = CliRunner().invoke(main, ["plot", "--alignment", str(folder), str(folder), "--out", str(out)])
    assert done.exit_code == 0 and done.output == f"Plot: {out}\n"
    assert texts(out).count("m2r2 on tiny, 8 layers") == texts(out).count("layer 4") == 2


@pytest.mark.parametrize(("theme", "size"), list(product(THEMES, SIZES)))
def test_cosines_and_shares_are_drawn_on_every_ground_at_every_size(tmp_path: Path, theme: str, size: str) -> None:
    style = style_of(theme, size)
    figure = draw_alignment([read_alignment(modules_of(tmp_path / "m"))], style)
    settle(figure)
    assert_readable(figure, style)
    cosines, gates = figure.axes
    slow, fast, target, later, after = (np.asarray(line.get_xydata()).tolist() for line in cosines.lines)
    assert slow == [[1, 0.1], [2, 0.2], [3, 0.3], [4, 0.4]]
    assert fast == target == slow[:2]
    assert later == [[2, 0.2], [3, 0.3], [4, 0.4]] and after == slow[2:]  # again at the first gate
    bars = [patch for patch in gates.patches if isinstance(patch, Rectangle)]
    assert [bar.get_height() for bar in bars] == pytest.approx([0.2, 0.4] * 3)
    assert len({to_hex(bar.get_facecolor()) for bar in bars}) == len({bar.get_hatch() for bar in bars}) == 3
    assert all(contrast(to_hex(text.get_color()), style.ground) >= 4.5 for text in words_of(figure))


@pytest.mark.parametrize(
    ("changed", "id"),
    [
        ({"yardsticks": {"head_1_top1": 0.5}}, "no_stream_figures"),
        ({"yardsticks": {"cosine_1_slow": "much"}}, "unreadable_modules"),
        ({"target": None}, "unreadable_modules"),
    ],
)
def test_other_modules_are_refused(tmp_path: Path, changed: dict[str, Any], id: str) -> None:
    with refused(id):
        read_alignment(modules_of(tmp_path / "m", **changed))


def test_a_folder_without_modules_and_a_plot_of_nothing_are_refused(tmp_path: Path) -> None:
    with refused("no_modules", "modules.json"):
        read_alignment(tmp_path)
    for words in (["plot"], ["plot", "--pareto", "--alignment"], ["plot", "--alignment"]):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 2
    picture = ["plot", "--alignment", str(modules_of(tmp_path / "m")), "--out", str(tmp_path / "a.txt")]
    assert "End --out in" in CliRunner().invoke(main, picture).output
