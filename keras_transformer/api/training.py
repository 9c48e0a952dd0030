"""Prepares data and trains runs with one function call each."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import keras
import numpy as np

from keras_transformer import plugins
from keras_transformer.api.translator import Translator, checked_texts, is_text, load
from keras_transformer.config import Config, RunConfig
from keras_transformer.data import prepare as preparation
from keras_transformer.data.corpus import Corpus, parallel_files
from keras_transformer.data.prepare import PreparedData, PrepareOptions
from keras_transformer.data.token_store import TokenStore
from keras_transformer.data.workers import choose_workers
from keras_transformer.errors import InputError, check_names, check_path, check_paths, require
from keras_transformer.export import ExportOptions, ExportResult, export
from keras_transformer.runs.machine import available_cores
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training import training_run
from keras_transformer.training.training_run import TrainingResult, TrainOptions

if TYPE_CHECKING:
    from keras_transformer.api.options import ExportSettings
    from keras_transformer.config.options import LoadOptions, PrepareSettings, TrainSettings

# One path or several.
Paths = str | Path | Sequence[str | Path]
# Pairs of texts, or corpora of other formats.
Pairs = Iterable[tuple[str, str] | list[str] | Mapping[str, str]] | Corpus | Sequence[Corpus]
_ARGUMENTS_OF_FIT = {
    "epochs": "Give max_steps, the number of batches.",
    "batch_size": "Give batch_tokens, the target tokens of a batch.",
}


def prepare(
    source: Paths | None = None,
    target: Paths | None = None,
    *,
    output_dir: str | Path,
    pairs: Pairs | None = None,
    valid_source: Paths | None = None,
    valid_target: Paths | None = None,
    valid_pairs: int | Pairs | None = None,
    vocab_from: str | Path | None = None,
    **options: Unpack[PrepareSettings],
) -> PreparedData:
    """Prepares parallel text for training: cleans it, learns a vocabulary, and encodes it.

    The same call returns at once if `output_dir` is complete, and resumes after a kill. The file
    report.html in it shows statistics and the dropped pairs.

    Args:
        source: file of the source sentences, one per line, in UTF-8, which may be
            compressed; or several files.
        target: files of the translations. Line i translates line i of `source`.
        output_dir: a new directory.
        pairs: (source, target) texts in memory; or a corpus of another format, such as
            `data.corpus.TsvFile`, or several.
        valid_source: files for validation. By default pairs are held out of the training text.
        valid_target: files of the translations of `valid_source`.
        valid_pairs: the number of held-out pairs, or pairs for validation, as for `pairs`.
        vocab_from: prepared data, a tokenizer or a SentencePiece model with the vocabulary to use.
        **options: fields of `PrepareOptions`, such as `vocab_size` or `max_tokens`;
            `num_workers`, the number of processes, or `ray`, the address of a cluster that does
            the work; and `source_language` and `target_language`, as in "deu_Latn", if `vocab_from`
            is of a model such as NLLB.

    Returns:
        The data, with a `tokenizer`, and datasets for `model.fit`.

    Example:
    >>> import keras_transformer as kt
    >>> texts = [("a dog", "ein Hund"), ("a cat", "eine Katze"), ("a cow", "eine Kuh")]
    >>> data = kt.prepare(pairs=texts, output_dir="small", vocab_size=40)
    >>> data.report["train"]["pairs"], data.tokenizer.source_vocab_size
    (2, 40)
    """
    names = [field.name for field in dataclasses.fields(PrepareOptions)]
    others = ["num_workers", "source_language", "target_language"]
    runners = plugins.names("task_runners")
    check_names(options, [*names, *others, *runners], "an option of prepare")
    chosen: dict[str, Any] = {**options}
    num_workers, *languages = (chosen.pop(name, None) for name in others)
    workers = choose_workers(num_workers, {name: chosen.pop(name, None) for name in runners})
    for name in chosen.keys() & {"symbols", "check_languages"}:
        if not isinstance(chosen[name], list | tuple | None):
            raise InputError(f"{name} is {chosen[name]!r}. Give a list, such as ['<2de>'].")
        chosen[name] = chosen[name] and tuple(chosen[name])
    if isinstance(valid_pairs, int):
        chosen["valid_pairs"], valid_pairs = valid_pairs, None
    if any(languages):
        require(not chosen.get("source_tag"), "Give languages or a source_tag, and not both.")
        vocabulary = check_path(vocab_from, "vocab_from")
        chosen["source_tag"] = preparation.language_tag(vocabulary, *languages)
        require(chosen["source_tag"] is not None, f"{vocabulary} has no languages.")
    return preparation.prepare(
        _corpora(source, target, pairs, "pairs"),
        check_path(output_dir, "output_dir"),
        PrepareOptions(**chosen),
        valid_corpora=_corpora(valid_source, valid_target, valid_pairs, "valid_pairs"),
        vocab_from=vocab_from,
        num_workers=workers or available_cores(),
    )


def _corpora(
    source: Paths | None, target: Paths | None, pairs: Pairs | None, name: str
) -> list[Corpus]:
    files = [check_paths(() if side is None else side, "A file") for side in (source, target)]
    corpora: list[Any] = [*parallel_files(*files)]
    if pairs is None:
        return corpora
    is_one = hasattr(pairs, "pairs") or not hasattr(pairs, "__iter__")
    given: list[Any] = [pairs] if is_one else _rows(pairs)
    if not given:
        raise InputError(f"{name} is empty. Give pairs of texts, or leave it out.")
    if all(hasattr(corpus, "pairs") for corpus in given):
        return [*corpora, *given]
    for number, pair in enumerate(given):
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2
        if not (is_pair and all(is_text(text) for text in pair)):
            raise InputError(
                f"Pair {number} is {pair!r:.80}. Give (source, target), two texts of valid "
                "Unicode, such as ('a dog', 'ein Hund')."
            )
    return [*corpora, PairsInMemory(f"{name} in memory", given)]


class PairsInMemory(NamedTuple):
    """Pairs of texts as a corpus. Its name and class are in the report of the data."""

    name: str
    texts: Sequence[tuple[str, str]]

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the encoded pairs."""
        for source, target in self.texts:
            yield source.encode(), target.encode()


def _rows(pairs: Any) -> list[Any]:
    """Returns the rows of a list, an array, a data frame, a dataset, or a list of dicts."""
    if hasattr(pairs, "itertuples"):  # pandas
        pairs = pairs.itertuples(index=False, name=None)
    elif hasattr(pairs, "as_numpy_iterator"):  # tf.data
        pairs = pairs.as_numpy_iterator()
    rows = [row.tolist() if isinstance(row, np.ndarray) else row for row in pairs]
    if rows and isinstance(rows[0], Mapping):
        names = [*rows[0]]  # the order of the first row
        rows = [[row.get(name) for name in names] for row in rows]

    def decoded(cell: Any) -> Any:
        return cell.decode(errors="surrogateescape") if isinstance(cell, bytes) else cell

    return [tuple(map(decoded, row)) if isinstance(row, list | tuple) else row for row in rows]


class Run:
    """A trained run: its directory, its configuration and its models.

    Args:
        path: a run directory.
        data: its prepared data, whose validation pairs `export` uses.
        result: how the training ended, if it was trained in this process.

    Example:
    >>> import keras_transformer as kt
    >>> run = kt.Run("build/run", data="build/data")
    >>> run.config.model.d_model > 0, isinstance(run.translator()("a dog"), str)
    (True, True)
    """

    def __init__(
        self,
        path: str | Path,
        data: str | Path | PreparedData | None = None,
        result: TrainingResult | None = None,
    ):
        self.path = Path(check_path(path, "path"))
        self.data = data
        self.result = result
        if result is None:
            RunDirectory(path)  # raises an error if it is not a run

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__

    def __repr__(self) -> str:
        state = f": {self.result.summary(self.path)}" if self.result else ""
        return f"<Run {self.path}{state}>"

    @property
    def config(self) -> RunConfig:
        """The configuration of the run."""
        return RunDirectory(self.path).config

    def translator(
        self, checkpoint: str | None = None, **options: Unpack[LoadOptions]
    ) -> Translator:
        """Loads the translator of this run.

        Args:
            checkpoint: name of the weights, such as "best" or "last". The default are the
                selected ones.
            **options: options of `load`.
        """
        return load(self._address(checkpoint), **options)

    def export(
        self,
        output_dir: str | Path,
        format: str = "saved_model",
        *,
        weights: str | None = None,
        checkpoint: str | None = None,
        sentences: Sequence[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        **options: Unpack[ExportSettings],
    ) -> ExportResult:
        """Exports the run as `output_dir/1`, or the next number.

        The export is compared with the run before it gets its number.

        Args:
            output_dir: directory of the versions.
            format: "saved_model" for TF Serving, or another installed format, such as "cpu" for
                CPUs or "litert" for phones.
            weights: number format of the weights: "float32", "bfloat16", "float16", "int8", or
                another one of the format. The default is "float32", for cpu "int8".
            checkpoint: name of the weights of the run, such as "best". The default are the
                selected ones.
            sentences: source texts for the comparison. The default is the validation set of the
                data, with its references.
            settings: changes of the configuration, such as `{"decoding.beam_size": 1}`.
            **options: other fields of `ExportOptions`, such as `references`, and options of the
                format.

        Example:
        >>> import keras_transformer as kt
        >>> run = kt.Run("build/run", data="build/data")
        >>> run.export("build/new", "ctranslate2").path
        PosixPath('build/new/1')
        """
        if sentences is None:
            if self.data is None:
                raise InputError(
                    "The export is compared with the run on real sentences. Give `sentences`, or "
                    "open the run with its data: Run(path, data=directory)."
                )
            store = TokenStore(Path(self.data) / "valid")
            sentences = store.source.text()
            options.setdefault("references", store.target.text())
        export_options = ExportOptions.of(weights=weights, **options)
        run, sentences = self._address(checkpoint), checked_texts(sentences)
        return export(run, output_dir, sentences, export_options, format=format, settings=settings)

    def _address(self, checkpoint: str | None) -> str:
        return str(self.path) if checkpoint is None else f"{self.path}@{checkpoint}"


def train(
    data: str | Path | PreparedData | Sequence[str | Path | PreparedData],
    run_dir: str | Path,
    preset: str | Config | None = None,
    *,
    init_from: str | os.PathLike[str] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] | None = None,
    **settings: Unpack[TrainSettings],
) -> Run:
    """Trains a run on prepared data, or resumes it.

    The training has the exact loss over all devices, mixed precision, XLA on GPUs, and
    checkpoints. After a kill, the same call resumes. Ctrl-C stops after the current step, leaves a
    checkpoint, and raises `KeyboardInterrupt`, so that a script does not go on with a model that is
    not finished.

    Args:
        data: the result of `prepare`, its directory, or several, which are mixed.
        run_dir: a new directory, or the directory of the same run.
        preset: name of the initial configuration, such as "tiny", or a `Config`. The default is
            "base", and for an existing run its own configuration.
        init_from: a run with the initial weights, or RUN@WEIGHTS such as "run@best".
        callbacks: Keras callbacks. An epoch is an interval of `checkpoint_steps`. Its logs contain
            the validation. `ModelCheckpoint` saves the `Transformer`.
        **settings: fields of `TrainingConfig`, `ModelConfig` or `DecodingConfig`, such as
            `max_steps` or `d_model`, and of `TrainOptions`, such as `device` or `max_minutes`.
            `decoding__seed` is the seed of the search, and `seed` that of training.

    Returns:
        The run, with its `result`.

    Example:
    >>> import keras_transformer as kt
    >>> sizes = {"d_model": 8, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
    >>> run = kt.train("build/data", "new", "tiny", max_steps=2, **sizes)
    >>> run.result.step, run.config.training.max_steps
    (2, 2)
    """
    directories = check_paths(data, "data")
    if not directories:
        raise InputError("The list of data is empty. Give the result of `prepare`, or several.")
    if preset is not None and not isinstance(preset, str | RunConfig):
        raise InputError(
            f"preset is a {type(preset).__name__}. Give a name such as 'tiny', or a Config; fields "
            "of a ModelConfig are arguments, such as d_model=256."
        )
    changes: dict[str, Any] = {**settings}
    options = {name: changes.pop(name) for name in TrainOptions._fields if name in changes}
    if init_from is not None:
        options["init_from"] = check_path(init_from, "init_from")
    # The run exists only when training has begun.
    result = training_run.train(
        directories,
        check_path(run_dir, "run_dir"),
        preset,
        {_full_name(name): value for name, value in changes.items()},
        TrainOptions(**options),
        callbacks=callbacks or (),
    )
    if result.interrupted:
        raise KeyboardInterrupt(result.summary(run_dir))
    return Run(run_dir, directories[0], result)


def _full_name(name: str) -> str:
    """Returns the full name of a setting, such as `training.max_steps` for "max_steps"."""
    if "__" in name or "." in name:
        return name.replace("__", ".")
    if name in _ARGUMENTS_OF_FIT:
        raise InputError(f"{name} is an argument of Keras's fit. {_ARGUMENTS_OF_FIT[name]}")
    # This order counts, because `seed` and `early_stopping` are settings of the training, too.
    names = {full.partition(".")[2]: full for full in reversed([*Config.declarations()])}
    check_names([name], [*names, *TrainOptions._fields], "a setting of train")
    return names[name]
