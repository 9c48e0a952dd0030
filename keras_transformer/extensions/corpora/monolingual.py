"""Resumable translation of a large text, for back-translation (Sennrich et al., 2016).

The text is translated in blocks, in this process or in several. After a kill the same call
continues.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_transformer.console import progress_bar
from keras_transformer.data.blocks import read_blocks
from keras_transformer.data.reading import Block, decode_lines, require_file
from keras_transformer.data.workers import Workers, run_tasks
from keras_transformer.errors import InputError, StoppedError
from keras_transformer.inference import Languages
from keras_transformer.inference.batching import use_cores_for_batches
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.loading import RUN_LOADER, find_loader, load_model
from keras_transformer.inference.manifest import describe_files
from keras_transformer.inference.translate import translate_lines, with_languages
from keras_transformer.runs.atomic import work_directory, write_text
from keras_transformer.tf_import import load_tensorflow

BLOCK_LINES = 4096  # lines per block; a kill loses at most the block in progress


def translate_corpus(
    model_dir: str | Path,
    source: str | Path,
    output_dir: str | Path,
    num_workers: Workers = 1,
    languages: Languages = (None, None),
) -> dict[str, Any]:
    """Translates all lines of a file, which may be compressed, with an exported model.

    When everything is translated, `output_dir` appears with `translations.txt` (line i is the best
    translation of line i) and `report.json`, which is returned. Until then, finished blocks are
    kept in a hidden directory next to it. Each process uses all cores. A `TaskRunner` does the work
    on other machines. `languages` are the source and the target language of a model with several,
    if they are not its default ones.
    """
    model_dir, source, output_dir = Path(model_dir), Path(source), Path(output_dir)
    check_export(model_dir)
    lines = 0
    for block in read_blocks(require_file(source), BLOCK_LINES):
        lines += len(_decoded(block))  # refuses invalid text before anything is translated
    inputs: dict[str, Any] = {"sha256": block.sha256[str(source)]}
    inputs |= {"model": model_fingerprint(model_dir)}
    if any(languages):
        inputs["languages"] = [*languages]
    if output_dir.exists():
        with contextlib.suppress(OSError, ValueError):
            report = dict(json.loads((output_dir / "report.json").read_bytes()))
            if inputs.items() <= report.items():
                return report  # the same call has finished before
        raise InputError(f"{output_dir} exists. Choose a new directory.")
    fingerprint = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    report = {"source": str(source), **inputs, "lines": lines}
    report |= {"untranslated": 0, "seconds": 0.0}
    with work_directory(output_dir, fingerprint) as directory:
        work = directory / "work"
        work.mkdir(exist_ok=True)
        tasks = (
            (block, work / f"{number:06d}.json", model_dir.absolute(), inputs["model"], languages)
            for number, block in enumerate(_unchanged_blocks(source, inputs["sha256"]))
        )
        with (
            (directory / "translations.txt").open("w", encoding="utf-8") as output,
            progress_bar(lines, "lines", "translating") as bar,
        ):
            results = run_tasks(translate_block, tasks, num_workers, work, uses_all_cores=True)
            for result in results:
                output.writelines(f"{text}\n" for text in result["texts"])
                bar.update(len(result["texts"]))
                report["untranslated"] += result["untranslated"]
                report["seconds"] = round(report["seconds"] + result["seconds"], 1)
        text = json.dumps(report, indent=1, ensure_ascii=False)
        (directory / "report.json").write_text(text + "\n", encoding="utf-8")
    return report


def check_export(model_dir: str | Path) -> None:
    """Raises `InputError` if the model is missing, or is a run, because its weights may change."""
    if not Path(model_dir).exists():
        raise InputError(f"{model_dir} does not exist, so it cannot be read. Use an export.")
    if find_loader(str(model_dir))[0] is RUN_LOADER:
        raise InputError(
            f"{model_dir} is a run directory. Export it with keras-transformer export first."
        )


def model_fingerprint(model_dir: Path) -> str:
    """Returns a SHA-256 over the names and contents of a model's files."""
    return hashlib.sha256(json.dumps(describe_files(model_dir)).encode()).hexdigest()


def _unchanged_blocks(source: Path, digest: str) -> Iterator[Block]:
    for block in read_blocks(source, BLOCK_LINES):
        yield block
    if block.sha256[str(source)] != digest:
        raise InputError(
            f"{source} has changed while it was translated. Start again with the new file."
        )


def translate_block(
    block: Block, result_path: Path, model_dir: Path, fingerprint: str, languages: Languages
) -> dict[str, Any]:
    """Translates a block, unless an earlier process has written its result: the `texts` without
    line breaks, the number of `untranslated` lines, and the `seconds`.
    """
    if result_path.exists():
        return dict(json.loads(result_path.read_bytes()))
    start = time.monotonic()
    model = _model(model_dir, fingerprint, languages)
    best = [found[0] for found in translate_lines(model, _decoded(block))]
    result = {
        # A line break in a translation would misalign all following lines.
        "texts": [" ".join(translation.text.splitlines()) for translation in best],
        "untranslated": sum(math.isinf(translation.score) for translation in best),
        "seconds": time.monotonic() - start,
    }
    write_text(result_path, json.dumps(result))
    return result


def _decoded(block: Block) -> list[str]:
    return decode_lines(block.texts[0], block.names[0], block.line)


@functools.lru_cache(maxsize=1)
def _model(model_dir: Path, fingerprint: str, languages: Languages) -> Engine:
    """Loads the model once per process, with a batch on each core."""
    if not model_dir.exists() or model_fingerprint(model_dir) != fingerprint:
        raise StoppedError(
            f"{model_dir} is missing or another model than when the translation began. Restore it. "
            "Then the same command resumes."
        )
    if find_loader(str(model_dir))[0].needs_tensorflow:
        load_tensorflow()
    use_cores_for_batches(BLOCK_LINES)
    return with_languages(load_model(model_dir), *languages)
