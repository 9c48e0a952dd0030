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
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from keras_transformer.export.model_card import VersionFacts, model_name, table
from keras_transformer.export.saved_model.engine import SavedModelEngine
from keras_transformer.export.saved_model.serving_checks import ADDED_BY_TENSORFLOW
from keras_transformer.runs.atomic import write_text

# Settings of a version, of a server, and of its models.
_MODEL_BATCHING, _THREADS, _MODELS = (
    importlib.resources.files(__package__).joinpath(name).read_text("utf-8")
    for name in ("batching_params.txt", "batching_threads.txt", "models_config.txt")
)

# Texts of the model card.
_ABOUT = """\
This TensorFlow SavedModel was made with keras_transformer. It contains the tokenizer, the model and
the search, and TF Serving can serve it directly."""
_USE = """\
    curl -d '{request}' http://localhost:8501/v1/models/{name}:predict

{signatures}

B is the number of sentences in the request. `translations` are sorted, best first. A missing one
has an empty text and the score -1e9.{usage}"""

_WARMUP_FILE = Path("assets.extra") / "tf_serving_warmup_requests"  # TF Serving looks there
_WARMUP_ROWS = 16  # sentences of the request that has sentences of all lengths


def version_facts(
    folder: Path, request: Mapping[str, Any], usage: str = "", warning: str | None = None
) -> VersionFacts:
    """Returns the part of the model card about a SavedModel, and its signatures as JSON.

    The parent of `folder` has the name of the model. `request` is the body of an example request,
    and `usage` a paragraph about further signatures.
    """
    signatures = read_signatures(folder)
    rows = [
        (f"`{name}`", _tensors(tensors["inputs"]), _tensors(tensors["outputs"]))
        for name, tensors in signatures.items()
    ]
    use = _USE.format(
        request=json.dumps(request),
        name=model_name(folder.parent),
        signatures=table(("signature", "inputs", "outputs"), rows),
        usage="".join(f"\n\n{text}" for text in (usage, warning) if text),
    )
    tags = ("transformer", "tensorflow", "saved-model", "tf-serving")
    return VersionFacts(_ABOUT, use, tags, signatures=signatures, warning=warning)


def read_signatures(folder: Path) -> dict[str, Any]:
    """Returns the signatures of a SavedModel as JSON, without loading it.

    An example is `{"lengths": {"inputs": {"text": {"dtype": "string", "shape": [None]}}, ...}}`.
    """

    def tensors(infos: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: {
                "dtype": tf.as_dtype(info.dtype).name,
                "shape": tf.TensorShape(info.tensor_shape).as_list(),
            }
            for name, info in sorted(infos.items())
        }

    content = (folder / "saved_model.pb").read_bytes()
    (graph,) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    return {
        name: {"inputs": tensors(signature.inputs), "outputs": tensors(signature.outputs)}
        for name, signature in sorted(graph.signature_def.items())
        if not name.startswith(ADDED_BY_TENSORFLOW)
    }


def _tensors(tensors: Mapping[str, Mapping[str, Any]]) -> str:
    described = []
    for name, tensor in tensors.items():
        _, *rest = tensor["shape"]
        dims = ["B", *("any" if dim is None else str(dim) for dim in rest)]
        described.append(f"{name}: {tensor['dtype']}[{', '.join(dims)}]")
    return ", ".join(described)


def write_settings(folder: Path) -> None:
    """Writes the batching settings of a version, and `models.config` next to it if it lacks one."""
    output_dir = folder.parent
    (folder / "batching_params.pbtxt").write_text(_MODEL_BATCHING, encoding="utf-8")
    for file, text in (
        ("batching_parameters.txt", _MODEL_BATCHING + _THREADS),
        ("models.config", _MODELS.replace("MODEL", model_name(output_dir))),
    ):
        if not (output_dir / file).exists():
            write_text(output_dir / file, text)


# Warm-up requests: the first call of a signature is slow, because it optimizes the graph, starts
# threads and allocates memory. TF Serving sends these requests before it serves a version, and
# refuses the version if one of them fails.


def write_warmup_requests(
    engine: SavedModelEngine, sentences: Sequence[str], length_penalty: float
) -> None:
    """Answers and writes three requests for every signature, which TF Serving repeats.

    The requests have the shortest sentence, the longest sentence, and a batch of all lengths.
    """
    texts = dict.fromkeys(sentence for sentence in sentences if sentence.strip())
    ordered = sorted(texts, key=lambda text: len(text.encode())) or [""]
    last = len(ordered) - 1
    spread = [ordered[i * last // (_WARMUP_ROWS - 1)] for i in range(_WARMUP_ROWS)]
    batches = (ordered[:1], ordered[-1:], spread)
    tokenized = engine.call([("tokenize", {"text": rows}) for rows in batches])
    signatures, requests = read_signatures(engine.folder), []
    # Calls at the same time have different signatures, so that TensorFlow optimizes each once.
    for rows, tokens in zip(batches, tokenized, strict=True):
        known = {
            **{name: array.tolist() for name, array in tokens.items()},  # ids and lengths
            "prefix": [row.split(" ")[0] for row in rows],
            "max_length": [0] * len(rows),
            "length_penalty": [length_penalty] * len(rows),
        }
        for name, signature in signatures.items():
            inputs = {
                key: _fitted(known.get(key, rows), tensor["shape"])
                for key, tensor in signature["inputs"].items()
            }
            requests.append((name, inputs))
    engine.call(requests)
    file = engine.folder / _WARMUP_FILE
    file.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for name, inputs in requests:
            writer.write(_record(name, inputs))


def _fitted(value: list[Any], shape: list[int]) -> list[Any]:
    """Pads or cuts `ids` to the width of the signature."""
    if len(shape) < 2:
        return value
    return [(row + [0] * shape[1])[: shape[1]] for row in value]


def _record(signature: str, inputs: Mapping[str, list[Any]]) -> bytes:
    """Returns a `PredictionLog` without a model name, because only the server knows it."""
    request = predict_pb2.PredictRequest()
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    log = prediction_log_pb2.PredictLog(request=request)
    record = prediction_log_pb2.PredictionLog(predict_log=log)
    return record.SerializeToString(deterministic=True)
