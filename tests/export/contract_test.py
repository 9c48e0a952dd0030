"""What all formats have in common: they translate like the run, or nothing is published."""

import contextlib
import errno
import functools
import os

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import export as exports
from keras_transformer.errors import InputError
from keras_transformer.export import (
    ExportOptions,
    Hypotheses,
    export,
    find_exporter,
)
from keras_transformer.export.comparison import source_tokens
from keras_transformer.inference import loading
from keras_transformer.inference.manifest import check_manifest, file_names
from keras_transformer.inference.scoring import Scorer, score_ids
from tests.conftest import FORMATS, PHRASES, ROOT, random_shortlist
from tests.messages import mentions


@pytest.fixture(scope="module")
def translator_of(run_directory):
    """Returns the translator with the weights of a step. It is made only once."""

    @functools.cache
    def load(step, n_best):
        run = f"{run_directory.path}@step-00000{step}"
        return loading.load_translator(run, {"decoding.n_best": n_best})

    return load


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_translates_like_its_run_and_no_other(translator_of, version_of, format):
    exporter, n_best = find_exporter(format), 2 if format == "saved_model" else 1  # of `version_of`
    translator, other = translator_of(300, n_best), translator_of(100, n_best)
    with contextlib.closing(exporter.open(version_of(format))) as engine:
        assert engine.tokenize(PHRASES) == source_tokens(translator, PHRASES)
        if exporter.comparison == "tokens":
            expected = Hypotheses.of(translator.search(tf.constant(PHRASES)))
            for own, found in zip(expected, engine.translate(PHRASES), strict=True):
                assert found.tokens() == own.tokens()
                assert len(found.scores) == translator.config.n_best
                np.testing.assert_allclose(found.scores, own.scores, atol=1e-4)
        else:
            targets = translator.tokenizer.vocabulary.encode_target([b"das Haus"] * len(PHRASES))
            scores = score_ids(Scorer(translator), PHRASES, targets)
            found = engine.log_probs(PHRASES, targets)
            np.testing.assert_allclose(found, [row.sum() for row in scores], atol=1e-3)
        with pytest.raises(InputError, match=r"sentence \d\b.*Nothing was exported"):
            exporter.compare(other, engine, PHRASES, [], ExportOptions(weights="float32"))


@pytest.mark.parametrize("format", FORMATS)
def test_a_version_is_described(run_directory, version_of, format):
    version = version_of(format)
    manifest = check_manifest(version)
    assert version.name == "1" and manifest["weights"] == "float32"
    assert manifest["versions"]["tensorflow"] == tf.__version__
    assert manifest["decoding"]["length_penalty"] == 0.6
    [member] = manifest["members"]
    assert (member["weights"], member["step"]) == ("last", 300)
    assert member["data_fingerprint"] == run_directory.data_fingerprint
    files = {*file_names(version)} - {"manifest.json"}
    needed = set(manifest["needed"])
    assert set(manifest["files"]) == files and needed and needed <= files - {"README.md"}
    assert ("README.md" in files) == find_exporter(format).has_card
    if "README.md" in files:
        text = (version / "README.md").read_text("utf-8")
        size = sum((version / name).stat().st_size for name in needed)
        assert f"Weights: float32. Files of the model: {size:,} bytes" in text
        assert not manifest["warning"] or format == "huggingface" or manifest["warning"] in text


@pytest.mark.parametrize(
    ("format", "options", "facts"),
    [
        ("onnx", {}, ("onnx", "format", "saved_model")),
        ("saved_model", {"weights": "float16"}, ("weights=float16", "bfloat16", "int8")),
        ("saved_model", {"text_signature": False}, ("saved_model", "text_signature")),
        ("litert", {"weights": "int2"}, ("weights=int2", "float16", "int8", "int4")),
        ("ctranslate2", {"license": "mit"}, ("ctranslate2", "license")),
        ("huggingface", {"shortlist": True}, ("huggingface", "shortlist")),
        ("saved_model", {"languages": ("English", "de")}, ("English", "language")),
        ("saved_model", {"license": "My licence"}, ("My licence", "license")),
        ("argos", {}, ("languages", "--languages=en,de")),
        ("cpu", {}, ("int8", "references")),
        ("cpu", {"weights": "float32", "shortlist": True}, ("shortlist", 2, "references")),
        ("saved_model", {"references": PHRASES[:1]}, (6, "sentences", 1, "references")),
    ],
)
def test_options_that_do_not_fit_are_refused(run_directory, tmp_path, format, options, facts):
    if "shortlist" in options:
        options = {**options, "shortlist": random_shortlist(run_directory, 2)}
    with pytest.raises(InputError, match=mentions(*facts)):
        export(run_directory, tmp_path, PHRASES, ExportOptions.of(**options), format=format)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def documented():
    """The exporter's module of docs/api/export.md, a format of another package."""
    page = (ROOT / "docs" / "api" / "export.md").read_text("utf-8")
    module = {}
    exec(page.split("```python\n")[1].split("```")[0], module)
    return module


@pytest.fixture
def other_format(documented, monkeypatch):
    """The documented format, installed as "numpy", with a bound for int8 weights."""
    exporter = documented["EXPORTER"]
    monkeypatch.setattr(exporter, "weights", {"float32": 0.0, "int8": 0.3}, raising=False)
    monkeypatch.setattr(exporter, "probes", lambda *_: ["a", " b"])
    monkeypatch.setattr(exports, "formats", lambda: ("numpy",))
    monkeypatch.setattr(exports, "find_exporter", lambda _: exporter)
    return exporter


@pytest.mark.usefixtures("other_format")
def test_the_format_of_the_documentation(run_directory, tmp_path):
    (tmp_path / "7").mkdir()
    result = export(run_directory, tmp_path, PHRASES, ExportOptions(PHRASES), format="numpy")
    assert result.path == tmp_path / "8"
    assert (len(result.translations), result.ties, result.warning) == (6, [], None)
    needed = {"weights.npz", "config.json", "joint.model"}
    assert {*file_names(result.path)} == needed | {"README.md", "manifest.json"}
    assert {*check_manifest(result.path)["needed"]} == needed
    card = (result.path / "README.md").read_text("utf-8")
    assert "kt.load(PATH)" in card and f"BLEU | {result.scores.bleu:.2f}" in card


def test_rounded_weights_that_lose_the_translations_are_refused(
    run_directory, tmp_path, other_format, monkeypatch
):
    options, write = ExportOptions(PHRASES, weights="int8"), other_format.write
    path = export(run_directory, tmp_path, PHRASES, options, format="numpy").path  # not rounded
    assert "100.0% are equal. BLEU below 5" in (path / "README.md").read_text("utf-8")

    def write_zeros(translator, folder, options):
        for weight in translator.transformer.weights:
            weight.assign(0 * weight)
        write(translator, folder, options)

    monkeypatch.setattr(other_format, "write", write_zeros)
    with pytest.raises(InputError, match=mentions("int8", "BLEU", "chrF", "Nothing was exported")):
        export(run_directory, tmp_path, PHRASES, options, format="numpy")
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("step", ["write", "open", "describe"])
def test_nothing_is_published_if_the_disk_is_full(
    run_directory, tmp_path, other_format, monkeypatch, step
):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(other_format, step, full)
    with pytest.raises(InputError, match=mentions("No space left on device")):
        export(run_directory, tmp_path / "export", PHRASES[:1], format="numpy")
    assert list((tmp_path / "export").iterdir()) == []


@pytest.mark.usefixtures("other_format")
def test_sentences_and_a_folder_are_needed(run_directory, tmp_path):
    with pytest.raises(InputError, match=mentions("sentences")):
        export(run_directory, tmp_path, [], format="numpy")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=mentions("file", "written")):
        export(run_directory, tmp_path / "file", PHRASES[:1], format="numpy")
