"""Models that cannot be visualized are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.visible_model import open_visible_model
from tests.messages import mentions


class Older(tf.Module):
    """An export without the signature `attention`."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def translate(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        texts = tf.expand_dims(text, 1)
        return {"translations": texts, "tokens": tf.strings.length(text)}


def test_model_without_attention_is_refused(tmp_path: Path) -> None:
    older = Older()
    functions = {"serving_default": older.translate, "lengths": older.translate}
    tf.saved_model.save(older, str(tmp_path / "1"), signatures=functions)
    with pytest.raises(InputError, match=mentions("attention", "LiteRT")):
        open_visible_model(tmp_path / "1")
    with pytest.raises(InputError, match=mentions(tmp_path / "none", "there")):
        open_visible_model(tmp_path / "none")
