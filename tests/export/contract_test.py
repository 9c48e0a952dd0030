"""What all formats have in common: they translate like the run, or nothing is published."""

import contextlib
import errno
import functools
import os

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import plugins
from keras_transformer.errors import InputError
from keras_transformer.export import ExportOptions, KerasEngine, export
from keras_transformer.inference import loading
from keras_transformer.inference.batching import string_array
from keras_transformer.inference.manifest import check_manifest, file_names
from tests.builders import refuses, weekly
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
    exporter = plugins.find("exporters", format)
    n_best = 2 if format == "saved_model" else 1  # of `version_of`
    translator, other = translator_of(300, n_best), translator_of(100, n_best)
    run = KerasEngine(translator)
    with contextlib.closing(exporter.open(version_of(format))) as engine:
        assert engine.vocabulary.fingerprint == run.vocabulary.fingerprint  # for warnings
        assert engine.symbols == run.symbols
        assert engine.tokenize(PHRASES) == run.tokenize(PHRASES)
        if exporter.comparison == "tokens":
            for own, found in zip(run.search(PHRASES), engine.search(PHRASES), strict=True):
                assert found.tokens() == own.tokens()
                assert len(found.scores) == translator.config.n_best
                np.testing.assert_allclose(found.scores, own.scores, atol=1e-4)
        else:
            targets = translator.tokenizer.vocabulary.encode_target([b"das Haus"] * len(PHRASES))
            found, expected = (one.log_probs(PHRASES, targets) for one in (engine, run))
            np.testing.assert_allclose(found, expected, atol=1e-3)
        with pytest.raises(InputError, match=r"sentence \d\b.*Nothing was exported"):
            exporter.compare(other, engine, PHRASES, [], ExportOptions(weights="float32"))


@pytest.mark.parametrize("format", FORMATS)
def test_a_loaded_export_translates_text_like_its_run(translator_of, version_of, format):
    # An engine with its own search has other length penalties. The limits of outputs are equal.
    has_search = plugins.find("exporters", format).comparison == "log_probs"
    greedy = {"decoding.length_penalty": 0, "decoding.beam_size": 1}
    extra = 5 if format == "huggingface" else None  # it also stores the longest output of the run
    settings = {**greedy, "decoding.max_extra_tokens": extra} if has_search else {}
    run = KerasEngine(translator_of(300, 2 if format == "saved_model" else 1))
    expected, engine = run.with_settings(settings), loading.load_model(version_of(format), settings)
    text = string_array([*PHRASES, "", "a\u2603b"])
    for name, counts in expected.lengths(text).items():
        np.testing.assert_array_equal(engine.lengths(text)[name], counts)
    found, outputs = engine.translate(text), expected.translate(text)
    np.testing.assert_array_equal(found["translations"], outputs["translations"])
    if not has_search:
        np.testing.assert_allclose(found["scores"], outputs["scores"], atol=1e-3)


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
    assert ("README.md" in files) == plugins.find("exporters", format).has_card
    if "README.md" in files:
        text = (version / "README.md").read_text("utf-8")
        size = sum((version / name).stat().st_size for name in needed)
        assert f"Weights: float32. Files of the model: {size:,} bytes" in text
        assert not manifest["warning"] or format == "huggingface" or manifest["warning"] in text


@pytest.mark.parametrize(
    ("format", "options", "facts"),
    [
        ("onnx", {}, ("onnx", "exporters", "saved_model")),
        ("saved_model", {"weights": "float16"}, ("weights=float16", "bfloat16", "int8")),
        ("saved_model", {"text_signature": False}, ("saved_model", "text_signature")),
        ("litert", {"weights": "int2"}, ("weights=int2", "float16", "int8", "int4")),
        ("ctranslate2", {"license": "mit"}, ("ctranslate2", "license")),
        ("ctranslate2", {"quality": True}, ("ctranslate2", "quality")),
        ("saved_model", {"quality": True}, ("quality", 100, 0)),
        ("huggingface", {"shortlist": True}, ("huggingface", "shortlist")),
        ("saved_model", {"languages": ("English", "de")}, ("English", "language")),
        ("saved_model", {"license": "My licence"}, ("My licence", "license")),
        ("argos", {}, ("languages", "languages=en,de")),
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
    monkeypatch.setattr(plugins, "find", lambda *_: exporter)
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
    own_run, tmp_path, other_format, monkeypatch
):
    options, write = ExportOptions(PHRASES, weights="int8"), other_format.write
    path = export(own_run, tmp_path / "a", PHRASES, options, format="numpy").path  # not rounded
    assert "100.0% are equal. BLEU below 5" in (path / "README.md").read_text("utf-8")

    def write_zeros(translator, folder, options):
        for weight in translator.transformer.weights:
            weight.assign(0 * weight)
        write(translator, folder, options)

    monkeypatch.setattr(other_format, "write", write_zeros)
    with pytest.raises(InputError, match=mentions("int8", "BLEU", "chrF", "Nothing was exported")):
        export(own_run, tmp_path / "a", PHRASES, options, format="numpy")
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize("step", ["write", "open", weekly("describe")])
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
    refuses(lambda: export(run_directory, tmp_path, [], format="numpy"), (), "sentences")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=mentions("file", "written")):
        export(run_directory, tmp_path / "file", PHRASES[:1], format="numpy")


@pytest.mark.parametrize(
    ("format", "weights"),
    # Tests of the other exporters write models with such weights at every change.
    [weekly("ctranslate2", "int8_float16"), weekly("litert", "float16"), weekly("argos", "int8"),
     weekly("ctranslate2", "bfloat16"), weekly("saved_model", "bfloat16"), weekly("cpu", "int4")],
)  # fmt: skip
def test_rounded_weights_are_smaller(run_directory, version_of, tmp_path, format, weights):
    given = {"references": PHRASES, "weights": weights, "max_bleu_loss": 100.0}
    if format == "argos":
        given["languages"] = ("en", "de")
    path = export(run_directory, tmp_path, PHRASES, ExportOptions(**given), format=format).path
    smaller, exact = check_manifest(path), check_manifest(version_of(format))
    assert smaller["weights"] == weights and smaller["bytes"] < exact["bytes"]
