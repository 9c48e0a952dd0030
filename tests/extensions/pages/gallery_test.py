"""The command writes all files, and reports invalid input."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.extensions.pages.gallery import (
    VisualizationOptions,
    read_sentences,
)
from keras_transformer.runs.run_directory import RunDirectory
from tests import reference
from tests.conftest import PHRASES
from tests.driver import Driver, Ended
from tests.html_page import Page
from tests.messages import mentions

PICTURES = [
    *("encoder.png", "encoder_layer_1.png"),
    *("decoder.png", "decoder_layer_1.png", "decoder_layer_2.png"),
    *("cross.png", "cross_layer_1.png", "cross_layer_2.png"),
    *("heads.png", "positions.png"),
]
LONG = "ball " * 60
DRAWN = {
    "a file": ["--source=six.en", "--target=six.de", "--max_sentences=5"],
    "a pair": [
        "--model_dir=run@step-00000200,run",
        f"--sentence={LONG}",
        f"--translation={PHRASES[3]}",
    ],
}
MISTAKES = {
    "--output_dir=new": mentions("draw"),
    "--sentence=a --output_dir=run": mentions("run", "already"),
    "--sentence=a --output_dir=six.en": mentions("six.en", "already"),
    "--sentence=a --output_dir=six.en/new": mentions("six.en/new", "written"),
    "--sentence=a --target=six.de --output_dir=new": mentions("target", "source"),
    "--translation=a --source=six.en --output_dir=new": mentions("translation", "sentence"),
    "--source=six.en --target=two.de --output_dir=new": mentions("six.en", "6", "two.de", "2"),
    "--source=none --output_dir=new": mentions("none", "missing"),
    "--source=blank --output_dir=new": mentions("blank", "sentence"),
    "--sentence=a --max_sentences=0 --output_dir=new": mentions("max_sentences", "0", "1"),
    "--sentence=a\udcff --output_dir=new": "sentence is not valid UTF-8",
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
        name: driver.run(folder, "visualize", with_model(given), "")
        for name, given in lines.items()
    }


def with_model(arguments: list[str]) -> list[str]:
    given = any(each.startswith("--model_dir=") for each in arguments)
    return arguments if given else ["--model_dir=run", *arguments]


@pytest.mark.parametrize("line", MISTAKES)
def test_mistake_is_reported_and_leaves_no_files(ended: dict[str, Ended], line: str) -> None:
    code, out, err, left = ended[line]
    assert (code, out, left) == (1, "", [])
    assert err.startswith("error: ") and re.search(MISTAKES[line], err) and err.count("\n") == 1


def test_files_of_sentences(ended: dict[str, Ended], folder: Path) -> None:
    code, out, err, _ = ended["a file"]
    # Matplotlib may print first that it builds its cache of fonts.
    assert code == 3 and err.endswith("1 pairs are left out because a side is empty.\n")
    said, fields = out.splitlines()
    assert said == "Wrote out/a file/index.html."
    files = ["index.html", "attention.html", "heads.tsv", "embeddings.html", *PICTURES]
    assert json.loads(fields) == {"output_dir": "out/a file", "files": files, "sentences": 5}
    there = folder / "out/a file"
    assert sorted(path.name for path in there.iterdir()) == sorted(files)
    assert [path.name for path in (folder / "out").iterdir() if path.name.startswith(".")] == []
    for name in files:
        beginning = (there / name).read_bytes()[:8]
        assert (beginning == b"\x89PNG\r\n\x1a\n") == name.endswith(".png"), name
    page = Page((there / "attention.html").read_text())
    assert PHRASES[0] in page.text and PHRASES[0].upper() in page.text
    kept = [phrase for phrase in PHRASES if phrase != PHRASES[1]]
    assert Page((there / "embeddings.html").read_text()).data["sentences"] == kept
    index = (there / "index.html").read_text()
    assert all(f'"{name}"' in index for name in files[1:]) and "left out" in index
    heads = np.genfromtxt(there / "heads.tsv", delimiter="\t", names=True, dtype=None)
    assert len(heads) == 2 + 4 + 4
    for name in ("diagonal", "previous", "next", "first", "last"):
        assert (heads[name] >= 0).all() and (heads[name] <= 1).all()
    assert (heads["next"][2:6] == 0).all()  # the decoder cannot see later tokens


def test_pair_of_the_first_model_of_an_ensemble(ended: dict[str, Ended], folder: Path) -> None:
    code, out, err, _ = ended["a pair"]
    remark = "The source is too long. Only its first 40 tokens are used."
    assert (code, err.splitlines()[-1]) == (3, f"Warning: {remark}")
    files = json.loads(out.splitlines()[-1])["files"]
    assert files == ["index.html", "attention.html", "heads.tsv", *PICTURES]
    assert remark in (folder / "out/a pair/index.html").read_text()

    run = RunDirectory(folder / "run")
    weights = {k: v.astype(float) for k, v in run.named_weights("step-00000200").items()}
    ids = run.tokenizer().vocabulary.encode_source([LONG.encode(), PHRASES[3].encode()])
    source, target = np.array([[*ids[0][:39], 3]]), np.array([[2, *ids[1][:-1]]])
    expected = reference.attention_weights(source, target, weights, run.config.model)
    data = Page((folder / "out/a pair/attention.html").read_text()).data["attentions"]
    for kind, each in expected.items():
        shown = np.frombuffer(base64.b64decode(data[kind]["weights"]), np.uint8) / 255
        np.testing.assert_allclose(shown, each.ravel(), atol=0.5 / 255 + 1e-5)


def test_empty_lines_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n\ntwo\nthree\nfour\n")
    (tmp_path / "b").write_text("eins\nx\n \ndrei\nvier\n")
    files = {"source": tmp_path / "a", "target": tmp_path / "b"}
    found = read_sentences(VisualizationOptions(**files, max_sentences=2))
    assert found == (["one", "three"], ["eins", "drei"], 2)
    found = read_sentences(VisualizationOptions(source=tmp_path / "a"))
    assert found == (["one", "two", "three", "four"], None, 1)
    assert read_sentences(VisualizationOptions("a")) == ([], None, 0)
