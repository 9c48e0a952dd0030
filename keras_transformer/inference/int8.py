"""Matrix products in int8 on a CPU, with operations that TF Serving links.

`QuantizedMatMulWithBiasAndDequantize` multiplies uint8 by int8 with oneDNN, which packs the matrix
only once if it is a constant of the graph. A variable would be packed again in each step, which
makes a product three times as slow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.models.transformer import Transformer

# Without the instructions of VNNI, a CPU adds two products in 16 bits, which would overflow with
# larger weights: 2 * 255 * 63 < 2 ** 15.
_WEIGHT_STEPS = 63
_ZERO = 128  # uint8 that stands for 0
REQUIREMENT = (
    "int8 needs an x86-64 CPU and TensorFlow's oneDNN operations. They are on by default on CPUs "
    "with AVX512-VNNI, AVX-VNNI or AMX. On other CPUs, set TF_ENABLE_ONEDNN_OPTS=1."
)


def use_int8_products(model: EncoderDecoder) -> None:
    """Replaces all matrices of a model by int8 constants. Tables of embeddings become int8 weights.

    The model must be a `Transformer`.
    """
    if not isinstance(model, Transformer):
        raise InputError(
            f"The architecture {model.run_config.architecture} does not support the precision "
            "int8. Use another precision."
        )
    check_int8_products()
    model.replace_products(int8_product)


def check_int8_products() -> None:
    """Raises `InputError` if TensorFlow cannot multiply int8 on this CPU."""
    try:
        int8_product(np.ones((16, 16), np.float32))(tf.ones([1, 16]))
    except tf.errors.OpError as error:
        raise InputError(f"{REQUIREMENT} Or use another precision.") from error


def int8_product(matrix: npt.NDArray[np.float32]) -> Any:
    """Returns a graph function that multiplies float32 `[R, d_in]` by a matrix of int8.

    Each output has a scale. Each row of the inputs is rounded to 127 steps in each direction, up to
    its largest absolute value, so that rows do not depend on each other. A SavedModel stores a
    function once, with its constants, although several signatures call it.
    """
    largest_weight = np.abs(matrix).max(axis=0)
    scale = np.where(largest_weight > 0, largest_weight, 1) / _WEIGHT_STEPS
    weights = np.rint(matrix / scale).astype(np.int8)

    def multiply(rows: tf.Tensor) -> tf.Tensor:
        largest = tf.reduce_max(tf.abs(rows), axis=-1, keepdims=True)
        # The values are from 1 to 255. The cast truncates, so 0.5 is added for rounding.
        steps = rows * tf.math.divide_no_nan(127.0, largest) + (_ZERO + 0.5)
        outputs = tf.raw_ops.QuantizedMatMulWithBiasAndDequantize(
            a=tf.bitcast(tf.cast(steps, tf.uint8), tf.quint8),
            b=tf.constant(weights.view(tf.qint8.as_numpy_dtype), tf.qint8),
            bias=-float(_ZERO) * weights.sum(axis=0, dtype=np.float32),
            # These ranges mean that a step of either factor is 1.
            min_a=0.0, max_a=255.0, min_b=-127.0, max_b=127.0,
            min_freezed_output=0.0, max_freezed_output=0.0,
            Toutput=tf.float32, input_quant_mode="SCALED",
        )  # fmt: skip
        return outputs * largest * (scale / 127).astype(np.float32)

    signature = [tf.TensorSpec([None, matrix.shape[0]], tf.float32)]
    return tf.function(multiply, input_signature=signature, autograph=False)
