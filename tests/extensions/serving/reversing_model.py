"""A model that reverses text, with the same kinds of signatures as an export.

The tests of clients can also use TF Serving:

    python -m tests.extensions.serving.reversing_model build/reversing
    docker run -p 8501:8501 -v $PWD/build/reversing:/models/reversing \
        -e MODEL_NAME=reversing tensorflow/serving
    KERAS_TRANSFORMER_TF_SERVING=localhost:8501 bin/test tests/extensions/serving
"""

import sys
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import learn_vocabulary

NAME = "reversing"
SIGNATURES = "serving_default lengths symbols size kinds join no_poison".split()
TAGS = ("<2de>", "<2fr>", "<number>")


def _signature(**inputs: Any) -> Any:
    """Returns a decorator for a function of tensors: the dtype and the inner shape of each."""
    specs = [tf.TensorSpec([None, *shape], dtype, name) for name, (dtype, *shape) in inputs.items()]
    return tf.function(input_signature=specs, autograph=False)


class ReversingModel(tf.Module):
    """Signatures by the names of its methods."""

    tags: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.max_train_source_length = tf.Variable(0)
        self.tokenizer = Tokenizer(learn_vocabulary([b"abc"], 20, symbols=self.tags))

    @_signature(text=[tf.string], prefix=[tf.string])
    def translate_verbose(self, text: tf.Tensor, prefix: tf.Tensor) -> dict[str, tf.Tensor]:
        """What an export has besides its signatures."""
        return {"text": text, "prefix": prefix}

    @_signature(text=[tf.string])
    def symbols(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """The symbols of the vocabulary."""
        return {"symbols": tf.repeat(tf.constant([self.tags], tf.string), tf.size(text), axis=0)}

    @_signature(text=[tf.string])
    def serving_default(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns two translations, but one for empty text."""
        points = tf.strings.unicode_decode(text, "UTF-8")
        reversed_text = tf.strings.unicode_encode(points[:, ::-1], "UTF-8")
        second = tf.where(text == "", -1e9, -2.5)
        scores = tf.stack([tf.fill(tf.shape(text), -0.1), second], axis=1)
        return {"translations": tf.stack([reversed_text, text], axis=1), "scores": scores}

    @_signature(text=[tf.string])
    def lengths(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """The number of letters."""
        return dict.fromkeys(("tokens", "used", "unknown"), tf.strings.length(text))

    @_signature(text=[tf.string])
    def size(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """One output."""
        return {"bytes": tf.strings.length(text)}

    @_signature(values=[tf.float32, 3], number=[tf.int64], flag=[tf.bool], raw=[tf.string])
    def kinds(
        self, values: tf.Tensor, number: tf.Tensor, flag: tf.Tensor, raw: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Inputs of other dtypes, and the same as outputs."""
        return {
            "values": tf.identity(values),
            "number": tf.identity(number),
            "flag": tf.identity(flag),
            "raw_bytes": tf.identity(raw),
        }

    @_signature(ids=[tf.int32, None], lengths=[tf.int32])
    def join(self, ids: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        """Rows of numbers, with padding."""
        pieces = tf.where(tf.sequence_mask(lengths, tf.shape(ids)[1]), tf.as_string(ids), "")
        return {"text": tf.strings.reduce_join(pieces, axis=1, separator=" "), "ids": ids + 0}

    @_signature(text=[tf.string])
    def no_poison(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """A single invalid row makes the whole batch fail."""
        check = tf.debugging.Assert(tf.reduce_all(text != "poison"), ["there is poison"])
        with tf.control_dependencies([check]):
            return {"bytes": tf.strings.length(text)}


class TaggedModel(ReversingModel):
    """The same for a vocabulary with tags of target languages."""

    tags = TAGS

    @_signature(text=[tf.string])
    def tokenize(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """The words."""
        return {"tokens": tf.strings.split(text).to_tensor()}


def write_version(path: Path, warm_up: str = "warm", model: ReversingModel | None = None) -> Path:
    """Writes a model as a version; `warm_up` is the text of its warm-up request."""
    model = model or ReversingModel()
    names = [*SIGNATURES, *(["tokenize"] if model.tags else [])]
    tf.saved_model.save(model, str(path), signatures={name: getattr(model, name) for name in names})
    log = prediction_log_pb2.PredictionLog()
    request = log.predict_log.request
    request.model_spec.name, request.model_spec.signature_name = NAME, "no_poison"
    request.inputs["text"].CopyFrom(tf.make_tensor_proto([warm_up]))
    (path / "assets.extra").mkdir()
    requests = path / "assets.extra" / "tf_serving_warmup_requests"
    with tf.io.TFRecordWriter(str(requests)) as writer:
        writer.write(log.SerializeToString())
    return path


if __name__ == "__main__":
    write_version(Path(sys.argv[1]) / "1")
