"""LiteRT: `model.tflite`, one file that translates where there is neither Python nor TensorFlow.

Its signatures are those of `litert_signatures`. `translate_ids` is made of LiteRT's own
operations alone; `translate` has the tokenizer within, by two operations of tensorflow-text,
where the vocabulary is one that these segment as SentencePiece does. The search is the
SavedModel's, with its cache, for one sentence at a time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from tqdm import tqdm

from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.export import Exported
from keras_transformer.export.comparison import Found, check_ties, difference
from keras_transformer.export.litert import flatbuffer, passes, weights
from keras_transformer.export.litert.signatures import LiteRTSignatures
from keras_transformer.export.manifest import write_manifest
from keras_transformer.export.provenance import Member, Provenance
from keras_transformer.export.quantization_check import check_loss, check_references
from keras_transformer.inference.litert import About, LiteRTModel, append_archive
from keras_transformer.inference.loading import load_translator, members, trained_tokens
from keras_transformer.inference.translate import batches
from keras_transformer.inference.translator import Translator
from keras_transformer.runs.atomic import write_version
from keras_transformer.runs.run_directory import RunDirectory

QUANTIZATIONS = weights.QUANTIZATIONS
# What a rounding may cost in BLEU: it changes words of some sentences, for better as for worse.
MAX_BLEU_LOSS = {"float16": 0.1, "int8": 0.3}

TEXT_OPS = {"TFText>FastSentencepieceTokenize", "TFText>FastSentencepieceDetokenize"}
_WITHOUT_TEXT = (
    "the vocabulary is none of unigram pieces without byte fallback, and LiteRT's tokenizer would "
    "segment it otherwise: there is the signature translate_ids alone, and the .model file for it"
)
_EXAMPLE = Path(__file__).with_name("example.py")


class _Translated(NamedTuple):
    """What the export makes of all sentences."""

    ties: list[str]
    translations: list[str]  # the best of each


def export(
    run: str | Path | RunDirectory,
    output_dir: Path,
    sentences: Sequence[str],
    settings: Mapping[str, Any] | None = None,
    *,
    quantization: str = "none",
    references: Sequence[str] | None = None,
    max_bleu_loss: float | None = None,
) -> Exported:
    """Writes the next version under `output_dir`; the arguments are `export.export`'s.

    It gets its number only when ai-edge-litert has run it on all sentences. In float32 it has
    to find the run's tokens; otherwise its BLEU may be lower by `max_bleu_loss` at most.

    Raises:
        InputError: for a quantization that there is not, or without references that it could
            be judged by; for outputs that are drawn; for an export that does not translate as
            the run does.
    """
    if quantization not in QUANTIZATIONS:
        raise InputError(
            f"quantization is {quantization!r}; expected one of {', '.join(QUANTIZATIONS)}"
        )
    rounding = None if quantization == "none" else f"quantization is {quantization}"
    check_references(sentences, references, rounding)
    if quantization == "none" and max_bleu_loss is not None:
        raise InputError(
            f"quantization is none, which finds the run's own tokens, and max_bleu_loss is "
            f"{max_bleu_loss:g}; expected no such bound"
        )
    translator = load_translator(run, settings)
    if translator.config.sample:
        raise InputError(
            "decoding.sample draws outputs, for which LiteRT has no numbers that can be repeated; "
            "expected a search (decoding.sample=false)"
        )
    bound = MAX_BLEU_LOSS.get(quantization) if max_bleu_loss is None else max_bleu_loss
    provenance = Provenance(
        tuple(Member(*member) for member in members(run)),
        translator.config,
        "float32" if quantization == "none" else quantization,
        translator.max_source_tokens,
        translator.max_output_tokens,
    )

    def write(path: Path) -> tuple[_Translated, metrics.Scores | None]:
        path.mkdir()
        model = convert(translator, quantization)
        file = path / "model.tflite"
        file.write_bytes(flatbuffer.write(model))
        about = describe(translator, model, trained_tokens(run))
        append_archive(file, about, translator.tokenizer.vocabulary)
        own = _by_run(translator, sentences)
        translated = _compared(own, file, sentences, exact=quantization == "none")
        if about.has_text:
            _check_text(file, translated, sentences)
        scores = None
        if references is not None:
            scores = metrics.evaluate(translated.translations, references)
            if bound is not None:
                texts = [translator.tokenizer.vocabulary.target_text(f.tokens(0)[0]) for f in own]
                exact = metrics.evaluate(texts, references)
                check_loss(scores, exact, quantization, bound)
        translator.tokenizer.save(path)
        shutil.copyfile(_EXAMPLE, path / "example.py")
        write_manifest(path, provenance, flatbuffer.describe_signatures(model))
        return translated, scores

    path, (translated, scores) = write_version(output_dir, write)
    remark = None if translator.tokenizer.vocabulary.is_plain_unigram else _WITHOUT_TEXT
    return Exported(path, len(sentences), translated.ties, scores=scores, remark=remark)


def describe(translator: Translator, model: Any, longest: int | None) -> About:
    """Returns what a file says of its model, whose longest source of training is given."""
    return About(
        n_best=translator.config.n_best,
        max_source_tokens=translator.max_source_tokens,
        max_source_bytes=translator.config.max_source_bytes,
        max_output_tokens=translator.max_output_tokens,
        trained_tokens=longest,
        has_text="translate" in flatbuffer.ops_by_signature(model),
    )


def convert(translator: Translator, quantization: str) -> Any:
    """Returns the model, as `flatbuffer.write` takes it.

    Args:
        translator: what becomes the model.
        quantization: one of `QUANTIZATIONS`.

    Raises:
        InputError: for operations that LiteRT has not.
    """
    with_text = translator.tokenizer.vocabulary.is_plain_unigram
    signatures = LiteRTSignatures(translator, with_text)
    module = tf.Module()
    module.weights = [
        variable.value for each in translator.transformers for variable in each.weights
    ]
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures=signatures.by_name())
        converter = tf.lite.TFLiteConverter.from_saved_model(
            folder, signature_keys=[*signatures.by_name()]
        )
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        converter.allow_custom_ops = True  # so that `check_ops` sees and names them
        model = flatbuffer.read(converter.convert())
    passes.look_up_embeddings(model)
    passes.share(model)
    passes.put_first(model, b"translate_ids")
    weights.quantize(model, quantization)
    check_ops(model)
    return model


def check_ops(model: Any) -> None:
    """Looks for operations that a LiteRT runtime has not.

    Raises:
        InputError: for any but LiteRT's own, of which `translate` may have two more.
    """
    for name, ops in flatbuffer.ops_by_signature(model).items():
        allowed = TEXT_OPS if name == "translate" else set()
        others = sorted(op.name for op in ops if op.custom and op.name not in allowed)
        if others:
            raise InputError(
                f"the signature {name} needs {', '.join(others)}, which LiteRT has not; expected "
                "a search of its own operations, so nothing was exported"
            )


def _by_run(translator: Translator, sentences: Sequence[str]) -> list[Found]:
    """Returns what the run finds for each sentence."""
    results: dict[int, Found] = {}
    for batch in batches(sentences):
        result = translator.search(tf.constant([sentences[i] for i in batch]))
        arrays = [each.numpy() for each in (result.ids, result.lengths, result.scores)]
        for row, index in enumerate(batch):
            results[index] = Found(*(array[row : row + 1] for array in arrays))
    return [results[index] for index in range(len(sentences))]


def _compared(
    own: Sequence[Found], file: Path, sentences: Sequence[str], exact: bool
) -> _Translated:
    """Translates all sentences by the export; where it is `exact`, the tokens are the run's.

    Raises:
        InputError: for the first sentence whose scores differ by more than rounding.
    """
    model = LiteRTModel(file)
    ties, translations = [], []
    pairs = list(zip(own, sentences, strict=True))
    for number, (theirs, sentence) in enumerate(tqdm(pairs, "comparing", disable=None), start=1):
        found = model.translate_ids(model.source_ids(sentence))
        translations.append(model.texts(found)[0])
        if exact:
            ours = Found(found.ids[None], found.lengths[None], found.scores[None])
            tie = difference(theirs, ours, 0, f"sentence {number}", sentence)
            ties += [tie] if tie else []
    check_ties(ties, len(sentences))
    return _Translated(ties, translations)


def _check_text(file: Path, translated: _Translated, sentences: Sequence[str]) -> None:
    """Compares the signature with the tokenizer within with that for ids.

    Raises:
        InputError: for a sentence that it translates otherwise.
    """
    model = LiteRTModel(file, text_in_graph=True)
    for number, sentence in enumerate(sentences, start=1):
        found = model.translate(sentence)
        text = found[0].text if found else ""
        if text != translated.translations[number - 1]:
            raise InputError(
                f"the signature translate translates sentence {number} ({sentence[:60]!r}) as "
                f"{text[:60]!r}, and translate_ids as {translated.translations[number - 1][:60]!r};"
                " expected the same, so nothing was exported"
            )
