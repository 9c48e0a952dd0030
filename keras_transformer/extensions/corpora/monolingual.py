"""Resumable translation of a large text, for back-translation (Sennrich et al., 2016).

The text is translated in blocks, in this process or in several. After a kill the same call
continues.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_transformer import plugins
from keras_transformer.cli import app
from keras_transformer.console import progress_bar
from keras_transformer.data.blocks import read_blocks
from keras_transformer.data.cleaning import CleaningReport, clean
from keras_transformer.data.options import PrepareOptions
from keras_transformer.data.reading import Block, decode_lines, require_file
from keras_transformer.data.workers import OnLoss, Workers, run_tasks
from keras_transformer.errors import InputError, StoppedError, check_paths
from keras_transformer.inference import Languages
from keras_transformer.inference.batching import use_cores_for_batches
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.loading import load_model
from keras_transformer.inference.manifest import describe_files
from keras_transformer.inference.translate import translate_lines, with_languages
from keras_transformer.runs.atomic import growing_files, work_directory
from keras_transformer.runs.run_directory import RunDirectory

log = logging.getLogger(__name__)

BLOCK_LINES = 4096  # lines per block; a kill loses at most the block in progress


class PairRules(NamedTuple):
    """Which translations become training pairs.

    Attributes:
        cleaning: rules for the pair of a translation and its line, and the tag of translations.
        min_score: the lowest score of a translation; None for no limit.
    """

    cleaning: PrepareOptions
    min_score: float | None = None


def translate_corpus(
    model_dir: str | Path,
    sources: str | Path | Sequence[str | Path],
    output_dir: str | Path,
    num_workers: Workers = 1,
    languages: Languages = (None, None),
    pairs: PairRules | None = None,
    skip_lost: bool = False,
) -> dict[str, Any]:
    """Translates all lines of files, which may be compressed, with an exported model.

    When everything is translated, `output_dir` appears with `translations.txt` (line i is the best
    translation of line i) and `report.json`, which is returned. With rules for `pairs`, it has the
    translations that pass them in `source.txt`, and their lines in `target.txt`. Until then,
    finished blocks are kept in a hidden directory next to it. Each process uses all cores. A
    `TaskRunner` does the work on other machines, which need only the model. With `skip_lost`, a
    block that kills workers there has no translations, and the report names its lines. `languages`
    are the source and the target language of a model with several, if they are not its default
    ones.
    """
    output_dir, model = Path(output_dir), str(model_dir)
    model_dir = Path(plugins.resolve(model)).absolute()
    paths = [require_file(Path(path)) for path in check_paths(sources, "sources")]
    check_export(model_dir)
    lines = 0
    for block in _blocks(paths):
        lines += len(_decoded(block))  # refuses invalid text before anything is translated
    inputs: dict[str, Any] = {"sha256": block.sha256, "model": model_fingerprint(model_dir)}
    inputs["languages"] = [*languages] if any(languages) else None
    inputs["pairs"] = pairs and [dataclasses.asdict(pairs.cleaning), pairs.min_score]
    inputs = json.loads(json.dumps(inputs))  # as in the report
    if output_dir.exists():
        with contextlib.suppress(OSError, ValueError):
            report = dict(json.loads((output_dir / "report.json").read_bytes()))
            if all(report.get(name) == value for name, value in inputs.items()):
                return report  # the same call has finished before
        raise InputError(f"{output_dir} exists. Choose a new directory.")
    fingerprint = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    report = {**inputs, "lines": lines, "untranslated": 0, "seconds": 0.0, "skipped": []}
    model = model if "://" in model else str(model_dir)
    arguments = ((model, inputs["model"]), languages, pairs)
    workers = (num_workers, _without_translations if skip_lost else None)
    with work_directory(output_dir, fingerprint) as directory:
        report = _translate_blocks(paths, directory, report, arguments, *workers)
        text = json.dumps(report, indent=1, ensure_ascii=False)
        (directory / "report.json").write_text(text + "\n", encoding="utf-8")
    return report


def _translate_blocks(
    paths: Sequence[Path],
    directory: Path,
    report: dict[str, Any],
    arguments: tuple[tuple[str, str], Languages, PairRules | None],
    workers: Workers,
    on_loss: OnLoss | None,
) -> dict[str, Any]:
    """Writes the translations of files to a work directory, and returns the complete report. The
    arguments are those of `translate_block`, after the block.
    """
    cleaning, pairs = CleaningReport(), arguments[-1]
    names = ("source.txt", "target.txt") if pairs else ("translations.txt",)
    with growing_files(directory, names) as (saved, save):
        done, done_lines, report = saved or (0, 0, report)
        if "cleaning" in report:
            cleaning.add(report["cleaning"])
        blocks = itertools.islice(_unchanged_blocks(paths, report["sha256"]), done, None)
        tasks = ((block, *arguments) for block in blocks)
        results = run_tasks(
            translate_block, tasks, workers, None, uses_all_cores=True, on_loss=on_loss
        )
        with progress_bar(report["lines"], "lines", "translating", initial=done_lines) as bar:
            for result in results:
                done += 1
                done_lines += result["lines"]
                report["untranslated"] += result["untranslated"]
                report["seconds"] = round(report["seconds"] + result["seconds"], 1)
                report["skipped"] += result["skipped"]
                if pairs:
                    cleaning.add(result["cleaning"])
                    report["cleaning"] = cleaning.as_dict()
                save(result["texts"], [done, done_lines, report])
                bar.update(result["lines"])
    return report


def check_export(model_dir: str | Path) -> None:
    """Raises `InputError` if the model is missing, or is a run, because its weights may change."""
    if not Path(model_dir).exists():
        raise InputError(f"{model_dir} does not exist, so it cannot be read. Use an export.")
    if RunDirectory.is_run(model_dir):
        raise InputError(f"{model_dir} is a run directory. Run keras-transformer export first.")


def model_fingerprint(model_dir: Path) -> str:
    """Returns a SHA-256 over the names and contents of a model's files."""
    return hashlib.sha256(json.dumps(describe_files(model_dir)).encode()).hexdigest()


def _blocks(paths: Sequence[Path]) -> Iterator[Block]:
    """Yields the blocks of all files. The last one has the digests of all of them."""
    digests: dict[str, str] = {}
    for path in paths:
        for block in read_blocks(path, BLOCK_LINES):
            digests |= block.sha256
            yield block._replace(sha256={**digests})


def _unchanged_blocks(paths: Sequence[Path], digests: Mapping[str, str]) -> Iterator[Block]:
    for block in _blocks(paths):
        yield block._replace(sha256={})
    for path, digest in digests.items():
        if block.sha256.get(path) != digest:
            raise InputError(f"{path} has changed while it was translated. Start again.")


def translate_block(
    block: Block, model: tuple[str, str], languages: Languages, pairs: PairRules | None
) -> dict[str, Any]:
    """Returns the translations of a block: the `texts`, which are one, or both sides of the pairs
    that pass the rules; the numbers of `lines` and of `untranslated` ones; the `seconds`.
    """
    start = time.monotonic()
    lines = _decoded(block)
    best = [found[0] for found in translate_lines(_model(*model, languages), lines)]
    # A line break in a translation would misalign all following lines.
    text = "".join(" ".join(one.text.splitlines()) + "\n" for one in best).encode()
    scores = [translation.score for translation in best]
    result = {"texts": [text], "lines": len(lines), "untranslated": sum(map(math.isinf, scores))}
    result["skipped"] = []
    if pairs:
        report = CleaningReport()
        names = (f"translations of {block.names[0]}", block.names[0])
        both = Block(names, block.line, (text, "".join(f"{one}\n" for one in lines).encode()), {})
        kept = clean(both, pairs.cleaning, report)
        if pairs.min_score is not None:
            good = np.array(scores)[kept.lines - block.line] >= pairs.min_score
            kept = kept.keep(good, "low_score", report)
        sides = (kept.sources, kept.targets)
        result["texts"] = [b"".join(text + b"\n" for text in side) for side in sides]
        result["cleaning"] = report.as_dict()
    result["seconds"] = time.monotonic() - start
    return result


def _without_translations(task: tuple[Any, ...], error: StoppedError) -> dict[str, Any]:
    """Returns the result of a block that was skipped: empty translations, or no pairs."""
    block, _, _, pairs = task
    lines = len(_decoded(block))
    log.warning("Skipped: %s", error)
    result = {"lines": lines, "untranslated": lines, "seconds": 0, "skipped": [str(block)]}
    texts = [b"", b""] if pairs else [b"\n" * lines]
    return {**result, "texts": texts, "cleaning": CleaningReport().as_dict()}


def _decoded(block: Block) -> list[str]:
    return decode_lines(block.texts[0], block.names[0], block.line)


@functools.lru_cache(maxsize=1)
def _model(model: str, fingerprint: str, languages: Languages) -> Engine:
    """Loads the model once per process, with a batch on each core."""
    model_dir = Path(plugins.resolve(model))
    if not model_dir.exists() or model_fingerprint(model_dir) != fingerprint:
        raise StoppedError(
            f"{model_dir} is missing or another model than when the translation began. Restore it. "
            "Then the same command resumes."
        )
    app.load_engine(str(model_dir))
    use_cores_for_batches(BLOCK_LINES)
    return with_languages(load_model(model_dir), *languages)
