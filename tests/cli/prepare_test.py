"""Runs keras-transformer prepare and similar commands. A flag without effect is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.driver import Driver, Ended
from tests.messages import tells

TEXT = "--source=a.en --target=a.de"
VALID = "--valid_source=a.en --valid_target=a.de"
MISTAKES = [
    (f"prepare {TEXT} --vocab_from=data --vocab_size=80", "--vocab_size", "--vocab_from"),
    (f"prepare {TEXT} --vocab_from=data --nobyte_fallback", "--byte_fallback", "--vocab_from"),
    (f"prepare {TEXT} --valid_tsv=a.tsv --valid_pairs=2", "--valid_pairs", "validation"),
    (f"prepare {TEXT} --tsv_columns=1,2", "--tsv_columns", "--tsv"),
    ("prepare --tsv=a.tsv --tsv_columns=1", "--tsv_columns", "1,2"),
    ("prepare --tfds=translate_folder:sets", "split", "translate_folder:sets@train"),
    (f"prepare {TEXT} --notfds_download", "--tfds_download", "--tfds"),
    (f"prepare {TEXT} --target_language=de", "--target_language", "--tfds", "--tmx"),
    ("prepare_trees --trees=a.tree --valid_trees=b.tree --valid_pairs=2", "--valid_pairs"),
    ("prepare_trees --trees=a.tree --valid_ids=ids", "--valid_ids", "--valid_trees"),
]
TAKEN = (
    f"prepare {TEXT} --vocab_size=60 --valid_pairs=2 --seed=3 --workers=1",
    f"prepare {TEXT} {VALID} --vocab_from=data --seed=3 --symbols=<2de>",
    "prepare --tsv=a.tsv --tsv_columns=2,1 --vocab_size=60",
    "prepare --source=a,b.en --target=a.de --vocab_size=60",
    "prepare --tmx=a.tmx --source_language=en --target_language=de --vocab_size=60",
    f"prepare {TEXT} --valid_tmx=a.tmx --source_language=en --target_language=de --vocab_size=60",
    "prepare --tfds=translate_folder:sets@train --valid_tfds=translate_folder:sets@test "
    "--source_language=en --vocab_size=60",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, driver: Driver) -> Path:
    """A directory with a corpus in several forms, and prepared data."""
    folder = tmp_path_factory.mktemp("prepare")
    english, german = ([f"{word} {i}" for i in range(9)] for word in ("dogs", "Hunde"))
    (folder / "sets").mkdir()
    for language, lines in (("en", english), ("de", german)):
        for name in (f"a.{language}", f"sets/{language}.train.txt", f"sets/{language}.test.txt"):
            (folder / name).write_text("".join(f"{line}\n" for line in lines))
    (folder / "a,b.en").write_text("".join(f"{line}\n" for line in english))
    pairs = list(zip(english, german, strict=True))
    (folder / "a.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs))
    units = "".join(
        f"<tu><tuv xml:lang='en'><seg>{s}</seg></tuv><tuv xml:lang='de'><seg>{t}</seg></tuv></tu>"
        for s, t in pairs
    )
    (folder / "a.tmx").write_text(f"<tmx><body>{units}</body></tmx>")
    for name in "ab":
        (folder / f"{name}.tree").write_text(f"(S (NN {name}))\n")
    command = f"{TEXT} --vocab_size=60 --symbols=<2de> --output_dir=data".split()
    assert driver.run(folder, "prepare", command, b"").code == 0
    return folder


def run(driver: Driver, folder: Path, command: str, output_dir: str = "new") -> Ended:
    binary, *arguments = f"{command} --output_dir={output_dir}".split()
    return driver.run(folder, binary, arguments, b"")


@pytest.mark.parametrize(("command", "facts"), [(line, facts) for line, *facts in MISTAKES])
def test_a_flag_without_effect_is_an_error(
    driver: Driver, folder: Path, command: str, facts: list[str]
) -> None:
    ended = run(driver, folder, command)
    assert ended.code == 1 and ended.err.startswith("error: ")
    assert tells(ended.err, *facts) and ended.err.count("\n") == 1 and ended.left == []


@pytest.mark.parametrize("number", range(len(TAKEN)))
def test_flags_that_do_something_are_taken(driver: Driver, folder: Path, number: int) -> None:
    ended = run(driver, folder, TAKEN[number], f"new{number}")
    assert ended.code == 0, ended.err
