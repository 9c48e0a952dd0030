"""The models that are compared: random ones of a preset's sizes, or exports of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cost import Sizes
from variants import Variant

from keras_transformer.config import Config, ModelConfig
from keras_transformer.errors import InputError
from keras_transformer.presets import preset
from keras_transformer.text.vocabulary import Vocabulary

SEED = 1
LEARNING_RATE = 3e-4  # constant, so that a few steps show in the loss whether an engine learns
LENGTH_PENALTY = 0.6
_IDS = ("pad", "unknown", "start", "end")


def sizes_of(model: ModelConfig) -> Sizes:
    """Returns the sizes that decide what a model costs."""
    fields = [field.name for field in dataclasses.fields(Sizes)]
    return Sizes(**{name: getattr(model, name) for name in fields})


def special_ids(vocabulary: Any) -> dict[str, int]:
    """Returns the special ids of a vocabulary, a tokenizer or a model's configuration."""
    return {name: getattr(vocabulary, f"{name}_id") for name in _IDS}


def vocabulary_settings(vocabulary: Any) -> dict[str, int]:
    """Returns the fields of `ModelConfig` that depend on a vocabulary or a tokenizer."""
    return {
        "model.source_vocab_size": vocabulary.source_vocab_size,
        "model.target_vocab_size": vocabulary.target_vocab_size,
        **{f"model.{name}_id": value for name, value in special_ids(vocabulary).items()},
    }


def joint_vocabulary(path: str | None) -> Vocabulary:
    """Loads a joint vocabulary from a folder that holds joint.model, or from such a file."""
    if path is None:
        raise InputError("Random models need a vocabulary. Give --vocabulary.")
    vocabulary = Vocabulary.load(path)
    if not vocabulary.joint:
        raise InputError(f"{path} has separate vocabularies. Give a joint vocabulary.")
    return vocabulary


def training_settings(
    variant: Variant,
    size: str,
    data_dir: str,
    batch_tokens: int,
    num_steps: int,
    *,
    device: str = "cpu",
    only_steps: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Returns the settings of `keras_engine.train`.

    Args:
        variant: the precision, XLA and the number of replicas.
        size: name of a preset.
        data_dir: prepared data.
        batch_tokens: target positions of a batch.
        num_steps: steps that will be requested.
        device: "cpu" or "gpu".
        only_steps: steps whose batches are used again and again; None for all steps.
    """
    from keras_transformer.text.tokenizer import Tokenizer  # loads TensorFlow

    configuration = {
        **vocabulary_settings(Tokenizer.load(data_dir)),
        "training.batch_tokens": batch_tokens,
        "training.schedule": "constant",
        "training.warmup_steps": 0,
        "training.learning_rate": LEARNING_RATE,
        "training.seed": SEED,
        "training.mixed_precision": variant.precision,
        "training.jit_compile": str("xla" in variant.options).lower(),
    }
    return {
        "preset": size,
        "configuration": configuration,
        "data_dir": data_dir,
        "replicas": variant.number or 1,
        "num_steps": num_steps,
        "device": device,
        "only_steps": only_steps,
    }


class RandomModels:
    """Random models of one size, and the batches that they decode.

    Args:
        size: name of a preset.
        vocabulary: a joint vocabulary.
        folder: holds the vocabulary and the batches, `batches.npz`.
        steps: number of tokens of every output.
        beam_size: hypotheses of a sentence.
        changes: further changes of the preset.
    """

    def __init__(
        self,
        size: str,
        vocabulary: Vocabulary,
        folder: Path,
        steps: int,
        beam_size: int,
        changes: Mapping[str, Any] = {},
    ):
        self.size, self.vocabulary, self.folder = size, vocabulary, folder
        self.steps, self.beam_size, self.changes = steps, beam_size, changes

    def configuration(self) -> dict[str, Any]:
        """Returns the settings that differ from the preset."""
        return {
            **self.changes,
            **vocabulary_settings(self.vocabulary),
            "decoding.beam_size": self.beam_size,
            "decoding.length_penalty": LENGTH_PENALTY,
            "decoding.min_length": self.steps,
            "decoding.max_length": self.steps,
        }

    def config(self) -> Config:
        """Returns the whole configuration."""
        return preset(self.size).updated(self.configuration())

    def settings(self, variant: Variant) -> dict[str, Any]:
        """Returns the settings of a variant's `decode_ids`."""
        common = {"batches": f"{self.folder}/batches.npz", "steps": self.steps, "seed": SEED}
        keeps_symbols = "no_symbols" not in variant.options
        if variant.engine == "litert":
            for_cpu = not {"phone", "compiled"} & set(variant.options)
            name = f"{self.size}_{variant.precision}_{for_cpu}_{keeps_symbols}.tflite"
            path, folder = self.folder / name, str(self.folder)
            write_litert(path, self.config(), folder, variant.precision, for_cpu, keeps_symbols)
            # Late, because TensorFlow takes seconds.
            from keras_transformer.extensions.litert.signatures import best_batch_size

            own = {"path": str(path), "compiled": "compiled" in variant.options}
            own["sentences_at_once"] = best_batch_size(self.beam_size)
            return {**common, **own, "pad_id": self.vocabulary.pad_id}
        if variant.is_ours:
            own = {"preset": self.size, "configuration": self.configuration()}
            own["keeps_symbols"] = keeps_symbols
            return {**common, **own, "vocabulary": str(self.folder)}
        return {
            **common,
            "sizes": dataclasses.asdict(sizes_of(self.config().model)),
            "special_ids": special_ids(self.vocabulary),
            "beam_size": self.beam_size,
            "length_penalty": LENGTH_PENALTY,
        }


def write_litert(
    path: Path, config: Config, vocabulary_dir: str, precision: str, for_cpu: bool = False,
    keeps_symbols: bool = True,
) -> None:  # fmt: skip
    """Writes a LiteRT model with random weights.

    Args:
        path: the file.
        config: configuration of the model and of the search.
        vocabulary_dir: folder that holds the vocabulary.
        precision: float32, float16, int8 or int4.
        for_cpu: write the model of keras-transformer export --format=cpu.
        keeps_symbols: whether the search keeps the symbols of spans.
    """
    import keras  # loads TensorFlow

    from keras_transformer.extensions.litert.convert import write_file
    from keras_transformer.extensions.litert.tokenizer import text_problem
    from keras_transformer.inference.translation_module import TranslationModule
    from keras_transformer.models.transformer import Transformer
    from keras_transformer.text.tokenizer import Tokenizer

    keras.utils.set_random_seed(SEED)
    transformer = Transformer(config.model, dtype="float32")
    transformer.build()
    tokenizer = Tokenizer.load(vocabulary_dir)
    tokenizer.symbol_ids = tokenizer.symbol_ids if keeps_symbols else None
    translator = TranslationModule(transformer, tokenizer, config.decoding)
    with_text = not for_cpu and text_problem(translator.tokenizer.vocabulary, []) is None
    write_file(path, translator, precision, with_text=with_text, for_cpu=for_cpu)
