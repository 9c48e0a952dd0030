"""A folder with runs, prepared data, and corpora in several forms, for all commands."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import PHRASES, SHARED_RUNS
from tests.driver import Driver
from tests.evaluation.test_sets_test import sgml

RAW = "sacrebleu/wmt14/full/raw/test-full/newstest2014-deen"


def text_of(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


@pytest.fixture(scope="session")
def folder(
    run_directory: RunDirectory,
    tagged_run: RunDirectory,
    driver: Driver,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    shutil.copytree(run_directory.path, folder / "run")
    shutil.copytree(tagged_run.path, folder / "tagged")
    SHARED_RUNS.update((folder / "run", folder / "tagged"))
    capitals = [phrase.upper() for phrase in PHRASES]
    english, german = ([f"{word} {i}" for i in range(9)] for word in ("dogs", "Hunde"))
    pairs = list(zip(english, german, strict=True))
    units = "".join(
        f"<tu><tuv xml:lang='en'><seg>{s}</seg></tuv><tuv xml:lang='de'><seg>{t}</seg></tuv></tu>"
        for s, t in pairs
    )
    files = {
        "six.en": text_of(PHRASES),
        "six.de": text_of(capitals),
        "two.de": "eins\nzwei\n",
        f"{RAW}-src.en.sgm": sgml(PHRASES),
        f"{RAW}-ref.de.sgm": sgml(capitals),
        **dict.fromkeys(("a.en", "a,b.en"), text_of(english)),
        "a.de": text_of(german),
        **dict.fromkeys(("sets/en.train.txt", "sets/en.test.txt"), text_of(english)),
        **dict.fromkeys(("sets/de.train.txt", "sets/de.test.txt"), text_of(german)),
        "a.tsv": text_of(map("\t".join, pairs)),
        "a.tmx": f"<tmx><body>{units}</body></tmx>",
        **dict.fromkeys(("a.tree", "b.tree"), "(S (NN a))\n"),
        "export/1/saved_model.pb": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "latin1.de").write_bytes(b"gut\nsch\xe4del\n")
    flags = "--source=a.en --target=a.de --vocab_size=60 --symbols=<2de> --augment="
    flags += " --output_dir=data"
    assert driver.run(folder, "prepare", flags.split(), "").code == 0
    return folder
