"""SavedModel: text in, translations out, for TF Serving and for any program with TensorFlow.

The signatures are those of `signatures.Signatures`. Weights and products are float32, or
bfloat16 where that is asked for; scores are float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.export import Exported
from keras_transformer.export.comparison import Comparison, compare
from keras_transformer.export.provenance import Member, Provenance
from keras_transformer.export.quantization_check import check_loss, check_references
from keras_transformer.export.saved_model import serving_checks
from keras_transformer.export.saved_model.deployment import (
    model_name,
    write_base_files,
    write_version_files,
)
from keras_transformer.export.saved_model.model_card import About
from keras_transformer.export.saved_model.pruning import prune
from keras_transformer.export.saved_model.signatures import Signatures
from keras_transformer.export.saved_model.warmup import check_warmup_requests
from keras_transformer.inference.loading import load_model, load_translator, members, trained_tokens
from keras_transformer.inference.translate import translate_lines
from keras_transformer.inference.translator import Translator
from keras_transformer.paper.parsing.symbol_vocabulary import is_parser
from keras_transformer.runs.atomic import write_version
from keras_transformer.runs.run_directory import RunDirectory

# Of a lower precision than float32: a rounding changes words of some sentences, for better
# as often as for worse.
MAX_BLEU_LOSS = 0.1


def export(
    run: str | RunDirectory,
    output_dir: Path,
    sentences: Sequence[str],
    settings: Mapping[str, Any] | None = None,
    *,
    precision: str = "float32",
    references: Sequence[str] | None = None,
    max_bleu_loss: float = MAX_BLEU_LOSS,
    about: About | None = None,
) -> Exported:
    """Writes the next version under `output_dir`; the arguments are `export.export`'s.

    It gets its number only when nothing was found in it that a server cannot run, when another
    process has read it and found it to translate as the run does in the same precision,
    and when all its warm-up requests were answered.
    """
    translator = load_translator(run, settings, precision=precision)
    rounding = None if precision == "float32" else f"precision is {precision}"
    check_references(sentences, references, rounding)
    provenance = Provenance(
        tuple(Member(*member) for member in members(run)),
        translator.config,
        precision,
        translator.max_source_tokens,
        translator.max_output_tokens,
    )

    def write(path: Path) -> tuple[Comparison, metrics.Scores | None]:
        _save(translator, trained_tokens(run), path)
        serving_checks.check(path)
        comparison = compare(translator, path, sentences)
        scores = None
        if references is not None:
            scores = metrics.evaluate(comparison.translations, references)
            if precision != "float32":
                exact = _translations(run, settings, sentences)
                best = metrics.evaluate(exact, references)
                check_loss(scores, best, precision, max_bleu_loss)
            if is_parser(translator.tokenizer.vocabulary):
                scores = None  # BLEU of symbols says nothing of trees to anyone
        said = _with_scores(about or About(), scores)
        _make_ready(path, model_name(output_dir), provenance, sentences, said)
        write_base_files(output_dir)
        return comparison, scores

    path, (comparison, scores) = write_version(output_dir, write)
    return Exported(path, len(sentences), comparison.ties, scores=scores)


def _make_ready(
    path: Path, name: str, provenance: Provenance, sentences: Sequence[str], about: About
) -> None:
    """Adds what a server and its people look for, and asks the model all of the warm-up."""
    signatures = tf.saved_model.load(str(path)).signatures
    write_version_files(path, name, provenance, sentences, signatures, about)
    check_warmup_requests(path, signatures)


def _with_scores(about: About, scores: metrics.Scores | None) -> About:
    """Returns what is said of the model, and how it did on the sentences if nothing else is."""
    if scores is None:
        return about
    return dataclasses.replace(about, evaluation={**dataclasses.asdict(scores), **about.evaluation})


def _translations(
    run: str | RunDirectory, settings: Mapping[str, Any] | None, sentences: Sequence[str]
) -> list[str]:
    """Returns the best translations by the run in float32."""
    model = load_model(run.path if isinstance(run, RunDirectory) else run, settings)
    return [best.text for best, *_ in translate_lines(model, sentences)]


def _save(translator: Translator, longest: int | None, path: Path) -> None:
    served = Signatures(translator)
    module = tf.Module(name="translator")
    # Functions, for whoever loads the model in Python: their outputs have no fixed shape.
    module.search = translator.search
    module.translate_in_detail = translator.translate_in_detail
    module.positions = served.inspection.positions
    module.tokenizer = translator.tokenizer
    # The variables alone, not the layers: nothing of Keras is left in what is saved.
    module.weights = [
        variable.value for each in translator.transformers for variable in each.weights
    ]
    # 0 where it is not known.
    module.trained_tokens = tf.Variable(longest or 0, trainable=False, name="trained_tokens")
    # Gradients are for training. SiLU's refers to nodes that pruning takes out.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    try:
        tf.saved_model.save(module, str(path), signatures=served.by_name(), options=options)
    except (OSError, tf.errors.OpError) as error:  # TensorFlow writes through ops of its own
        reason = str(error).strip().splitlines()[-1]
        raise InputError(f"{path.parent} cannot be written ({reason}); expected room") from error
    prune(path)
