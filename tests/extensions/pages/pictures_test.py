"""Pictures show the right numbers and labels, and the command writes all files."""

import json
import re
import shutil
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from keras_transformer.extensions.pages import pictures
from keras_transformer.extensions.pages.attention import attention_page, summarize_heads
from keras_transformer.extensions.pages.page import render
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import refuses
from tests.conftest import PHRASES
from tests.driver import Driver
from tests.extensions.pages.attention_test import data_of
from tests.extensions.pages.pairs import SOURCE, random_attention

# Arithmetic errors, and pictures that Matplotlib could not draw as requested.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "error::UserWarning")

# Mathematics, markup, and a letter (of Nushu) that no font has.
ODD = ["▁$x^2$", "▁</script>", "&amp;", "\\frac", "▁", "_", "$", "<s>", "{", "%", "\U0001b170"]
LONG = "ball " * 60


def written(figure: Figure, path: Path) -> tuple[int, int]:
    """Writes a picture, and returns its width and height in pixels."""
    pictures.write_png(figure, path / "picture.png")
    height, width, _ = matplotlib.image.imread(path / "picture.png").shape
    return width, height


def matrices(figure: Figure) -> list[np.ndarray]:
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]


@pytest.mark.parametrize("heads", [1, 5])
def test_heads_of_a_layer(heads: int, tmp_path: Path) -> None:
    pair = random_attention(heads=heads)
    figure = pictures.draw_heads(pair, "cross", 2)
    assert [axes.get_xlabel() for axes in figure.axes] == [f"head {i + 1}" for i in range(heads)]
    np.testing.assert_array_equal(matrices(figure), pair.cross[2])
    assert {axes.images[0].get_clim() for axes in figure.axes} == {(0, 1)}
    first = figure.axes[0]
    assert [label.get_text() for label in first.get_yticklabels()] == pair.queries("cross")
    assert [label.get_text() for label in first.get_xticklabels()] == pair.keys("cross")
    width, height = written(figure, tmp_path)
    assert 150 < width < 2000 and height < 3 * width


def test_all_layers_and_heads() -> None:
    pair = random_attention(layers=(6, 6), heads=8)
    figure = pictures.draw_layers(pair, "encoder")
    np.testing.assert_array_equal(matrices(figure), pair.encoder.reshape(48, 5, 5))
    assert figure.axes[8 * 5].get_ylabel() == "layer 6"
    assert figure.axes[7].get_title() == "head 8"
    width, height = 110 * figure.get_size_inches()
    assert width < 1600 and height < 1300


def test_long_sentences_and_odd_tokens(tmp_path: Path) -> None:
    tokens = (SOURCE + ODD) * 3 + ["▁donaudampfschifffahrtsgesellschaft"] * 4
    pair = random_attention(tokens, tokens, tokens, layers=(1, 1), heads=2)
    figure = pictures.draw_heads(pair, "decoder", 0)
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == pair.keys("decoder") and labels.count("_$x^2$") == 3
    width, height = written(figure, tmp_path)
    assert width < 3500 and height < 3500
    empty = random_attention(["</s>"], ["<s>"], ["</s>"], layers=(1, 1), heads=1)
    written(pictures.draw_heads(empty, "cross", 0), tmp_path)


def test_a_decoder_without_self_attention_has_no_pictures_of_it() -> None:
    pair = random_attention()._replace(decoder=np.zeros((0, 1, 4, 4), np.float32))
    positions = {"source": np.ones((4, 8)), "target": np.ones((4, 8)), "learned": np.array(False)}
    files = {name for _, name, _ in pictures._pictures(pair, summarize_heads([pair]), positions)}
    assert files >= {"encoder.png", "cross_layer_3.png", "heads.png"}
    assert not any("decoder" in name for name in files)
    page = attention_page(pair, {})
    assert "Cross-attention" in page and "Decoder self-attention" not in page


def test_summary_of_heads() -> None:
    summary = summarize_heads([random_attention(heads=8)])
    figure = pictures.draw_summary(summary)
    expected = [
        summary.means[kind][name]
        for kind in ("encoder", "decoder", "cross")
        for name in ("entropy", "distance", "diagonal")
    ]
    for found, means in zip(matrices(figure), expected, strict=True):
        np.testing.assert_array_equal(found, means)
    limits = [axes.images[0].get_clim()[1] for axes in figure.axes]
    assert limits[0] == limits[3] == limits[6] == max(means.max() for means in expected[::3])
    assert limits[2::3] == [1, 1, 1]
    values = [text.get_text() for text in figure.axes[8].texts]
    assert values == [f"{value:.2f}" for value in expected[8].ravel()]


@pytest.mark.parametrize("learned", [False, True])
def test_learned_positions_are_drawn_for_both_sides(learned: bool) -> None:
    random = np.random.default_rng(0)
    sides = {side: random.normal(size=(9, 6)) for side in ("source", "target")}
    figure = pictures.draw_positions({**sides, "learned": np.array(learned)})
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


@pytest.fixture
def folder(run_directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a run and texts."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run_directory.path, tmp_path / "run")
    lines = "".join(f"{phrase}\n" for phrase in PHRASES)
    (tmp_path / "six.en").write_text(lines)
    (tmp_path / "six.de").write_text(lines.replace(PHRASES[1], "").upper())  # an empty line
    (tmp_path / "two.de").write_text("eins\nzwei\n")
    (tmp_path / "blank").write_text("\n \n")
    return tmp_path


@pytest.mark.parametrize(
    ("output", "options", "facts"),
    [
        ("new", {}, ("draw",)),
        ("run", {"sentence": "a"}, ("run", "already")),
        ("six.en", {"sentence": "a"}, ("six.en", "already")),
        ("six.en/new", {"sentence": "a"}, ("six.en/new", "written")),
        ("new", {"sentence": "a", "target": "six.de"}, ("target", "source")),
        ("new", {"translation": "a", "source": "six.en"}, ("translation", "sentence")),
        ("new", {"source": "six.en", "target": "two.de"}, ("six.en", "6", "two.de", "2")),
        ("new", {"source": "none"}, ("none", "missing")),
        ("new", {"source": "blank"}, ("blank", "sentence")),
    ],
)
def test_invalid_options(
    folder: Path, output: str, options: dict[str, str], facts: tuple[str, ...]
) -> None:
    refuses(pictures.visualize, {"model_dir": "run", "output_dir": output, **options}, *facts)
    assert not (folder / "new").exists()


def test_the_command_writes_all_files(driver: Driver, folder: Path) -> None:
    arguments = [
        "--model_dir=run@step-00000200,run", f"--sentence={LONG}", f"--translation={PHRASES[3]}",
        "--source=six.en", "--target=six.de", "--max_sentences=5", "--output_dir=out",
    ]  # fmt: skip
    code, out, err, _ = driver.run(folder, "visualize", arguments, "")
    remark = "The source is too long. Only its first 40 tokens are used."
    # Matplotlib may print first that it builds its cache of fonts.
    assert code == 3 and err.endswith(
        f"Warning: {remark}\nWarning: 1 pairs are left out because a side is empty.\n"
    )
    said, fields = out.splitlines()
    files = json.loads(fields)["files"]
    assert said == "Wrote out/index.html." and json.loads(fields)["sentences"] == 5
    assert {"attention.html", "embeddings.html", "heads.tsv", "cross_layer_2.png"} < {*files}
    assert sorted(path.name for path in (folder / "out").iterdir()) == sorted(files)
    for name in files:
        beginning = (folder / "out" / name).read_bytes()[:8]
        assert (beginning == b"\x89PNG\r\n\x1a\n") == name.endswith(".png"), name
    index = (folder / "out/index.html").read_text()
    assert "<dt>Model</dt><dd>run@step-00000200,run</dd>" in index
    assert all(f'"{name}"' in index for name in files[1:]) and remark in index
    kept = [phrase for phrase in PHRASES if phrase != PHRASES[1]]
    assert data_of((folder / "out/embeddings.html").read_text())["sentences"] == kept
    heads = np.genfromtxt(folder / "out/heads.tsv", delimiter="\t", names=True, dtype=None)
    assert len(heads) == 2 + 4 + 4
    assert (heads["next"][2:6] == 0).all()  # the decoder cannot see later tokens


def test_pictures_are_readable_on_a_dark_page(tmp_path: Path) -> None:
    style = render("index", pictures={}, known={}, remarks=[], links={}, measures={})
    [amount] = re.findall(r"dark\) {[^}]*img { filter: invert\((.*)\) hue-rotate\(180deg\)", style)
    written(pictures.draw_heads(random_attention(), "cross", 0), tmp_path)
    pixels = matplotlib.image.imread(tmp_path / "picture.png")[..., :3].reshape(-1, 3)
    # The filters as in Filter Effects Module Level 1, sections 9.4 and 9.7.
    weights = np.array([0.213, 0.715, 0.072])
    inverted = float(amount) + pixels * (1 - 2 * float(amount))
    shown = np.clip(2 * (inverted @ weights)[:, None] - inverted, 0, 1)
    paper = [int(part, 16) / 255 for part in ("15", "18", "1c")]  # --paper of style.css
    np.testing.assert_allclose(shown[0], paper, atol=0.03)  # a corner is white
    assert (shown @ weights).max() > 0.75, "letters are light"
    blue = shown[pixels[:, 2] - pixels[:, 0] > 0.3]
    assert len(blue) and (blue[:, 2] > blue[:, 0]).all(), "attention stays blue"


def test_pairs_with_an_empty_side_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n\ntwo\nthree\nfour\n")
    (tmp_path / "b").write_text("eins\nx\n \ndrei\nvier\n")
    pairs = [("one", "eins"), ("three", "drei"), ("four", "vier")]
    assert pictures.read_pairs(tmp_path / "a", tmp_path / "b") == (pairs, 2)
    sources = ["one", "two", "three", "four"]
    assert pictures.read_pairs(tmp_path / "a", None) == ([(text, "") for text in sources], 1)
