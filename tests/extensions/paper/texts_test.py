"""Pairs with one generated side. Here, the model writes capital letters."""

import json
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.data.corpus import ParallelFiles
from keras_transformer.errors import InputError
from keras_transformer.extensions.corpora.monolingual import model_fingerprint
from keras_transformer.extensions.paper import texts
from keras_transformer.extensions.paper.recipe import Synthetic
from tests.builders import refuses
from tests.messages import mentions


@pytest.fixture
def corpus(tmp_path: Path) -> ParallelFiles:
    (tmp_path / "train.en").write_text("a dog\n\na cow\n")
    (tmp_path / "train.de").write_text("ein hund\nnichts\neine kuh\n")
    return ParallelFiles(tmp_path / "train.en", tmp_path / "train.de")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose translation of a line is the line in capitals."""

    def shout(model_dir: Path, source: Path, output_dir: Path, workers: int) -> dict[str, Any]:
        output_dir.mkdir()
        (output_dir / "translations.txt").write_text(source.read_text().upper())
        report = {"model": model_fingerprint(model_dir)}
        (output_dir / "report.json").write_text(json.dumps(report))
        return report

    monkeypatch.setattr(texts, "translate_corpus", shout)
    monkeypatch.setattr(texts, "load_model", Path.read_text)
    (tmp_path / "model").write_text("capitals")
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "back_translation",
            [(b"EIN HUND", b"ein hund"), (b"NICHTS", b"nichts"), (b"EINE KUH", b"eine kuh")],
        ),
        ("distillation", [(b"a dog", b"A DOG"), (b"", b""), (b"a cow", b"A COW")]),
    ],
)
def test_one_side_is_generated(
    corpus: ParallelFiles,
    model: Path,
    tmp_path: Path,
    kind: Synthetic,
    expected: list[tuple[bytes, bytes]],
) -> None:
    pairs = texts.synthetic_pairs(kind, corpus, model, tmp_path / "synthetic")
    assert list(pairs.pairs()) == expected


def test_finished_pairs_are_neither_repeated_nor_replaced_by_another_model(
    corpus: ParallelFiles, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "synthetic"
    texts.check_generator(directory, model)  # nothing is there yet
    first = list(texts.synthetic_pairs("distillation", corpus, model, directory).pairs())
    monkeypatch.delattr(texts, "translate_corpus")
    assert list(texts.synthetic_pairs("distillation", corpus, model, directory).pairs()) == first
    texts.check_generator(directory, tmp_path / "removed")
    assert (
        list(texts.synthetic_pairs("distillation", corpus, tmp_path / "removed", directory).pairs())
        == first
    )
    model.write_text("another")
    with pytest.raises(InputError, match=mentions("synthetic", "generated")):
        texts.synthetic_pairs("distillation", corpus, model, directory)


def test_unfinished_pairs_are_not_discarded_by_another_model(
    corpus: ParallelFiles, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "synthetic"

    def stop(model_dir: Path, source: Path, output_dir: Path, workers: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(texts, "translate_corpus", stop)
        with pytest.raises(KeyboardInterrupt):
            texts.synthetic_pairs("distillation", corpus, model, directory)
        (tmp_path / "other").write_text("another")
        for check in (
            lambda: texts.check_generator(directory, tmp_path / "other"),
            lambda: texts.synthetic_pairs("distillation", corpus, tmp_path / "other", directory),
        ):
            refuses(check, (), "synthetic", "generated")
    written = list(texts.synthetic_pairs("distillation", corpus, model, directory).pairs())
    assert written[0] == (b"a dog", b"A DOG")


@pytest.mark.parametrize("text", ["a dog\n\na cat\n", "a dog\n\n", "a dog\n\na cow\na\n"])
def test_different_text_in_the_same_directory_is_an_error(
    corpus: ParallelFiles, model: Path, tmp_path: Path, text: str
) -> None:
    texts.synthetic_pairs("distillation", corpus, model, tmp_path / "synthetic")
    (tmp_path / "other.en").write_text(text)
    (tmp_path / "other.de").write_text("ja\n" * text.count("\n"))
    other = ParallelFiles(tmp_path / "other.en", tmp_path / "other.de")
    with pytest.raises(InputError, match=mentions("given.txt", "corpus")):
        texts.synthetic_pairs("distillation", other, model, tmp_path / "synthetic")


def test_an_unusable_model_is_refused_before_anything_is_written(
    corpus: ParallelFiles, tmp_path: Path
) -> None:
    directory = tmp_path / "synthetic"
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    for name in ("config.json", "data.json"):
        (tmp_path / "run" / name).write_text("{}")
    for name, *facts in (
        ("missing", "missing", "read", "export"),
        ("empty", "empty", "run directory", "SavedModel"),
        ("run", "run directory", "keras-transformer export"),
    ):
        model = tmp_path / name
        refuses(texts.check_generator, (directory, model), *facts)
        refuses(texts.synthetic_pairs, ("distillation", corpus, model, directory), *facts)
    assert not directory.exists()


def test_generators_are_parsed_by_kind() -> None:
    given = ["distillation=build/a=b/export/1", "back_translation=export/2"]
    assert texts.parse_generators(given) == {
        "distillation": "build/a=b/export/1",
        "back_translation": "export/2",
    }
    for wrong in ("export/1", "distillation=", "translation=export/1", given[0]):
        refuses(texts.parse_generators, ([given[0], wrong],), f"'{wrong}'", "KIND=EXPORT")
