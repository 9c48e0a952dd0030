"""The files that make a directory of SavedModels ready for TF Serving.

    EXPORT/                    its last name is the name of the model
      models.config            for --model_config_file
      batching_parameters.txt  for --batching_parameters_file
      1/                       a version
        assets.extra/tf_serving_warmup_requests
        batching_params.pbtxt  for --enable_per_model_batching_parameters
        README.md              the model card
        manifest.json

The files in EXPORT itself are never overwritten, because the operator may have changed them.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2

from keras_transformer.errors import InputError
from keras_transformer.export.model_card import TaskCard, VersionFacts, model_name, table
from keras_transformer.runs.atomic import write_text

_MODEL_BATCHING, _THREADS = (  # settings of a version, and of a server
    importlib.resources.files(__package__).joinpath(name).read_text("utf-8")
    for name in ("batching_params.txt", "batching_threads.txt")
)
_MODELS_HEADER = """\
# The models of a TF Serving process (--model_config_file); ModelServerConfig. The served versions,
# and labels such as "stable" and "canary" for them, can be changed while the server runs with
# --model_config_file_poll_wait_seconds.
"""

# Texts of the model card.
_ABOUT = """\
This TensorFlow SavedModel was made with keras_transformer. It contains the tokenizer, the model and
the search, and TF Serving can serve it directly."""
_USE = """\
    curl -d '{request}' http://localhost:8501/v1/models/{name}:predict

{signatures}

B is the number of sentences in the request. `translations` are sorted, best first. An unused place
has an empty text and the score -1e9.{usage}"""

_WARMUP_FILE = Path("assets.extra") / "tf_serving_warmup_requests"  # where TF Serving looks
_WARMUP_ROWS = 16  # sentences of the request that has sentences of all lengths

Function = Any  # a signature, as `tf.saved_model.load` returns it


def version_facts(
    folder: Path,
    task: TaskCard,
    signatures: Mapping[str, Function],
    warning: str | None = None,
) -> VersionFacts:
    """Returns the part of the model card about a SavedModel, and its signatures as JSON.

    Args:
        folder: directory of the SavedModel, inside the directory with the name of the model.
        task: texts about the model's task.
        signatures: the functions of the SavedModel by name.
        warning: a limitation of this export.
    """
    described = {name: _described(signature) for name, signature in signatures.items()}
    rows = [
        (f"`{name}`", _tensors(tensors["inputs"]), _tensors(tensors["outputs"]))
        for name, tensors in described.items()
    ]
    use = _USE.format(
        request=json.dumps(task.request),
        name=model_name(folder.parent),
        signatures=table(("signature", "inputs", "outputs"), rows),
        usage="".join(f"\n\n{text}" for text in (task.usage, warning) if text),
    )
    tags = ("transformer", "tensorflow", "saved-model", "tf-serving")
    return VersionFacts(_ABOUT, use, tags, signatures=described, warning=warning)


def _described(signature: Function) -> dict[str, Any]:
    """Returns the inputs and outputs as JSON: `{"inputs": {"text": {"dtype": ..., ...}}, ...}`."""

    def tensors(specs: Mapping[str, tf.TensorSpec]) -> dict[str, Any]:
        return {
            name: {"dtype": specs[name].dtype.name, "shape": specs[name].shape.as_list()}
            for name in sorted(specs)
        }

    _, inputs = signature.structured_input_signature
    return {"inputs": tensors(inputs), "outputs": tensors(signature.structured_outputs)}


def _tensors(tensors: Mapping[str, Mapping[str, Any]]) -> str:
    described = []
    for name, tensor in tensors.items():
        _, *rest = tensor["shape"]
        dims = ["B", *("any" if dim is None else str(dim) for dim in rest)]
        described.append(f"{name}: {tensor['dtype']}[{', '.join(dims)}]")
    return ", ".join(described)


def write_settings(folder: Path) -> None:
    """Writes the settings of batches, and `models.config`, for a version.

    Args:
        folder: the version. The files beside it are written only if they are missing.
    """
    output_dir, name = folder.parent, model_name(folder.parent)
    models = model_server_config_pb2.ModelServerConfig()
    model = models.model_config_list.config.add(
        name=name, base_path=f"/models/{name}", model_platform="tensorflow"
    )
    model.model_version_policy.latest.num_versions = 1
    (folder / "batching_params.pbtxt").write_text(_MODEL_BATCHING, encoding="utf-8")
    for file, text in (
        ("batching_parameters.txt", _MODEL_BATCHING + _THREADS),
        ("models.config", _MODELS_HEADER + text_format.MessageToString(models)),
    ):
        if not (output_dir / file).exists():
            write_text(output_dir / file, text)


# Warm-up requests: the first call of a signature is slow, because it optimizes the graph, starts
# threads and allocates memory. TF Serving sends these requests before it serves a version, and
# refuses the version if one of them fails.


def write_warmup_requests(
    path: Path,
    sentences: Sequence[str],
    signatures: Mapping[str, Function],
    length_penalty: float,
) -> None:
    """Answers and writes three requests for every signature, which TF Serving repeats.

    The requests have the shortest sentence, the longest sentence, and a batch of all lengths.

    Args:
        path: directory of a SavedModel.
        sentences: real source sentences.
        signatures: the functions of the SavedModel by name; `tokenize` makes the ids.
        length_penalty: α of the export.
    """
    known = dict.fromkeys(sentence for sentence in sentences if sentence.strip())
    ordered = sorted(known, key=lambda sentence: len(sentence.encode())) or [""]
    last = len(ordered) - 1
    spread = [ordered[i * last // (_WARMUP_ROWS - 1)] for i in range(_WARMUP_ROWS)]
    records = []
    for rows in (ordered[:1], ordered[-1:], spread):
        text = tf.constant(rows)
        tokenized = signatures["tokenize"](text=text)
        values = {
            "ids": tokenized["ids"],
            "lengths": tokenized["lengths"],
            "prefix": tf.constant([row.split(" ")[0] for row in rows]),
            "max_length": tf.zeros(len(rows), tf.int32),
            "length_penalty": tf.fill([len(rows)], length_penalty),
        }
        for name, signature in signatures.items():
            inputs = {
                key: _fitted(values.get(key, text), spec)
                for key, spec in signature.structured_input_signature[1].items()
            }
            try:
                signature(**inputs)
            except (tf.errors.OpError, TypeError, ValueError) as error:
                reason = " ".join(str(error).split())[:300]
                raise InputError(
                    f"The warm-up request of the signature {name} fails: {reason}."
                ) from error
            records.append(_record(name, inputs))
    file = path / _WARMUP_FILE
    file.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for record in records:
            writer.write(record)


def _fitted(value: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """Pads or cuts `ids` to the width of the signature."""
    if spec.shape.rank == 2:
        missing = max(spec.shape[1] - value.shape[1], 0)
        value = tf.pad(value, [[0, 0], [0, missing]])[:, : spec.shape[1]]
    return value


def _record(signature: str, inputs: Mapping[str, tf.Tensor]) -> bytes:
    """Returns a `PredictionLog` without a model name, because only the server knows it."""
    request = predict_pb2.PredictRequest()
    request.model_spec.signature_name = signature
    for name, tensor in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(tensor))
    log = prediction_log_pb2.PredictionLog(
        predict_log=prediction_log_pb2.PredictLog(request=request)
    )
    return bytes(log.SerializeToString(deterministic=True))
