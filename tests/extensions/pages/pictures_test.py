"""Pictures show the right numbers and labels, and fit on a screen."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from keras_transformer.extensions.pages.attention import summarize_heads
from keras_transformer.extensions.pages.pictures import (
    draw_heads,
    draw_layers,
    draw_positions,
    draw_summary,
    write_png,
)
from tests.extensions.pages.pairs import SOURCE, random_attention

# Arithmetic errors, and pictures that Matplotlib could not draw as requested.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "error::UserWarning")

# Mathematics, markup, and a letter (of Nushu) that no font has.
ODD = ["▁$x^2$", "▁</script>", "&amp;", "\\frac", "▁", "_", "$", "<s>", "{", "%", "\U0001b170"]


def written(figure: Figure, path: Path) -> tuple[int, int]:
    """Writes a picture, and returns its width and height in pixels."""
    write_png(figure, path / "picture.png")
    height, width, _ = matplotlib.image.imread(path / "picture.png").shape
    return width, height


def matrices(figure: Figure) -> list[np.ndarray]:
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]


@pytest.mark.parametrize("heads", [1, 2, 5, 16])
def test_heads_of_a_layer(heads: int, tmp_path: Path) -> None:
    pair = random_attention(heads=heads)
    figure = draw_heads(pair, "cross", 2)
    assert [axes.get_xlabel() for axes in figure.axes] == [f"head {i + 1}" for i in range(heads)]
    np.testing.assert_array_equal(matrices(figure), pair.cross[2])
    assert {axes.images[0].get_clim() for axes in figure.axes} == {(0, 1)}
    first = figure.axes[0]
    assert [label.get_text() for label in first.get_yticklabels()] == pair.queries("cross")
    assert [label.get_text() for label in first.get_xticklabels()] == pair.keys("cross")
    assert "_katze → _schläft" in pair.queries("cross")
    width, height = written(figure, tmp_path)
    assert 150 < width < 2000 and height < 3 * width


def test_all_layers_and_heads(tmp_path: Path) -> None:
    pair = random_attention(layers=(6, 6), heads=8)
    figure = draw_layers(pair, "encoder")
    np.testing.assert_array_equal(matrices(figure), pair.encoder.reshape(48, 5, 5))
    assert figure.axes[8 * 5].get_ylabel() == "layer 6"
    assert figure.axes[7].get_title() == "head 8"
    width, height = written(figure, tmp_path)
    assert width < 1600 and height < 1300


def test_long_sentences_and_odd_tokens(tmp_path: Path) -> None:
    tokens = (SOURCE + ODD) * 3 + ["▁donaudampfschifffahrtsgesellschaft"] * 4
    pair = random_attention(tokens, tokens, tokens, layers=(1, 1), heads=2)
    figure = draw_heads(pair, "encoder", 0)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == pair.queries("encoder") and labels.count("_$x^2$") == 3
    for each in (figure, draw_heads(pair, "decoder", 0)):
        width, height = written(each, tmp_path)
        assert width < 3500 and height < 3500
    empty = random_attention(["</s>"], ["<s>"], ["</s>"], layers=(1, 1), heads=1)
    written(draw_heads(empty, "cross", 0), tmp_path)


def test_summary_of_heads(tmp_path: Path) -> None:
    summary = summarize_heads([random_attention(heads=8)])
    figure = draw_summary(summary)
    expected = [
        summary.means[kind][name]
        for kind in ("encoder", "decoder", "cross")
        for name in ("entropy", "distance", "diagonal")
    ]
    for found, means in zip(matrices(figure), expected, strict=True):
        np.testing.assert_array_equal(found, means)
    limits = [axes.images[0].get_clim()[1] for axes in figure.axes]
    assert limits[0] == limits[3] == limits[6] == max(each.max() for each in expected[::3])
    assert limits[2::3] == [1, 1, 1]
    values = [text.get_text() for text in figure.axes[8].texts]
    assert values == [f"{value:.2f}" for value in expected[8].ravel()]
    width, _ = written(figure, tmp_path)
    assert width < 1400


@pytest.mark.parametrize("learned", [False, True])
def test_learned_positions_are_drawn_for_both_sides(learned: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    sides = {side: random.normal(size=(9, 6)) for side in ("source", "target")}
    figure = draw_positions({**sides, "learned": np.array(learned)})
    images = [axes.images[0] for axes in figure.axes if axes.images]
    assert len(images) == 1 + learned
    np.testing.assert_array_equal(images[0].get_array(), sides["source"])
    low, high = images[0].get_clim()
    assert low == -high
    (curve, *_) = (axes for axes in figure.axes if axes.lines)
    x, y = curve.lines[0].get_data()
    expected = [np.mean([sides["source"][i] @ sides["source"][i + d] for i in range(9 - d)])
                for d in range(9)]  # fmt: skip
    assert x.tolist() == list(range(9))
    np.testing.assert_allclose(y, expected)
    written(figure, tmp_path)
