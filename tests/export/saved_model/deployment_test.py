"""A version ready to deploy: warm-up, batching, models.config, model card and manifest."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  the SavedModel needs its ops
import yaml
from google.protobuf import text_format
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2

from keras_transformer.errors import InputError
from keras_transformer.export.manifest import Member, Provenance, check_manifest
from keras_transformer.export.saved_model import deployment
from keras_transformer.export.saved_model.model_card import About, model_card
from keras_transformer.export.saved_model.signature_defs import (
    describe,
    read_signature_defs,
    shape_of,
)
from keras_transformer.export.saved_model.signatures import Signatures
from keras_transformer.inference import loading
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.messages import mentions
from tests.tf_serving import BatchingParameters

SENTENCES = [*PHRASES, "", "ball " * 30]
WARMUP = Path("assets.extra") / "tf_serving_warmup_requests"
SCORES = {
    "bleu": 31.4159, "signature": "nrefs:1|case:mixed", "chrf": 55.5, "chrf_signature": "nc:6",
    "sentences": 1000, "dataset": "a test set",
}  # fmt: skip


@pytest.fixture(scope="module")
def provenance(run_directory: RunDirectory) -> Provenance:
    translator = loading.load_translator(run_directory, {"decoding.n_best": 2})
    return Provenance(
        (Member(run_directory, run_directory.selected),),
        translator.config,
        "float32",
        translator.max_source_tokens,
        translator.max_output_tokens,
    )


@pytest.fixture(scope="module")
def version(
    run_directory: RunDirectory,
    exported_run: Path,
    provenance: Provenance,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A version of the run, whole. Copy it to change it."""
    path = tmp_path_factory.mktemp("deployment") / "de-en model" / "1"
    path.mkdir(parents=True)
    for name in ("assets", "variables"):
        shutil.copytree(exported_run / "1" / name, path / name)
    shutil.copy(exported_run / "1" / "saved_model.pb", path)
    served = Signatures(loading.load_translator(run_directory, {"decoding.n_best": 2}))
    about = About(("de", "en"), "cc-by-4.0", SCORES)
    name = deployment.model_name(path.parent)
    deployment.write_version_files(path, name, provenance, SENTENCES, served.by_name(), about)
    return path


def without_ids(path: Path) -> Path:
    """A SavedModel whose only input is text."""
    module = tf.Module()
    module.call = tf.function(
        lambda text: {"out": text}, input_signature=[tf.TensorSpec([None], tf.string, name="text")]
    )
    tf.saved_model.save(module, str(path), signatures=module.call)
    return path


def requests_of(path: Path) -> list[Any]:
    records = tf.data.TFRecordDataset(str(path / WARMUP)).as_numpy_iterator()
    return [prediction_log_pb2.PredictionLog.FromString(r).predict_log.request for r in records]


# Warm-up.


def test_warmup_has_requests_of_several_sizes_for_every_signature(
    version: Path, provenance: Provenance
) -> None:
    signatures = read_signature_defs(version)
    assert {"serving_default", "translate", "translate_ids", "score"} <= set(signatures)
    requests = requests_of(version)
    assert len(requests) <= 1000
    for name, signature in signatures.items():
        sizes, widths = [], set()
        for request in (r for r in requests if r.model_spec.signature_name == name):
            arrays = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
            found = {
                key: tf.dtypes.as_dtype(tensor.dtype) for key, tensor in request.inputs.items()
            }
            assert {key: dtype.name for key, dtype in found.items()} == {
                key: tensor["dtype"] for key, tensor in describe(signature.inputs).items()
            }
            (size,) = {len(array) for array in arrays.values()}
            sizes.append(size)
            if "ids" in arrays:
                assert arrays["ids"].shape[1:] == tuple(shape_of(signature.inputs["ids"])[1:])
                widths.add(arrays["lengths"].max())
            else:
                texts = arrays.get("text", arrays.get("source"))
                assert all(texts)
                widths.add(max(map(len, texts)))
            if name == "translate":
                assert not arrays["max_length"].any()
                np.testing.assert_allclose(
                    arrays["length_penalty"], provenance.decoding.length_penalty
                )
        assert sorted(sizes) == [1, 1, 16]
        assert len(widths) > 1


def test_warmup_ids_are_those_of_the_sentences(version: Path) -> None:
    requests = {
        name: [r.inputs for r in requests_of(version) if r.model_spec.signature_name == name]
        for name in ("serving_default", "translate_ids")
    }
    served = tf.saved_model.load(str(version)).signatures
    for texts, ids in zip(*requests.values(), strict=True):
        expected = served["tokenize"](text=tf.constant(tf.make_ndarray(texts["text"])))
        lengths = tf.make_ndarray(ids["lengths"])
        np.testing.assert_array_equal(lengths, expected["lengths"])
        np.testing.assert_array_equal(tf.make_ndarray(ids["ids"]), expected["ids"])
    deployment.check_warmup_requests(version, served)


def test_warmup_is_of_the_shortest_the_longest_and_all_between(version: Path) -> None:
    requests = [r for r in requests_of(version) if r.model_spec.signature_name == "embed"]
    short, long, spread = (list(request.inputs["text"].string_val) for request in requests)
    known = sorted((sentence.encode() for sentence in SENTENCES if sentence), key=len)
    assert (short, long) == ([known[0]], [known[-1]])
    assert spread[0] == short[0] and spread[-1] == long[0]
    assert set(spread) == set(known)  # there are fewer than places


def test_signatures_that_nobody_foresaw_are_warmed_up(tmp_path: Path) -> None:
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 3], tf.float32, name="weights"),
            tf.TensorSpec([None, None], tf.int32, name="ids"),
        ]
    )
    def call(weights: tf.Tensor, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"sum": tf.reduce_sum(weights, 1) + tf.cast(ids[:, 0], tf.float32)}

    module = tf.Module()
    module.call = call
    tf.saved_model.save(module, str(tmp_path), signatures=call)
    deployment.write_warmup_requests(tmp_path, ["", " "], {}, 0.6)
    shapes = [
        {k: tf.make_ndarray(v).shape for k, v in request.inputs.items()}
        for request in requests_of(tmp_path)
    ]
    assert shapes == [{"ids": (n, 1), "weights": (n, 3)} for n in (1, 1, 16)]
    deployment.check_warmup_requests(tmp_path, tf.saved_model.load(str(tmp_path)).signatures)


def test_warmup_that_a_server_would_refuse_is_found(tmp_path: Path) -> None:
    path = without_ids(tmp_path / "1")
    with pytest.raises(InputError, match=mentions("requests", "read")):
        deployment.check_warmup_requests(path, {})
    deployment.write_warmup_requests(path, PHRASES, {}, 0.6)
    ok = lambda text: {}  # noqa: E731

    def fails(text: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"out": tf.gather(text, 1)}  # there is no second text in the first request

    for signatures, message in (
        ({"serving_default": ok, "other": ok}, mentions("request", "other")),
        ({"other": ok}, mentions("request 1", "serving_default", "other")),
        ({"serving_default": fails}, mentions("request 1", "serving_default", "fails")),
        ({"serving_default": lambda ids: {}}, mentions("request 1", "unexpected keyword")),
    ):
        with pytest.raises(InputError, match=message):
            deployment.check_warmup_requests(path, signatures)
    record = requests_of(path)[0]
    log = prediction_log_pb2.PredictionLog(
        predict_log=prediction_log_pb2.PredictLog(request=record)
    )
    with tf.io.TFRecordWriter(str(path / WARMUP)) as writer:
        for _ in range(1001):
            writer.write(log.SerializeToString())
    with pytest.raises(InputError, match=mentions("request 1001", "1,000")):
        deployment.check_warmup_requests(path, {"serving_default": ok})
    (path / WARMUP).write_bytes(b"\0" * 40)
    with pytest.raises(InputError, match="corrupted record"):
        deployment.check_warmup_requests(path, {"serving_default": ok})


# What TF Serving is configured with.


def parsed(path: Path, message: Any) -> Any:
    return text_format.Parse(path.read_text(), message)


def test_batching_parameters_obey_the_rules_of_tf_serving(version: Path) -> None:
    deployment.write_base_files(version.parent)
    own = parsed(version / "batching_params.pbtxt", BatchingParameters())
    common = parsed(version.parent / "batching_parameters.txt", BatchingParameters())
    for each in (own, common):
        most, at_once = each.max_batch_size.value, each.max_execution_batch_size.value
        assert each.enable_large_batch_splitting.value
        assert (
            most >= at_once >= max(len(r.inputs["text"].string_val) for r in requests_of(version))
        )
        # The largest request has to fit into an empty queue.
        assert each.max_enqueued_batches.value * at_once >= most
        # A batch is padded up to one of these by rows of its last request, which may have none.
        assert not each.allowed_batch_sizes
    # Threads are the server's, not the model's.
    assert not own.HasField("num_batch_threads")
    assert common.num_batch_threads.value >= 1


def test_models_config_names_the_model_as_a_url_can(version: Path) -> None:
    deployment.write_base_files(version.parent)
    models = parsed(version.parent / "models.config", model_server_config_pb2.ModelServerConfig())
    (model,) = models.model_config_list.config
    assert (model.name, model.base_path) == ("de-en_model", "/models/de-en_model")
    assert model.model_platform == "tensorflow"
    assert model.model_version_policy.latest.num_versions == 1


def test_files_of_the_base_directory_are_never_overwritten(version: Path, tmp_path: Path) -> None:
    (tmp_path / "models.config").write_text("ours")
    deployment.write_base_files(tmp_path)
    assert (tmp_path / "models.config").read_text() == "ours"
    assert sorted(os.listdir(tmp_path)) == ["batching_parameters.txt", "models.config"]
    with pytest.raises(InputError, match=mentions("none/batching_parameters.txt", "No such file")):
        deployment.write_base_files(tmp_path / "none")


# The model card.


def front_matter(card: str) -> dict[str, Any]:
    assert card.startswith("---\n")
    return dict(yaml.safe_load(card.split("---\n")[1]))


def test_the_card_says_what_is_known(version: Path, run_directory: RunDirectory) -> None:
    card = (version / "README.md").read_text()
    fields = front_matter(card)
    assert fields["language"] == ["de", "en"]
    assert fields["license"] == "cc-by-4.0"
    assert (fields["pipeline_tag"], fields["metrics"]) == ("translation", ["bleu", "chrf"])
    (result,) = fields["model-index"][0]["results"]
    assert [metric["value"] for metric in result["metrics"]] == [31.42, 55.5]
    for known in (
        "translates text from de to en", "BLEU | 31.42 | `nrefs:1\\|case:mixed`",
        "On a test set, 1,000 sentences", f"`{run_directory.data_fingerprint}`",
        f"{run_directory.config.model.num_parameters():,}", "Beyond 40 tokens",
        "`last`", "step | 300", "Beam search with 4 hypotheses and length penalty 0.6",
        "Of the model: `cc-by-4.0`", "are unknown to it and are lost.",
        "translate_ids` | ids: int32[B, 40], lengths: int32[B] |",
        f"{sum(f.stat().st_size for f in (version / 'variables').iterdir()):,} bytes",
    ):  # fmt: skip
        assert known in card, known


def test_the_cards_request_is_one_that_the_model_answers(version: Path) -> None:
    card = (version / "README.md").read_text()
    (line,) = [line for line in card.splitlines() if line.startswith("    curl ")]
    assert line.endswith("http://localhost:8501/v1/models/de-en_model:predict")
    inputs = json.loads(line.split("'")[1])["inputs"]
    assert set(inputs) == set(read_signature_defs(version)["serving_default"].inputs)


def test_the_card_guesses_nothing(version: Path, provenance: Provenance) -> None:
    card = model_card(version, "name", provenance, About())
    assert set(front_matter(card)) == {"license", "pipeline_tag", "tags"}
    assert front_matter(card)["license"] == "unknown"
    for unknown in (
        "between languages, which are not known", "Scores on a test set: not known.",
        "| training | not known |", "longest source in training: not known", "not stated",
    ):  # fmt: skip
        assert unknown in card, unknown
    with pytest.raises(InputError, match=mentions("English", "language")):
        About(("English", "de"))
    with pytest.raises(InputError, match=mentions("My licence", "licence")):
        About(license="My licence")
    with pytest.raises(InputError, match=mentions("score", "bleu", "31")):
        About(evaluation={"bleu": "31"})


def test_the_card_reads_what_the_run_holds(
    version: Path, run_directory: RunDirectory, provenance: Provenance, tmp_path: Path
) -> None:
    run = RunDirectory(shutil.copytree(run_directory.path, tmp_path / "run"))
    side = {"tokens": 12_345, "max_length": 37, "unknown_rate": 0.00125}
    report = {
        "train": {"pairs": 1000, "source": side, "target": side},
        "valid": {"pairs": "many", "source": side},
        "inputs": {"train": [{"name": "/secret/train.de + train.en", "sha256": "abc"}]},
        "vocabulary": {"type": "joint"},
    }
    (run.path / "data_report.json").write_text(json.dumps(report))
    weights = run.read_weights(run.checkpoints()[-1])
    run.save_checkpoint(400, weights, {}, {"val_bleu": 20.5, "val_perplexity": float("nan")})

    def card(*names: str) -> str:
        members = tuple(Member(run, name) for name in names)
        return model_card(version, "name", replaced(provenance, members), About())

    text = card("best", "step-00000100")
    for known in (
        "1,000 pairs, 12,345 source tokens, 12,345 target tokens", "longest source in training: 37",
        "| training corpus | train.de + train.en, SHA-256 `abc` |", "SentencePiece, joint, ",
        "(0.125 % of the validation source's tokens)", "The probabilities of 2 models are averaged",
        f"{2 * run.config.model.num_parameters():,}", "step | 100",
    ):  # fmt: skip
        assert known in text, known
    assert "Validation while" not in text  # of these weights training has measured nothing
    assert "Validation while `run` was trained: BLEU 20.5.\n" in card("last")
    run.save_average("average-last-2-step-400", weights)
    averaged = card(run.selected)
    assert "step | 400" in averaged and "Validation while" not in averaged
    report["valid"]["source"] = {"unknown_rate": 0.5}
    (run.path / "data_report_2.json").write_text(json.dumps(report))
    mixed = card("last")
    assert "| training 1 | 1,000 pairs, " in mixed and "| training 2 | 1,000 pairs, " in mixed
    assert "| training 2 corpus | train.de + train.en, SHA-256 `abc` |" in mixed
    assert "(at most 50.000 % of the validation source's tokens)" in mixed
    (run.path / "data_report_2.json").unlink()
    (run.path / "data_report.json").write_text("[")
    assert "| training | not known |" in card("last")


def replaced(provenance: Provenance, members: tuple[Member, ...]) -> Provenance:
    return Provenance(
        members, provenance.decoding, "float32",
        provenance.max_source_tokens, provenance.max_output_tokens,
    )  # fmt: skip


# The manifest.


def test_the_manifest_describes_the_version(
    version: Path, run_directory: RunDirectory, provenance: Provenance
) -> None:
    manifest = check_manifest(version)
    files = {p.relative_to(version).as_posix() for p in version.rglob("*") if p.is_file()}
    assert set(manifest["files"]) == files - {"manifest.json"}
    assert {str(WARMUP), "README.md", "batching_params.pbtxt", "saved_model.pb"} <= files
    (member,) = manifest["members"]
    assert (member["weights"], member["step"]) == ("last", 300)
    assert member["data_fingerprint"] == run_directory.data_fingerprint
    assert manifest["versions"]["tensorflow"] == tf.__version__
    assert manifest["decoding"]["length_penalty"] == provenance.decoding.length_penalty
    served = manifest["signatures"]["serving_default"]
    assert served["inputs"] == {"text": {"dtype": "string", "shape": [None]}}
    assert served["outputs"]["scores"] == {"dtype": "float32", "shape": [None, 2]}


def test_every_change_of_a_version_is_noticed(version: Path, tmp_path: Path) -> None:
    path = shutil.copytree(version, tmp_path / "1")
    (weights,) = (path / "variables").glob("*.data-*")
    content = weights.read_bytes()
    for changed, expected in (
        (content[:-1] + bytes([content[-1] ^ 1]), mentions("SHA-256")),
        (None, mentions("manifest.json", "there")),
    ):
        weights.unlink() if changed is None else weights.write_bytes(changed)
        with pytest.raises(InputError, match=mentions(weights.name) + expected):
            check_manifest(path)
    weights.write_bytes(content)
    check_manifest(path)
    (path / "assets" / "more").write_text("")
    with pytest.raises(InputError, match=mentions("assets/more", "manifest.json")):
        check_manifest(path)
    manifest = path / "manifest.json"
    for text, message in (
        ("{}", mentions("KeyError")),
        ("[", mentions("JSONDecodeError")),
        ('{"format_version": 9, "files": {}}', mentions("format", "9", "1")),
    ):
        manifest.write_text(text)
        with pytest.raises(InputError, match=message):
            check_manifest(path)
    manifest.unlink()
    with pytest.raises(InputError, match=mentions("No such file")):
        check_manifest(path)


def test_what_is_no_saved_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=mentions("saved_model.pb", "No such file")):
        read_signature_defs(tmp_path)
    for content, message in ((b"\xff" * 9, mentions("SavedModel")), (b"", mentions("signatures"))):
        (tmp_path / "saved_model.pb").write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_signature_defs(tmp_path)
