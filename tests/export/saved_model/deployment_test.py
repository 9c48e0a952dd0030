"""Warm-up requests, batching parameters and models.config."""

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2

from keras_transformer.export import KerasEngine
from keras_transformer.export.saved_model import deployment
from keras_transformer.inference import loading
from keras_transformer.inference.manifest import check_manifest
from tests.conftest import PHRASES
from tests.tf_serving import read_batching_parameters

SENTENCES = [*PHRASES, "", "ball " * 30]  # of the exported run
WARMUP = Path("assets.extra") / "tf_serving_warmup_requests"


@pytest.fixture(scope="module")
def version(exported_run):
    return exported_run / "1"


def requests_of(path, signature=None):
    records = tf.data.TFRecordDataset(str(path / WARMUP)).as_numpy_iterator()
    requests = [
        prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
        for record in records
    ]
    return [r for r in requests if signature in (None, r.model_spec.signature_name)]


def test_every_signature_has_warmup_requests_of_several_sizes(version, run_directory):
    signatures = check_manifest(version)["signatures"]
    assert {"serving_default", "translate", "translate_ids", "score"} <= set(signatures)
    for name, signature in signatures.items():
        sizes, widths = [], set()
        for request in requests_of(version, name):
            arrays = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
            assert {
                key: tf.dtypes.as_dtype(tensor.dtype).name for key, tensor in request.inputs.items()
            } == {key: tensor["dtype"] for key, tensor in signature["inputs"].items()}
            (size,) = {len(array) for array in arrays.values()}
            sizes.append(size)
            if "ids" in arrays:
                assert arrays["ids"].shape[1] == signature["inputs"]["ids"]["shape"][1]
                widths.add(arrays["lengths"].max())
            else:
                texts = arrays.get("text", arrays.get("source"))
                assert all(texts)
                widths.add(max(map(len, texts)))
            if name == "translate":
                assert not arrays["max_length"].any()
                np.testing.assert_allclose(arrays["length_penalty"], 0.6)
        assert sorted(sizes) == [1, 1, 16]
        assert len(widths) > 1
    translator = loading.load_translator(run_directory)
    of_texts, of_ids = (requests_of(version, name) for name in ("serving_default", "translate_ids"))
    for texts, ids in zip(of_texts, of_ids, strict=True):
        lines = [text.decode() for text in texts.inputs["text"].string_val]
        expected = KerasEngine(translator).tokenize(lines)
        rows, lengths = (tf.make_ndarray(ids.inputs[name]) for name in ("ids", "lengths"))
        assert [row[:n].tolist() for row, n in zip(rows, lengths, strict=True)] == expected


def test_warmup_has_the_shortest_the_longest_and_all_lengths(version):
    requests = requests_of(version, "embed")
    short, long, spread = (list(request.inputs["text"].string_val) for request in requests)
    known = sorted((sentence.encode() for sentence in SENTENCES if sentence), key=len)
    assert (short, long) == ([known[0]], [known[-1]])
    assert spread[0] == short[0] and spread[-1] == long[0]
    assert set(spread) == set(known)


def test_batching_parameters_obey_the_rules_of_tf_serving(version):
    files = (version / "batching_params.pbtxt", version.parent / "batching_parameters.txt")
    own, common = (read_batching_parameters(file.read_text()) for file in files)
    for settings in (own, common):
        most, at_once = settings["max_batch_size"], settings["max_execution_batch_size"]
        assert settings["enable_large_batch_splitting"]
        largest = max(len(request.inputs["text"].string_val) for request in requests_of(version))
        assert most >= at_once >= largest
        # The largest request must fit into an empty queue.
        assert settings["max_enqueued_batches"] * at_once >= most
    # Threads belong to the server, not to a model.
    assert "num_batch_threads" not in own
    assert common["num_batch_threads"] >= 1


def test_models_config_has_a_name_for_urls_and_is_never_overwritten(tmp_path):
    version = tmp_path / "de-en model" / "1"
    version.mkdir(parents=True)
    deployment.write_settings(version)
    file = version.parent / "models.config"
    models = text_format.Parse(file.read_text(), model_server_config_pb2.ModelServerConfig())
    (model,) = models.model_config_list.config
    assert (model.name, model.base_path) == ("de-en_model", "/models/de-en_model")
    assert model.model_platform == "tensorflow"
    assert model.model_version_policy.latest.num_versions == 1
    file.write_text("ours")
    deployment.write_settings(version)
    assert file.read_text() == "ours"
    assert sorted(os.listdir(version.parent)) == ["1", "batching_parameters.txt", "models.config"]
