"""Compares converted models with the outputs of other toolkits in tests/fixtures.

`expected.json` has `pairs` of texts and, for each source, the `greedy` translation: its tokens, or
its text, or null if it was cut.
`expected.npz` has the `log_probs` `[B, T]` of the target tokens, their `lengths` `[B]`, including
the end token, and the `logits` `[2, T, V]` of the first two pairs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.extensions.converters import write_run
from keras_transformer.extensions.converters.converted import ConvertedModel
from keras_transformer.inference.loading import load_translator

FIXTURES = Path(__file__).parents[2] / "fixtures"


def check_probabilities(
    model: ConvertedModel,
    expected: Path,
    rows: Sequence[int],
    encode: Sequence[Callable[[str], str]] = (str, str),
) -> None:
    """Compares log-probabilities and logits of all pairs.

    Args:
        model: the converted model.
        expected: directory of the expected values.
        rows: for each row of the other toolkit's output layer, the id in the converted model.
        encode: tokenization of the source and of the target outside of the model.
    """
    pairs, _ = read_expected(expected)
    arrays = np.load(expected / "expected.npz")
    transformer, vocabulary = model.transformer(), model.vocabulary
    sources = vocabulary.encode_source([encode[0](source).encode() for source, _ in pairs])
    targets = vocabulary.encode_target([encode[1](target).encode() for _, target in pairs])
    assert [len(target) for target in targets] == arrays["lengths"].tolist()
    source_ids = tf.ragged.constant(sources, tf.int32).to_tensor(vocabulary.pad_id)
    labels = tf.ragged.constant(targets, tf.int32).to_tensor(vocabulary.pad_id)
    shifted = tf.pad(labels, [[0, 0], [1, 0]], constant_values=vocabulary.start_id)[:, :-1]
    logits = transformer({"source_ids": source_ids, "target_ids": shifted})
    log_probs = tf.gather(tf.nn.log_softmax(logits), labels, batch_dims=2).numpy()
    for i, length in enumerate(arrays["lengths"]):
        np.testing.assert_allclose(
            log_probs[i, :length], arrays["log_probs"][i, :length], rtol=0, atol=1e-5
        )
    for i in range(2):
        length = arrays["lengths"][i]
        np.testing.assert_allclose(
            logits.numpy()[i, :length][:, rows], arrays["logits"][i, :length], rtol=0, atol=1e-5
        )


def check_translations(
    model: ConvertedModel,
    expected: Path,
    run: Path,
    encode: Callable[[str], str] = str,
    decode: Callable[[str], Any] | None = None,
) -> None:
    """Writes the model as a run, and compares its greedy translations.

    Args:
        model: the converted model.
        expected: directory of the expected values.
        run: directory of the new run.
        encode: tokenization of the source outside of the model.
        decode: converts the text of a translation to the form of the expected values. None: the
            pieces are compared.
    """
    pairs, greedy = read_expected(expected)
    write_run(model, run)
    settings = {"decoding.beam_size": 1, "decoding.unknown": "allow"}
    translator = load_translator(run, settings)
    result = translator.search(tf.constant([encode(source) for source, _ in pairs]))
    found: list[Any]
    if decode is not None:
        found = [decode(text.decode()) for text in translator.texts(result)[:, 0].numpy()]
    else:
        pieces = translator.tokenizer.target_pieces(result.ids[:, 0]).numpy()
        lengths = result.lengths[:, 0].numpy() - 1  # without the end token
        found = [
            [piece.decode() for piece in row[:length]]
            for row, length in zip(pieces, lengths, strict=True)
        ]
    whole = [i for i, expected_output in enumerate(greedy) if expected_output is not None]
    assert len(whole) >= 5
    assert [found[i] for i in whole] == [greedy[i] for i in whole]


def read_expected(directory: Path) -> tuple[list[tuple[str, str]], list[Any]]:
    """Returns the pairs of texts, and the greedy translations."""
    content = json.loads((directory / "expected.json").read_text(encoding="utf-8"))
    return [(source, target) for source, target in content["pairs"]], content["greedy"]
