"""The format cpu: several sentences in a call, which give the tokens of the run."""

import math
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.export import ExportOptions, export
from keras_transformer.extensions.litert import passes
from keras_transformer.extensions.litert.engine import LiteRTModel
from keras_transformer.inference import Status, loading
from keras_transformer.inference.manifest import check_manifest
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import refuses, weekly
from tests.conftest import PHRASES, random_shortlist
from tests.driver import Driver
from tests.extensions.litert.first_calls_test import check_shapes

# Outputs of several blocks of the cache, an empty one, and sources of very different lengths.
TEXTS = [*PHRASES, "", "ball " * 60, "a", "dog " * 9]


@pytest.fixture(scope="module")
def model(cpu_version: Path) -> LiteRTModel:
    return LiteRTModel(cpu_version / "model.tflite", 2)


@pytest.fixture(scope="module")
def translator(run_directory: RunDirectory) -> TranslationModule:
    return loading.load_translator(run_directory, {"decoding.n_best": 2})


def test_compiled_model_is_refused(cpu_version: Path) -> None:
    given = {"path": cpu_version / "model.tflite", "low_memory": True}
    refuses(LiteRTModel, given, "cpu", "low_memory")


def test_a_batch_gives_each_sentence_the_tokens_of_the_run(
    cpu_version: Path, model: LiteRTModel, translator: TranslationModule
) -> None:
    assert model.batch_size > 1
    assert [*check_manifest(cpu_version)["signatures"]] == ["translate_batch"]
    expected = translator.translate_to_ids(tf.constant(TEXTS))
    found = model.translate_batch([model.source_ids(text) for text in TEXTS])
    assert len(found) == len(TEXTS)
    lengths = expected.lengths.numpy()
    assert lengths.max() > 32  # several blocks
    for row, result in enumerate(found):
        np.testing.assert_allclose(result.scores, expected.scores[row], atol=1e-4)
        np.testing.assert_array_equal(result.lengths, lengths[row])
        for ours, theirs, length in zip(result.ids, expected.ids[row], lengths[row], strict=True):
            np.testing.assert_array_equal(ours[:length], theirs[:length])


def test_the_library_and_the_command_load_it(
    cpu_version: Path, translator: TranslationModule, driver: Driver, tmp_path: Path
) -> None:
    outputs = translator.translate(tf.constant(PHRASES))["translations"].numpy()
    texts = [best.decode() for best, *_ in outputs]
    assert [best.text for best, *_ in kt.load(cpu_version).translate([*PHRASES])] == texts
    ended = driver.run(tmp_path, "translate", [f"--model_dir={cpu_version}"], "\n".join(PHRASES))
    found = [line.split(" ||| ")[1] for line in ended.out.splitlines()[::2]]  # the best of two
    assert (ended.code, found) == (0, texts)


def test_options_and_status_are_per_sentence(model: LiteRTModel) -> None:
    ids = model.source_ids(PHRASES[0])
    alone = [
        model.translate_ids(*arguments)
        for arguments in ((ids, 0, math.nan), (ids, 2, 0.0), (ids, -1, 99.0), ([], 0, math.nan))
    ]
    sources, limits = [ids, ids, ids, []], [0, 2, -1, 0]
    together = model.translate_batch(sources, limits, [math.nan, 0.0, 99.0, math.nan])
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one.lengths, other.lengths)
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)
        assert one.status == other.status
    changed = Status.MAX_LENGTH_CHANGED | Status.LENGTH_PENALTY_CHANGED
    assert [result.status for result in together] == [0, 0, changed, 0]
    assert model.translate_ids(ids[:-1] * 40).status == Status.SOURCE_CUT
    assert model.translate_batch([]) == []


@pytest.mark.parametrize(("format", "weights"), [("cpu", None), weekly("litert", "float32")])
def test_a_shortlist_and_int8_by_default(
    run_directory: RunDirectory, tmp_path: Path, format: str, weights: str | None
) -> None:
    shortlist = random_shortlist(run_directory, 2)
    options = ExportOptions(PHRASES, weights, max_bleu_loss=100.0, shortlist=shortlist)
    # In float32, the export compares its tokens with the tokens of the run.
    path = export(run_directory, tmp_path, PHRASES, options, format=format).path
    manifest = check_manifest(path)
    assert manifest["weights"] == ("int8" if weights is None else "float32")
    assert manifest["shortlist"] == {"frequent": 12, "translations": 2}
    check_shapes(passes.read((path / "model.tflite").read_bytes()))
    model = LiteRTModel(path / "model.tflite", 1)
    found = model.translate_batch([model.source_ids(text) for text in TEXTS])
    for text, result in zip(TEXTS, found, strict=True):
        candidates = shortlist(tf.constant([model.source_ids(text)]))
        allowed = {0, *candidates.numpy().ravel().tolist()}
        assert set(result.ids.ravel().tolist()) <= allowed
