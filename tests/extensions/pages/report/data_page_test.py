"""The page of prepared data has the right numbers."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import get_args

import pytest

from keras_transformer.data.cleaning import DropReason
from keras_transformer.data.corpus import ParallelFiles
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.report.data_page import REASONS, write_data_page
from keras_transformer.extensions.pages.report.elements import number, percent
from tests.conftest import PHRASES


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    sides = (["", "x\x01y & <b>", *PHRASES[:3]], ["nichts", "ⅷ", *PHRASES[3:]])
    for name, lines in zip(("a.en", "a.de"), sides, strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    options = PrepareOptions(vocab_size=60, valid_pairs=1)
    prepare([ParallelFiles(folder / "a.en", folder / "a.de")], folder / "data", options)
    return folder / "data"


def test_the_numbers_of_prepared_data(prepared: Path) -> None:
    page = write_data_page(prepared, {"vocab_size": 8000, "valid_pairs": None}).read_text("utf-8")
    text = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())
    for fact in (
        "Training pairs 3 ", "Validation pairs 1 ", "1 of 5 pairs read",
        "The validation pairs are held out of the training corpus.",
        "5 pairs read, 4 kept.", "empty 1 20.00 % a side is empty", "empty: all",
        "vocab_size 60 8000", "1 control characters became spaces.",
        "Training: 1 targets", "ⅷ viii", "SHA-256 begins with",
    ):  # fmt: skip
        assert fact in text, fact
    assert "<b>" not in text and "script" not in page


def test_reasons_and_formats() -> None:
    assert set(REASONS) == set(get_args(DropReason))
    formatted = [number(value) for value in (12345, 2.71345, 43.21345, None)]
    assert formatted == ["12,345", "2.713", "43.21", "–"]
    shares = [percent(value).split() for value in (0.12345, 0.0, 1e-9)]
    assert shares == [["12.35", "%"], ["0", "%"], ["<", "0.001", "%"]]


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"step": 1})])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(InputError, match="report.json"):
        write_data_page(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        write_data_page(tmp_path / "missing")
