"""Small configurations and trained runs, and the check that bad input is refused."""

import atexit
import contextlib
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.messages import mentions

# The first half is English, the second one is its translation.
PHRASES = (
    "a small dog runs over the green field",
    "the old house stands by the river",
    "two children play with a red ball",
    "ein kleiner Hund läuft über die grüne Wiese",
    "das alte Haus steht am Fluss",
    "zwei Kinder spielen mit einem roten Ball",
)
NOUNS = {"dog": "Hund", "bird": "Vogel", "fish": "Fisch", "horse": "Pferd", "pig": "Schwein"}
VERBS = {"runs": "rennt", "sleeps": "schläft", "eats": "isst", "sings": "singt"}
PAIRS = [
    (f"the {noun} {verb} .", f"das {german} {tut} .")
    for noun, german in NOUNS.items()
    for verb, tut in VERBS.items()
]
SHARED_RUNS: set[Path] = set()  # runs that no test may change


def tiny_config(**changes: Any) -> Config:
    """Returns a configuration of a tiny model, with changes such as `model__d_ff=8`."""
    return Config().updated(
        **{
            "model__num_encoder_layers": 1,
            "model__num_decoder_layers": 2,
            "model__d_model": 16,
            "model__d_ff": 32,
            "model__num_heads": 2,
            "decoding__max_extra_tokens": 5,
            "decoding__max_source_tokens": 40,
            **changes,
        }
    )


@functools.cache
def tiny_data() -> Path:
    """Returns prepared data: `PAIRS`, the first four of them for validation. Do not change them."""
    from keras_transformer.api.training import prepare

    folder, valid = _folder() / "data", PAIRS[:4]
    options: Any = {"vocab_size": 60, "augment": {}, "num_workers": 1}
    prepare(pairs=PAIRS, output_dir=folder, valid_pairs=valid, **options)
    return folder


@functools.cache
def tiny_run(**changes: Any) -> Path:
    """Trains the tiny model for some steps, once for equal changes. Copy the run to change it."""
    from keras_transformer.training import training_run

    path = _folder() / "run"
    steps = {"training.max_steps": 4, "training.batch_tokens": 128, "training.checkpoint_steps": 2}
    training_run.train([tiny_data()], path, tiny_config().updated(steps, **changes))
    SHARED_RUNS.add(path.resolve())
    return path


def quality_model(tokenizer: Any) -> Any:
    """Returns a quality with random weights."""
    from keras_transformer.inference.quality import QualityModel

    random = np.random.default_rng(4)
    return QualityModel(
        random.normal(0, 0.3, (8, 5)).astype(np.float32),
        random.normal(0, 1, 5).astype(np.float32),
        np.ones(tokenizer.target_vocab_size, np.int32),
        np.arange(tokenizer.source_vocab_size, dtype=np.int32),
    )


@contextlib.contextmanager
def nan_weights(variable: Any) -> Iterator[None]:
    """Makes the weights of a model NaN and restores them, so that tests can share its graphs."""
    weights = np.array(variable)
    variable.assign(np.full_like(weights, np.nan))
    try:
        yield
    finally:
        variable.assign(weights)


def weekly(*values: Any) -> Any:
    """Returns a case of a parametrized test that only `--long` runs, which is every week."""
    return pytest.param(*values, marks=pytest.mark.long)


@contextlib.contextmanager
def eagerly(is_eager: bool = True) -> Iterator[None]:
    """Runs TensorFlow's functions without tracing them, which takes as long as ten calls."""
    import tensorflow as tf

    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(is_eager)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def old_vocabulary() -> Vocabulary:
    """Returns a vocabulary that reads 10³ as 103, like those before nfkc_numbers."""
    return Vocabulary(learn_vocabulary([b"10 liters"] * 9, 40, normalization="nmt_nfkc"))


def refuses(
    function: Callable[..., object], arguments: Mapping[str, Any] | tuple[Any, ...], *facts: object
) -> None:
    """Checks that a call, with names or without, raises an error of one line with all facts."""
    with pytest.raises(InputError, match=mentions(*facts)) as error:
        function(**arguments) if isinstance(arguments, Mapping) else function(*arguments)
    assert "\n" not in str(error.value)


def _folder() -> Path:
    """Returns a new folder, which is removed at the end of the process."""
    folder = Path(tempfile.mkdtemp(prefix="keras_transformer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
