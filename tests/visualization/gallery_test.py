"""All that is drawn of a model, by the command, and what a user can get wrong."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.visualization.gallery import VisualizationOptions, read_sentences
from tests import reference
from tests.conftest import PHRASES
from tests.driver import Driver, Ended
from tests.messages import mentions
from tests.visualization.pages_test import Page
from tests.visualization.pairs import random_attention

ALL = [
    "index.html",
    *("encoder.png", "encoder_layer_1.png"),
    *("decoder.png", "decoder_layer_1.png", "decoder_layer_2.png"),
    *("cross.png", "cross_layer_1.png", "cross_layer_2.png"),
    *("attention.html", "heads.tsv", "heads.png", "positions.png"),
    *("embeddings.png", "embeddings.html"),
]
ENSEMBLE = "run@step-00000200,run"
LONG = "ball " * 60
DRAWN = {
    "a file": ["--source_file=six.en", "--target_file=six.de", "--max_sentences=5"],
    "a head": [
        f"--model_dir={ENSEMBLE}",
        f"--source={LONG}",
        f"--target={PHRASES[3]}",
        "--layer=2",
        "--head=1",
    ],
}
MISTAKES = {
    "--output_dir=new": mentions("draw"),
    "--source=a --output_dir=run": mentions("run", "already"),
    "--source=a --output_dir=six.en": mentions("six.en", "already"),
    "--source=a --output_dir=six.en/new": mentions("six.en/new", "written"),
    "--source=a --target_file=six.de --output_dir=new": mentions("target_file", "source_file"),
    "--target=a --source_file=six.en --output_dir=new": mentions("target", "source"),
    "--source_file=six.en --target_file=two.de --output_dir=new": mentions(
        "six.en", "6", "two.de", "2"
    ),
    "--source_file=none --output_dir=new": mentions("none", "missing"),
    "--source_file=blank --output_dir=new": mentions("blank", "sentence"),
    "--source=a --max_sentences=0 --output_dir=new": mentions("max_sentences", "0", "1"),
    "--source=a --layer=3 --output_dir=new": mentions("layer", "3", "1", "encoder", "2", "decoder"),
    "--source=a\udcff --output_dir=new": "the source is no UTF-8",
}


@pytest.fixture(scope="module")
def folder(run_directory: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("visualize")
    shutil.copytree(run_directory.path, folder / "run")
    lines = "".join(f"{phrase}\n" for phrase in PHRASES)
    (folder / "six.en").write_text(lines)
    (folder / "six.de").write_text(lines.replace(PHRASES[1], "").upper())  # an empty line
    (folder / "two.de").write_text("eins\nzwei\n")
    (folder / "blank").write_text("\n \n")
    return folder


@pytest.fixture(scope="module")
def ended(driver: Driver, folder: Path) -> dict[str, Ended]:
    lines = {name: [*given, f"--output_dir=out/{name}"] for name, given in DRAWN.items()}
    lines |= {line: line.split() for line in MISTAKES}
    return {
        name: driver.run(folder, "visualize", ["--model_dir=run", *given], "")
        for name, given in lines.items()
    }


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_sentence_and_leaves_nothing(ended: dict[str, Ended], line: str) -> None:
    code, out, err, left = ended[line]
    assert (code, out, left) == (1, "", [])
    assert err.startswith("error: ") and re.search(MISTAKES[line], err) and err.count("\n") == 1


def test_a_file_is_drawn_whole(ended: dict[str, Ended], folder: Path) -> None:
    code, out, err, _ = ended["a file"]
    # Before it matplotlib may say that it looks for fonts, once.
    assert code == 3 and err.endswith("lines of the file that were left out, empty: 1\n")
    said, fields = out.splitlines()
    assert said == "drawn: out/a file/index.html"
    assert json.loads(fields) == {"output_dir": "out/a file", "files": ALL, "sentences": 5}
    there = folder / "out/a file"
    assert sorted(path.name for path in there.iterdir()) == sorted(ALL)
    assert [path.name for path in (folder / "out").iterdir() if path.name.startswith(".")] == []
    for name in ALL:
        beginning = (there / name).read_bytes()[:8]
        assert (beginning == b"\x89PNG\r\n\x1a\n") == name.endswith(".png"), name
    page = Page((there / "attention.html").read_text())
    assert PHRASES[0] in page.text and PHRASES[0].upper() in page.text
    kept = [phrase for phrase in PHRASES if phrase != PHRASES[1]]
    assert Page((there / "embeddings.html").read_text()).data["sentences"] == kept
    index = (there / "index.html").read_text()
    for name in ALL[1:]:
        assert f'"{name}"' in index or name == "heads.tsv"
    heads = np.genfromtxt(there / "heads.tsv", delimiter="\t", names=True, dtype=None)
    assert len(heads) == 2 + 4 + 4
    for name in ("diagonal", "previous", "next", "first", "last"):
        assert (heads[name] >= 0).all() and (heads[name] <= 1).all()
    assert (heads["next"][2:6] == 0).all()  # the decoder sees nothing that comes


def test_a_head_is_drawn_alone(ended: dict[str, Ended], folder: Path) -> None:
    code, out, err, _ = ended["a head"]
    assert (code, err.splitlines()[0]) == (
        3,
        "the source is longer; its first 40 tokens were taken",
    )
    files = json.loads(out.splitlines()[-1])["files"]
    # The encoder has one layer, and there is no file whose embeddings could be drawn.
    assert files == [
        "index.html", "decoder_layer_2_head_1.png", "cross_layer_2_head_1.png", "attention.html",
        "heads.tsv", "heads.png", "positions.png",
    ]  # fmt: skip
    assert "its first 40 tokens were taken" in (folder / "out/a head/index.html").read_text()

    # Of an ensemble the first is shown: these are its weights, by the paper's equations.
    run = RunDirectory(folder / "run")
    weights = {k: v.astype(float) for k, v in run.named_weights("step-00000200").items()}
    ids = run.tokenizer().vocabulary.encode_source([LONG.encode(), PHRASES[3].encode()])
    source, target = np.array([[*ids[0][:39], 3]]), np.array([[2, *ids[1][:-1]]])
    expected = reference.attention_weights(source, target, weights, run.config.model)
    data = Page((folder / "out/a head/attention.html").read_text()).data["attentions"]
    for kind, each in expected.items():
        shown = np.frombuffer(base64.b64decode(data[kind]["weights"]), np.uint8) / 255
        np.testing.assert_allclose(shown, each.ravel(), atol=0.5 / 255 + 1e-5)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"layer": 0}, mentions("layer", "0", "encoder", "1", "2", "decoder", "3")),
        ({"layer": 4}, mentions("layer", "4", "encoder", "1", "2", "decoder", "3")),
        ({"layer": 3, "head": 3}, mentions("head", "3", "1", "2")),
        ({"head": -1}, mentions("head", "-1", "1", "2")),
    ],
)
def test_layers_and_heads_that_are_not_there(wanted: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        VisualizationOptions("a", **wanted).check_heads(random_attention())
    with pytest.raises(InputError, match=mentions("layer", "5", "1", "4")):
        VisualizationOptions("a", layer=5).check_heads(random_attention(layers=(4, 4)))


def test_sentences_of_a_file_are_its_first_full_lines(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n\ntwo\nthree\nfour\n")
    (tmp_path / "b").write_text("eins\nx\n \ndrei\nvier\n")
    found = read_sentences(
        VisualizationOptions(
            source_file=tmp_path / "a", target_file=tmp_path / "b", max_sentences=2
        )
    )
    assert found == (["one", "three"], ["eins", "drei"], 3, 2)
    found = read_sentences(VisualizationOptions(source_file=tmp_path / "a"))
    assert found == (["one", "two", "three", "four"], None, 4, 1)
    assert read_sentences(VisualizationOptions("a")) == ([], None, 0, 0)
