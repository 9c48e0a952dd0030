"""A model read from disk and used: lines translated, test sets scored, checkpoints averaged."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  a SavedModel needs its ops
from tqdm import tqdm

from keras_transformer import evaluation
from keras_transformer.checkpoints import Arrays
from keras_transformer.decoding.beam import NOTHING
from keras_transformer.errors import InputError
from keras_transformer.evaluation import Scores
from keras_transformer.model import Transformer
from keras_transformer.run_directory import RunDirectory
from keras_transformer.translator import Translator

# A batch has at most so many lines, and so many bytes once they are padded to the longest:
# the cache of the search grows with both.
_BATCH_LINES = 64
_BATCH_BYTES = 16_384


class Translation(NamedTuple):
    """One translation of a line."""

    text: str
    score: float  # log P / length penalty


class Model(NamedTuple):
    """A translator read from disk.

    Attributes:
        place: where it was read.
        n_best: translations of each line.
        translate: text string `[B]` → `translations` string `[B, K]` and `scores`
            float32 `[B, K]`, as `Translator.translate`.
        lengths: text string `[B]` → `tokens` and `used` int32 `[B]`, as
            `Translator.lengths`.
        owner: what holds the weights.
    """

    place: str
    n_best: int
    translate: Callable[..., dict[str, tf.Tensor]]
    lengths: Callable[..., dict[str, tf.Tensor]]
    owner: Any


def load_model(model_dir: str | Path, settings: Mapping[str, Any] | None = None) -> Model:
    """Reads a run directory (its selected weights) or a SavedModel, told apart by content.

    Args:
        model_dir: a run directory, a SavedModel, or a directory of numbered
            SavedModels, of which the highest is taken.
        settings: what differs from the run's `decoding.` configuration, as in
            `{"decoding.beam_size": 1}`; a SavedModel takes none.

    Raises:
        InputError: where there is neither, or for settings that do not fit.
    """
    path = Path(model_dir)
    if RunDirectory.is_run(path):
        translator = load_translator(RunDirectory(path), settings)
        n_best = translator.config.n_best
        return Model(str(path), n_best, translator.translate, translator.lengths, translator)
    if path.is_dir():
        versions = [int(p.parent.name) for p in path.glob("*/saved_model.pb") if _is_version(p)]
        if not (path / "saved_model.pb").is_file() and versions:
            path = path / str(max(versions))
    if not (path / "saved_model.pb").is_file():
        what = "neither a run directory nor a SavedModel" if path.exists() else "not there"
        raise InputError(f"{path} is {what}; expected what bin/train.py or bin/export.py writes")
    if settings:
        raise InputError(
            f"{path} is a SavedModel, in which {' and '.join(settings)} were fixed at export; "
            "expected none of them, or the run directory"
        )
    return _load_saved_model(path)


def _is_version(path: Path) -> bool:
    return path.parent.name.isdecimal() and path.parent.name.isascii()


def _load_saved_model(path: Path) -> Model:
    try:
        loaded = tf.saved_model.load(str(path))
    except (OSError, ValueError, KeyError, tf.errors.OpError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read as a SavedModel ({reason})") from error
    try:
        translate, lengths = loaded.signatures["serving_default"], loaded.signatures["lengths"]
        n_best = int(translate.structured_outputs["translations"].shape[1])
    except (AttributeError, KeyError) as error:
        raise InputError(
            f"{path} is a SavedModel without {error}; expected what bin/export.py writes"
        ) from error
    return Model(str(path), n_best, translate, lengths, loaded)


def load_translator(run: RunDirectory, settings: Mapping[str, Any] | None = None) -> Translator:
    """Returns a translator in float32 with the run's selected weights.

    Args:
        run: the run.
        settings: what differs from its `decoding.` configuration.

    Raises:
        InputError: for settings that do not fit, or weights that are not there.
    """
    for name in settings or {}:
        if not name.startswith("decoding."):
            raise InputError(
                f"{name} cannot be changed after training; expected settings of decoding"
            )
    config = run.config.updated(settings or {})
    weights = run.selected_weights()
    transformer = Transformer(config.model, dtype="float32")
    transformer.build()
    transformer.assign_weights(weights)
    return Translator(transformer, run.tokenizer(), config.decoding)


def batches(lines: Sequence[str]) -> list[list[int]]:
    """Returns the indices of `lines` in batches of similar lengths, the longest lines first."""
    sizes = [len(line.encode()) for line in lines]
    result: list[list[int]] = []
    for index in sorted(range(len(lines)), key=lambda i: -sizes[i]):
        batch = result[-1] if result else []
        full = len(batch) == _BATCH_LINES
        if not batch or full or (len(batch) + 1) * sizes[batch[0]] > _BATCH_BYTES:
            result.append([index])
        else:
            batch.append(index)
    return result


def translate_lines(model: Model, lines: Sequence[str]) -> list[list[Translation]]:
    """Translates lines; each result, in their order, is best first and never empty."""
    results: list[list[Translation]] = [[] for _ in lines]
    with _progress(len(lines)) as bar:
        for batch in batches(lines):
            outputs = model.translate(text=tf.constant([lines[i] for i in batch]))
            texts, scores = outputs["translations"].numpy(), outputs["scores"].numpy()
            for index, row, row_scores in zip(batch, texts, scores, strict=True):
                results[index] = [
                    Translation(text.decode("utf-8", "replace"), float(score))
                    for text, score in zip(row, row_scores, strict=True)
                    if score > NOTHING / 2
                ] or [Translation("", 0.0)]  # a model whose logits are no numbers finds nothing
                bar.update(1)
    return results


def _progress(total: int) -> tqdm:
    return tqdm(total=total, unit="line", disable=not sys.stderr.isatty(), dynamic_ncols=True)


def remarks(model: Model, lines: Sequence[str]) -> list[str]:
    """Returns one sentence for each line that has nothing to translate, or that is cut."""
    sentences = []
    for start in range(0, len(lines), 1024):
        counts = model.lengths(text=tf.constant(lines[start : start + 1024]))
        pairs = zip(counts["tokens"].numpy(), counts["used"].numpy(), strict=True)
        for number, (tokens, used) in enumerate(pairs, start=start + 1):
            if tokens == 1:  # the end token alone
                sentences.append(f"line {number} is empty, and so is its translation")
            elif used < tokens:
                sentences.append(
                    f"line {number} has {tokens:,} tokens; the first {used:,} were translated "
                    "(decoding.max_source_tokens)"
                )
    return sentences


def decode_lines(data: bytes, name: str) -> list[str]:
    r"""Returns the lines of `data`, which end at \n alone, without a CR before it and a BOM.

    Raises:
        InputError: for a line that is no UTF-8; `name` is named.
    """
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1]:
        lines.pop()  # what follows the last line's end is no line
    decoded = []
    for number, line in enumerate(lines, start=1):
        try:
            decoded.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError as error:
            raise InputError(
                f"{name}, line {number}: byte 0x{line[error.start]:02x} at byte {error.start} of "
                f"the line is not UTF-8 ({error.reason}); expected UTF-8 text"
            ) from None
    return decoded


def format_translations(model: Model, results: Sequence[Sequence[Translation]]) -> str:
    """Returns one line a result, or as Moses writes n-best lists: `index ||| text ||| score`.

    The index counts the input's lines from 0.
    """
    if model.n_best == 1:
        return "".join(f"{best.text}\n" for best, *_ in results)
    return "".join(
        f"{index} ||| {translation.text} ||| {translation.score:.4f}\n"
        for index, result in enumerate(results)
        for translation in result
    )


@contextlib.contextmanager
def output_file(path: str | Path | None) -> Iterator[BinaryIO]:
    """Gives a file that gets the name `path` once the block has ended without an error.

    Without a path it is standard output; a device or a pipe is written as it is.
    """
    if path is None:
        yield sys.stdout.buffer
        return
    path = Path(path)
    special = path.exists() and not path.is_file()
    partial = path if special else path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with partial.open("wb") as file:
            yield file
        if not special:
            partial.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})") from error
    finally:
        if not special:
            partial.unlink(missing_ok=True)


class Evaluation(NamedTuple):
    """A test set translated and scored."""

    scores: Scores
    hypotheses: list[str]
    seconds: float  # of translating

    def summary(self) -> str:
        """Returns the scores in a few words, for a person."""
        s = self.scores
        return (
            f"BLEU {s.bleu:.2f}, chrF {s.chrf:.2f}, exact matches {s.exact_match:.1%} of "
            f"{s.sentences:,} sentences, translated in {self.seconds:.1f} s "
            f"({s.sentences / max(self.seconds, 1e-9):,.0f} a second)"
        )


def evaluate(
    model: Model,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Evaluation:
    """Translates `sources` and scores the best translations against `references`.

    Raises:
        InputError: for different numbers of lines, none, or an unknown tokenizer,
            each before anything is translated.
    """
    if len(sources) != len(references):
        raise InputError(
            f"the source has {len(sources):,} lines and the reference {len(references):,}; "
            "expected the same number"
        )
    evaluation.evaluate(references[:1], references[:1], tokenize=tokenize, lowercase=lowercase)
    start = time.perf_counter()
    hypotheses = [best.text for best, *_ in translate_lines(model, sources)]
    seconds = time.perf_counter() - start
    scores = evaluation.evaluate(hypotheses, references, tokenize=tokenize, lowercase=lowercase)
    return Evaluation(scores, hypotheses, seconds)


def average_checkpoints(
    run: RunDirectory, last: int | None = None, *, best: int | None = None
) -> str:
    """Averages the weights (no EMA) of checkpoints, saves the mean and selects it.

    Args:
        run: the run.
        last: how many of the newest (the paper, section 6.1, takes 5, of big 20).
        best: or how many of the best by `training.best_metric`.

    Returns:
        The average's name, `average-last-N-step-S` or `average-best-N-step-S`, where
        S is the newest step of them.

    Raises:
        InputError: for fewer checkpoints than that, a number below 1, both
            numbers, or a damaged checkpoint.
    """
    if last is not None and best is not None:
        raise InputError(
            f"the last {last} and the best {best} checkpoints cannot both be averaged; expected "
            "one of the two"
        )
    kind, count = ("best", best) if best is not None else ("last", last or 0)
    if count < 1:
        raise InputError(f"the {kind} {count} checkpoints cannot be averaged; expected at least 1")
    checkpoints = run.best_checkpoints() if kind == "best" else run.checkpoints()[::-1]
    if len(checkpoints) < count:
        with_metric = f" with a validation {run.config.training.best_metric}" * (kind == "best")
        raise InputError(
            f"{run.path} has {len(checkpoints)} checkpoints{with_metric}; expected the {count} to "
            "average"
        )
    chosen = checkpoints[:count]
    name = f"average-{kind}-{count}-step-{max(checkpoint.step for checkpoint in chosen)}"
    run.save_average(name, average_weights(run.read_weights(checkpoint) for checkpoint in chosen))
    return name


def average_weights(many: Iterable[Arrays]) -> Arrays:
    """Returns the mean of sets of weights, taken in float64 and in the dtypes of the last.

    Args:
        many: arrays by path, in each the same paths and shapes; only one set at a
            time is in memory beside their sum.

    Raises:
        InputError: for no weights, or those of different models.
    """
    total: Arrays = {}
    weights: Arrays = {}
    count = 0
    for weights in many:
        if not count:
            total = {path: np.zeros(weight.shape) for path, weight in weights.items()}
        first, other = ({(p, each[p].shape) for p in each} for each in (total, weights))
        if first != other:
            path, shape = min(first ^ other)
            raise InputError(
                "weights of different models cannot be averaged; expected all to have, or none, "
                f"{path} of shape {shape}"
            )
        for path, weight in weights.items():
            total[path] += weight
        count += 1
    if not count:
        raise InputError("there are no weights to average; expected at least one set")
    return {path: (total[path] / count).astype(weight.dtype) for path, weight in weights.items()}
