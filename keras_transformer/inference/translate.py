"""A model used: lines translated, test sets scored; and checkpoints averaged."""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  a SavedModel needs its ops
from tqdm import tqdm

from keras_transformer.decoding import NOTHING
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.evaluation.metrics import Scores
from keras_transformer.inference.loading import Model, cores
from keras_transformer.inference.translation import Translation, found
from keras_transformer.runs.checkpoints import Arrays
from keras_transformer.runs.run_directory import RunDirectory

# A batch has at most so many lines, and so many bytes once they are padded to the longest:
# the cache of the search grows with both.
_BATCH_LINES = 64
_BATCH_BYTES = 16_384


# Of a model whose logits are no numbers, or that may not say anything.
NO_TRANSLATION = Translation("", -math.inf)


def use_cores_for_batches(lines: int) -> None:
    """Gives each core of a CPU a batch of its own, in place of a part of every operation.

    With fewer `lines` than cores the cores that are left share operations.

    Most operations of a search are too small to be worth sharing. To be called before
    TensorFlow does anything; later, or with a GPU, it changes nothing.
    """
    if tf.config.list_physical_devices("GPU"):
        return
    with contextlib.suppress(RuntimeError):  # TensorFlow has begun, with the threads it has
        at_once = max(1, min(lines, cores()))
        tf.config.threading.set_intra_op_parallelism_threads(cores() // at_once)
        tf.config.threading.set_inter_op_parallelism_threads(at_once)


def workers() -> int:
    """How many batches are translated at once: so many as `use_cores_for_batches` made room for."""
    shared = tf.config.threading.get_intra_op_parallelism_threads()
    return max(1, cores() // shared) if shared else 1


def batches(lines: Sequence[str], at_least: int = 1) -> list[list[int]]:
    """Returns the indices of `lines` in batches of similar lengths, the longest lines first.

    There are `at_least` so many batches, if there are as many lines.
    """
    sizes = [len(line.encode()) for line in lines]
    most = min(_BATCH_LINES, max(1, len(lines) // at_least))
    result: list[list[int]] = []
    for index in sorted(range(len(lines)), key=lambda i: -sizes[i]):
        batch = result[-1] if result else []
        full = len(batch) == most
        if not batch or full or (len(batch) + 1) * sizes[batch[0]] > _BATCH_BYTES:
            result.append([index])
        else:
            batch.append(index)
    return result


def translate_lines(model: Model, lines: Sequence[str]) -> list[list[Translation]]:
    """Translates lines; each result, in their order, is best first and never empty."""
    results: list[list[Translation]] = [[] for _ in lines]
    for batch, outputs in in_batches(model.translate, lines):
        for index, row, row_scores in zip(
            batch, outputs["translations"], outputs["scores"], strict=True
        ):
            results[index] = found(row, row_scores) or [NO_TRANSLATION]
    return results


def translate_in_detail(
    model: Model,
    lines: Sequence[str],
    prefixes: Sequence[str] | None = None,
    attention: bool = False,
) -> list[dict[str, Any]]:
    """Translates lines and returns what is known of each translation, ready for JSON.

    Args:
        model: with `in_detail`.
        lines: what is translated.
        prefixes: as many texts, which the translations begin with; may be empty.
        attention: also return the whole attention, target tokens by source tokens.

    Returns:
        For each line `source_tokens` and `translations`, best first, each with its `text`,
        `score`, `log_prob` (before the penalties), `finished`, `tokens`, `ids`,
        `token_log_probs` and `alignment` (the index of a source token for each token).

    Raises:
        InputError: for another number of prefixes, or a model that cannot tell.
    """
    if model.in_detail is None:
        raise InputError(
            f"{model.place} tells no details of translations and takes no prefixes, as LiteRT "
            "models and older exports; expected the run directory or a new SavedModel"
        )
    prefixes = [""] * len(lines) if prefixes is None else prefixes
    if len(prefixes) != len(lines):
        raise InputError(
            f"there are {len(lines):,} lines and {len(prefixes):,} prefixes; expected a prefix for "
            "each line"
        )
    source_lengths = [used for _, used in token_counts(model, lines)]
    results: list[dict[str, Any]] = [{} for _ in lines]
    for batch, outputs in in_batches(model.in_detail, lines, prefix=prefixes):
        for row, index in enumerate(batch):
            fields = {name: field[row] for name, field in outputs.items()}
            results[index] = _details(fields, source_lengths[index], attention)
    return results


def _details(
    fields: Mapping[str, np.ndarray], source_length: int, attention: bool
) -> dict[str, Any]:
    """What `translate_in_detail` returns of one line."""
    translations = []
    for i in range(len(fields["scores"])):
        if fields["scores"][i] <= NOTHING / 2:
            continue
        length = int(fields["lengths"][i])
        translation = {
            "text": fields["translations"][i].decode("utf-8", "replace"),
            "score": round(float(fields["scores"][i]), 6),
            "log_prob": round(float(fields["log_probs"][i]), 6),
            "finished": bool(fields["finished"][i]),
            "tokens": [piece.decode() for piece in fields["tokens"][i][:length]],
            "ids": fields["ids"][i][:length].tolist(),
            "token_log_probs": _rounded(fields["token_log_probs"][i][:length], 6),
            "alignment": fields["alignments"][i][:length].tolist(),
        }
        if attention:
            weights = fields["attention"][i][:length, :source_length]
            translation["attention"] = _rounded(weights, 4)
        translations.append(translation)
    source = [piece.decode() for piece in fields["source_tokens"][:source_length]]
    return {"source_tokens": source, "translations": translations}


def _rounded(values: np.ndarray, decimals: int) -> Any:
    # In float64: the digits of a rounded float32 go on.
    return values.astype(np.float64).round(decimals).tolist()


def in_batches(
    translate: Callable[..., dict[str, tf.Tensor]], lines: Sequence[str], **others: Sequence[str]
) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
    """Yields the indices of the lines of a batch and what `translate` returns for them.

    Args:
        translate: is called with `text`, string `[B]`, and with the `others`, as many texts.
    """

    def outputs(batch: list[int]) -> dict[str, np.ndarray]:
        texts = {
            name: tf.constant([column[i] for i in batch])
            for name, column in {"text": lines, **others}.items()
        }
        return {name: field.numpy() for name, field in translate(**texts).items()}

    todo = batches(lines, at_least=workers())
    pool = concurrent.futures.ThreadPoolExecutor(workers())
    try:
        with progress(len(lines)) as bar:
            for batch, result in zip(todo, pool.map(outputs, todo), strict=True):
                yield batch, result
                bar.update(len(batch))
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C only the running batches are waited for


def progress(total: int, unit: str = "line") -> tqdm:
    """Returns a bar of so many lines, with the time left, where a person can see it."""
    return tqdm(total=total, unit=unit, disable=not sys.stderr.isatty(), dynamic_ncols=True)


def token_counts(model: Model, lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yields how many tokens each line has, the end token included, and how many are used."""
    for start in range(0, len(lines), 1024):
        counts = model.lengths(text=tf.constant(lines[start : start + 1024]))
        pairs = zip(counts["tokens"].numpy(), counts["used"].numpy(), strict=True)
        yield from ((int(tokens), int(used)) for tokens, used in pairs)


def remarks(
    model: Model,
    lines: Sequence[str],
    results: Sequence[Sequence[Translation]] = (),
    prefixes: Sequence[str] = (),
) -> list[str]:
    """Returns one sentence for each line that is empty, cut, or longer than any of training.

    And, where the results and prefixes are given, for each without a translation, or whose
    translation does not begin with its prefix.
    """
    sentences = [
        f"line {number} has no translation: the model's logits are no numbers, or it may not say "
        "anything"
        for number, result in enumerate(results, start=1)
        if result[0] == NO_TRANSLATION
    ]
    pairs = enumerate(zip(results, prefixes, strict=False), start=1)
    sentences += [
        f"line {number} has a prefix that its translation does not begin with ({prefix[:40]!r}): "
        "it has signs that the vocabulary has not, or is longer than the translation may be"
        for number, (result, prefix) in pairs
        if not result[0].text.startswith(" ".join(prefix.split()))
    ]
    for number, (tokens, used) in enumerate(token_counts(model, lines), start=1):
        if tokens == 1:  # the end token alone
            sentences.append(f"line {number} is empty, and so is its translation")
        elif used < tokens:
            sentences.append(
                f"line {number} has {tokens:,} tokens; the first {used:,} were translated "
                "(decoding.max_source_tokens)"
            )
        elif tokens > (model.trained_tokens or tokens):
            sentences.append(
                f"line {number} has {tokens:,} tokens, but the longest source of training "
                f"{model.trained_tokens:,}; it was translated as it is"
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


class Evaluation(NamedTuple):
    """A test set translated and scored."""

    scores: Scores
    hypotheses: list[str]
    seconds: float  # of translating

    def summary(self) -> str:
        """Returns the scores in a few words, for a person."""
        return (
            f"{self.scores.summary()}, translated in {self.seconds:.1f} s "
            f"({self.scores.sentences / max(self.seconds, 1e-9):,.0f} a second)"
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
    metrics.evaluate(references[:1], references[:1], tokenize=tokenize, lowercase=lowercase)
    start = time.perf_counter()
    hypotheses = [best.text for best, *_ in translate_lines(model, sources)]
    seconds = time.perf_counter() - start
    scores = metrics.evaluate(hypotheses, references, tokenize=tokenize, lowercase=lowercase)
    return Evaluation(scores, hypotheses, seconds)


def average_checkpoints(
    run: RunDirectory, last: int | None = None, *, best: int | None = None
) -> str:
    """Averages the weights (no EMA) of checkpoints, saves the mean and selects it.

    Args:
        run: the run.
        last: how many of the newest (the paper, section 6.1, takes 5, of big 20).
        best: or how many of the best by `training.best_metric`, of those that the run still has.

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
