"""Pictures that can be read: sizes, labels, colours; looked at by numbers, not by eyes."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from keras_transformer.visualization.attention import summarize_heads
from keras_transformer.visualization.embeddings import project
from keras_transformer.visualization.pictures import (
    DPI,
    WEIGHTS,
    draw_embeddings,
    draw_head,
    draw_heads,
    draw_layers,
    draw_positions,
    draw_summary,
    text_width,
    write_png,
)
from tests.visualization.pairs import PREDICTED, READ, SOURCE, random_attention

# Arithmetic that went wrong, and pictures that matplotlib could not draw as asked.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "error::UserWarning")

ODD = ["▁$x^2$", "▁</script>", "&amp;", "\\frac", "▁", "_", "$", "<s>", "{", "%"]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def written(figure: Figure, path: Path) -> tuple[int, int]:
    """Writes a picture, and returns its width and height in pixels; nothing lies outside of it."""
    assert write_png(figure, path / "picture.png") == set()
    height, width, _ = matplotlib.image.imread(path / "picture.png").shape
    figure.dpi = DPI
    renderer = FigureCanvasAgg(figure).get_renderer()
    for axes in figure.axes:
        for text in axes.texts:
            box = text.get_window_extent(renderer)
            inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
            assert inside, text.get_text()
    return width, height


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_a_head_has_its_matrix_its_lines_and_all_its_tokens(kind: str, tmp_path: Path) -> None:
    pair = random_attention()
    figure = draw_head(pair, kind, 1, 0)
    weights = pair.weights(kind)[1, 0]
    lines, matrix, bar = figure.axes
    np.testing.assert_array_equal(matrix.images[0].get_array(), weights)
    assert matrix.images[0].get_clim() == (0, 1)
    (drawn,) = (each for each in lines.collections if isinstance(each, LineCollection))
    ends = {(start[1], end[1]): color[3] for (start, end), color in
            zip(drawn.get_segments(), drawn.get_colors(), strict=True)}  # fmt: skip
    assert len(ends) == (weights >= 0.01).sum()
    for (query, key), opacity in ends.items():
        assert opacity == pytest.approx(weights[int(query), int(key)])
    labels = [text.get_text() for text in matrix.texts]
    queries, keys = pair.queries(kind), pair.keys(kind)
    assert labels == [*queries, *keys] == [text.get_text() for text in lines.texts]
    expected = {"encoder": "_cat", "decoder": "<s> → _die", "cross": "_schläft → </s>"}[kind]
    assert expected in queries
    width, height = written(figure, tmp_path)
    assert 400 < width < 1500 and 200 < height < 1000
    said = " ".join(text.get_text() for text in figure.texts)
    layers = len(pair.weights(kind))
    assert f"layer 2 of {layers}, head 1 of 2" in said
    assert ("token read → the token predicted" in said) == (kind != "encoder")


@pytest.mark.parametrize("heads", [1, 2, 8, 16])
def test_the_heads_of_a_layer(heads: int, tmp_path: Path) -> None:
    pair = random_attention(heads=heads)
    figure = draw_heads(pair, "cross", 2)
    assert [axes.get_xlabel() for axes in figure.axes] == [f"head {i + 1}" for i in range(heads)]
    for head, axes in enumerate(figure.axes):
        np.testing.assert_array_equal(axes.images[0].get_array(), pair.cross[2, head])
    assert texts(figure).count("_katze → _schläft") >= 1 and "_sleep" in texts(figure)
    width, height = written(figure, tmp_path)
    assert 400 < width < 2000 and height < 1.5 * width


def test_all_layers_and_heads(tmp_path: Path) -> None:
    pair = random_attention(layers=(6, 6), heads=8)
    figure = draw_layers(pair, "encoder")
    assert len(figure.axes) == 48
    np.testing.assert_array_equal(figure.axes[8 * 5 + 3].images[0].get_array(), pair.encoder[5, 3])
    assert figure.axes[8 * 5].get_ylabel() == "layer 6"
    assert figure.axes[7].get_title() == "head 8"
    width, height = written(figure, tmp_path)
    assert width < 1600 and height < 1300


def test_long_sentences_and_odd_tokens(tmp_path: Path) -> None:
    tokens = (SOURCE + ODD) * 4 + ["▁donaudampfschifffahrtsgesellschaft"] * 4
    pair = random_attention(tokens, tokens, tokens, layers=(1, 1), heads=2)
    for figure in (draw_head(pair, "cross", 0, 1), draw_heads(pair, "decoder", 0)):
        width, height = written(figure, tmp_path)
        assert width < 3500 and height < 3500
    assert texts(draw_head(pair, "encoder", 0, 0)).count("_$x^2$") == 16
    empty = random_attention(["</s>"], ["<s>"], ["</s>"], layers=(1, 1), heads=1)
    written(draw_head(empty, "cross", 0, 0), tmp_path)


def test_signs_that_no_font_has_are_told(tmp_path: Path) -> None:
    strange = "\U0001b170"  # of Nushu
    pair = random_attention([strange, *SOURCE[1:]], READ, PREDICTED)
    assert write_png(draw_head(pair, "cross", 0, 0), tmp_path / "picture.png") == {strange}
    assert text_width([strange], 8) > 0


def test_weights_are_dark_in_even_steps() -> None:
    srgb = WEIGHTS(np.linspace(0, 1, 21))[:, :3]
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    lightness = 116 * np.cbrt(luminance) - 16  # CIELAB's L*, of what is not black
    steps = -np.diff(lightness)
    assert steps.min() > 0.75 * steps.mean() and steps.max() < 1.25 * steps.mean()
    assert lightness[0] == pytest.approx(100, abs=0.1) and lightness[-1] < 25


def test_the_summary_writes_its_numbers(tmp_path: Path) -> None:
    summary = summarize_heads([random_attention(heads=8)])
    figure = draw_summary(summary)
    assert len(figure.axes) == 9
    entropy = summary.means["decoder"]["entropy"]
    np.testing.assert_array_equal(figure.axes[3].images[0].get_array(), entropy)
    assert f"{summary.means['cross']['diagonal'][2, 7]:.2f}" in texts(figure)
    width, _ = written(figure, tmp_path)
    assert width < 1400


@pytest.mark.parametrize("learned", [False, True])
def test_positions_are_drawn_once_where_they_are_the_same(learned: bool, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("count", [3, 150])
def test_sentences_have_their_texts_where_there_is_room(count: int, tmp_path: Path) -> None:
    projection = project(np.random.default_rng(0).normal(size=(count, 5)))
    sentences = [f"{i} {'long ' * 20 if i % 2 else 'short $'}" for i in range(count)]
    figure = draw_embeddings(projection, sentences)
    (axes,) = figure.axes
    np.testing.assert_array_equal(axes.collections[0].get_offsets(), projection.points)
    for axis, share in zip(
        (axes.get_xlabel(), axes.get_ylabel()), projection.explained, strict=True
    ):
        assert f"{100 * share:.1f} % of the variance" in axis
    written(figure, tmp_path)
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) >= 3
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])
