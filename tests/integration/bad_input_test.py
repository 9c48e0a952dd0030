"""Wrong command lines and unusual texts: one-line errors, exit codes, and no partial output."""

import json
import re
import shutil
from pathlib import Path

import pytest

from keras_transformer.data.corpus import parallel_files
from keras_transformer.data.prepare import prepare
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training.data import TrainingData
from tests.conftest import PHRASES
from tests.driver import CommandResult, Driver
from tests.messages import mentions

_PREPARE = "prepare --output_dir=new --vocab_size=60 --source={} --target={}".format
_TRANSLATE = "translate --model_dir="
_EXPORT = "export --output_dir=new --run_dir="

# Command lines, and the facts of their errors, one for each kind of file. Errors of flags are in
# tests/cli/mistakes_test.py, all others in the tests of the components. Commands that translate
# get "the dog".
MISTAKES = {
    _PREPARE("six.en", "two.de"): mentions("six.en", "6", "two.de", "2"),
    _PREPARE("latin1.en", "two.de"): mentions("latin1.en", "line 2", "byte 2", "0xe4", "UTF-8"),
    "prepare --output_dir=data --vocab_size=60 --source=six.en --target=two_six.de": mentions(
        "data", "input"
    ),
    "train --run_dir=run --data_dir=same_vocabulary": mentions("run", "corpus", "data"),
    "train --run_dir=run --data_dir=data --set=model.d_ff=64": mentions(
        "run", "model.d_ff", "32", "64", "run_dir"
    ),
    "train --run_dir=new --data_dir=data --max_steps=many": mentions("training.max_steps", "many"),
    "train --run_dir=data --data_dir=data --preset=tiny": mentions(
        "data", "exists", "run directory"
    ),
    "train --run_dir=damaged --data_dir=data": mentions("damaged/config.json", "JSON"),
    "train --run_dir=new --data_dir=damaged_vocabulary": mentions(
        "damaged_vocabulary/tokenizer/joint.model", "8", "SentencePiece"
    ),
    f"{_TRANSLATE}run --beam_size=0 --output=new": mentions("decoding.beam_size", "0", "1"),
    f"{_TRANSLATE}run --prefix=two.en --output=new": mentions("1", "lines", "2", "prefixes"),
    f"{_TRANSLATE}damaged_weights": mentions("checkpoints/step-00000300/weights.npz", "read"),
    f"{_EXPORT}none --valid_source=six.en": mentions("none", "keras-transformer train", "run_dir"),
    "average --run_dir=run --last=9": mentions("run", "3", "checkpoints", "9"),
}
# A BOM, CRLF, characters that end a line elsewhere, an empty line, and two long ones.
TEXT = (
    "\ufeffthe dog\r\nthe\u2028old\x85house\r\nx\x0cy\n"
    f"\n{'dog ' * 2500}\n{'the dog ' * 131_072}\nthe dog\n"
)
TRANSLATED = f"{_TRANSLATE}run"
WARNED = f"{_TRANSLATE}reported --set=decoding.max_source_tokens=200"
DROPPED = _PREPARE("gap.en", "six.de")


@pytest.fixture(scope="module")
def folder(run_directory: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files, prepared data and runs, some of them damaged."""
    folder = tmp_path_factory.mktemp("bad_input")
    lines = [f"{phrase}\n" for phrase in PHRASES]
    for name, content in {
        "six.en": lines, "six.de": lines, "two_six.de": [line.upper() for line in lines],
        "two.en": lines[:2], "two.de": lines[:2], "gap.en": ["\n", *lines[1:]],
    }.items():  # fmt: skip
        (folder / name).write_text("".join(content))
    (folder / "latin1.en").write_bytes(b"a dog\nb\xe4r\n")
    tokenizer = run_directory.path / "tokenizer"
    for name, data in (("six", "data"), ("two", "same_vocabulary")):
        corpora = parallel_files([folder / f"{name}.en"], [folder / f"{name}.de"])
        prepare(corpora, folder / data, vocab_from=tokenizer)
    shutil.copytree(run_directory.path, folder / "run")
    fingerprint = TrainingData.open(folder / "data").fingerprint
    (folder / "run" / "data.json").write_text(json.dumps({"fingerprint": fingerprint}))
    for name in ("damaged", "damaged_weights", "reported"):
        shutil.copytree(folder / "run", folder / name)
    (folder / "damaged" / "config.json").write_text('{"model": ')
    weights = folder / "damaged_weights" / "checkpoints" / "step-00000300" / "weights.npz"
    weights.write_bytes(weights.read_bytes()[:-100])
    shutil.copy(folder / "data" / "report.json", folder / "reported" / "data_report.json")
    shutil.copytree(folder / "data", folder / "damaged_vocabulary")
    (folder / "damaged_vocabulary" / "tokenizer" / "joint.model").write_bytes(b"no model")
    return folder


@pytest.fixture(scope="module")
def results(driver: Driver, folder: Path) -> dict[str, CommandResult]:
    """The results of all commands, by command line."""
    texts = dict.fromkeys((*MISTAKES, DROPPED), "the dog\n")
    texts |= {TRANSLATED: TEXT, WARNED: f"the dog\n{' '.join(PHRASES)}\n"}
    commands = [(*line.split(" ", 1), text) for line, text in texts.items()]
    return dict(zip(texts, driver.run_all(folder, commands), strict=True))


@pytest.mark.parametrize("command", MISTAKES)
def test_errors_are_one_line_and_nothing_is_written(
    results: dict[str, CommandResult], command: str
) -> None:
    result = results[command]
    assert "Traceback" not in result.err
    line = result.err.splitlines()[-1] if result.err else ""
    assert line.startswith("error: ") and re.search(MISTAKES[command], line)
    assert (result.code, result.out, result.left) == (1, "", [])
    assert result.err.count("error: ") == 1


def test_every_line_is_translated(results: dict[str, CommandResult]) -> None:
    result = results[TRANSLATED]
    assert result.code == 3, result.err
    translations = result.out.split("\n")
    assert len(translations) - 1 == TEXT.count("\n") and translations[-1] == ""
    assert translations[0] == translations[6] != translations[3] == ""
    reasons = ("Line 4", "Line 5", "Line 6")
    for line, reason in zip(result.err.splitlines(), reasons, strict=True):
        assert reason in line
    assert result.err.count("decoding.max_source_tokens") == 2


def test_a_line_longer_than_any_in_training_is_reported(results: dict[str, CommandResult]) -> None:
    result = results[WARNED]
    assert (result.code, result.out.count("\n"), result.err.count("\n")) == (3, 2, 1)
    assert re.search(mentions("line 2", "longest source", 31), result.err)


def test_an_empty_line_on_one_side_is_a_counted_drop(results: dict[str, CommandResult]) -> None:
    result = results[DROPPED]
    assert result.code == 0, result.err
    assert "1 empty" in result.out
    assert "new/report.json" in result.left
