"""A large text translated: for back-translation (Sennrich et al., 2016) and distillation.

It is done in blocks, by this process or on Apache Beam, and goes on where it was killed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from keras_transformer.data.corpora.corpus import Block, BlockReader, TextFile, require_file
from keras_transformer.data.corpora.reading import BOM, check_line
from keras_transformer.data.preparation.workers import Runner, Workers
from keras_transformer.errors import InputError
from keras_transformer.inference.loading import Model, load_model
from keras_transformer.inference.translate import translate_lines
from keras_transformer.runs.atomic import atomic_path, work_directory
from keras_transformer.runs.run_directory import RunDirectory

BLOCK_LINES = 4096  # translated at once, sorted by length; what a kill may lose


class _Source(NamedTuple):
    """A file to translate, and where what comes of it goes."""

    path: Path
    sha256: str  # when it was read first
    model_dir: Path
    model: str  # its fingerprint
    directory: Path


class _Task(NamedTuple):
    """A block of it, by number."""

    source: _Source
    number: int
    block: Block


def translate_corpus(
    model_dir: str | Path,
    source: str | Path,
    output_dir: str | Path,
    runner: Runner | None = None,
) -> dict[str, Any]:
    """Translates all lines of a file; line i of `translations.txt` is the best for line i.

    `output_dir` appears when all is done, with `translations.txt` and `report.json`. What was
    done when it is killed stands in a hidden directory beside it, from which the same call
    continues.

    Args:
        model_dir: a SavedModel or a LiteRT model, which settles how it is translated.
        source: the file, compressed or not.
        output_dir: a new directory.
        runner: who does the work; None for this process.

    Returns:
        The report: lines, without translation, characters, seconds of the blocks together.

    Raises:
        InputError: for a file that cannot be read or is no text, a model that is no export,
            and an `output_dir` that is there.
    """
    model_dir, source, output_dir = Path(model_dir), Path(source), Path(output_dir)
    check_export(model_dir)
    if output_dir.exists():
        raise InputError(f"{output_dir} exists; expected a new directory")
    lines, digest = _survey(source)
    model = model_fingerprint(model_dir)
    inputs = {"sha256": digest, "model": model}
    fingerprint = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    with work_directory(output_dir, fingerprint) as directory:
        work = directory / "work"
        work.mkdir(exist_ok=True)
        sources = [_Source(source.absolute(), digest, model_dir.absolute(), model, work)]
        results = (runner or Workers(1))(_translate_block, sources, _tasks)
        report: dict[str, Any] = {
            "source": str(source),
            **inputs,
            "lines": lines,
            "untranslated": 0,
            "seconds": 0.0,
        }
        with (
            (directory / "translations.txt").open("wb") as output,
            tqdm(desc="translating", total=lines, unit=" lines", disable=None) as bar,
        ):
            for result in results:
                output.write((work / result["file"]).read_bytes())
                bar.update(result["lines"])
                report["untranslated"] += result["untranslated"]
                report["seconds"] = round(report["seconds"] + result["seconds"], 1)
        text = json.dumps(report, indent=1, ensure_ascii=False)
        (directory / "report.json").write_text(text + "\n", encoding="utf-8")
    return report


def check_export(model_dir: str | Path) -> None:
    """Raises `InputError` for nothing, and for a run, which changes where an export stays."""
    if not Path(model_dir).exists():
        raise InputError(f"{model_dir} cannot be read, for it is not there; expected an export")
    if RunDirectory.is_run(model_dir):
        raise InputError(f"{model_dir} is a run directory; expected what bin/export.py makes of it")


def _survey(path: Path) -> tuple[int, str]:
    """Reads and checks everything once, and returns the number of lines and the SHA-256."""
    reader = BlockReader(TextFile(require_file(path)), BLOCK_LINES)
    for block in reader:
        _checked_lines(block)
    return reader.read.pairs, reader.read.sha256[str(path)]


def model_fingerprint(model_dir: Path) -> str:
    """Returns the SHA-256 of a model's files, which stands in the report of what it translated."""
    digest = hashlib.sha256()
    files = sorted(p for p in model_dir.rglob("*") if p.is_file()) or [model_dir]
    for file in files:
        digest.update(str(file.relative_to(model_dir)).encode())
        try:
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        except OSError as error:
            raise InputError(
                f"{file} cannot be read ({error.strerror}); expected a model"
            ) from None
    return digest.hexdigest()


def _tasks(source: _Source) -> Iterator[_Task]:
    reader = BlockReader(TextFile(source.path), BLOCK_LINES)
    for number, block in enumerate(reader):
        yield _Task(source, number, block)
    if reader.read.sha256[str(source.path)] != source.sha256:
        raise InputError(
            f"{source.path} has changed while it was translated; expected it to stay as it is"
        )


def _translate_block(task: _Task) -> dict[str, Any]:
    """Translates a block, unless that was done; leaves its file whole or not at all."""
    path = task.source.directory / f"{task.number:06d}"
    done = path.with_suffix(".json")
    if done.exists():
        return dict(json.loads(done.read_bytes()))
    start = time.monotonic()
    lines = _checked_lines(task.block)
    model = _model(task.source.model_dir, task.source.model)
    best = [each[0] for each in translate_lines(model, lines)]
    # Translations have one line each; a line break would shift all that follow.
    texts = [" ".join(translation.text.splitlines()) for translation in best]
    with atomic_path(path.with_suffix(".txt")) as partial:
        partial.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    result = {
        "file": f"{path.name}.txt",
        "lines": len(best),
        "untranslated": sum(math.isinf(translation.score) for translation in best),
        "seconds": time.monotonic() - start,
    }
    with atomic_path(done) as partial:
        partial.write_text(json.dumps(result), encoding="utf-8")
    return result


def _checked_lines(block: Block) -> list[str]:
    """Returns the lines; raises `InputError` for one that is no text."""
    lines, offset = block.texts[0].split(b"\n")[:-1], block.offsets[0]
    for number, line in enumerate(lines, start=block.line):
        check_line(block.names[0], number, offset, line)
        offset += len(line) + 1
    if block.line == 1:
        lines[0] = lines[0].removeprefix(BOM)
    return [line.removesuffix(b"\r").decode() for line in lines]


@functools.lru_cache(maxsize=1)
def _model(model_dir: Path, fingerprint: str) -> Model:
    """Returns the model, which a process loads once while it is the same."""
    return load_model(model_dir)
