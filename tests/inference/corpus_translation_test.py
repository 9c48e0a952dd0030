"""Corpus translation: one line per line, resumable, and with clear errors."""

import gzip
import json
from pathlib import Path

import pytest

from keras_transformer.errors import InputError
from keras_transformer.inference import Translation, corpus_translation
from keras_transformer.inference.corpus_translation import translate_corpus
from keras_transformer.inference.loading import load_model
from keras_transformer.inference.translate import translate_lines
from tests.conftest import PHRASES
from tests.messages import mentions

ROOT = Path(__file__).resolve().parents[2]
LINES = [*PHRASES, "", "Ω", "a dog", *PHRASES[:2], "the red ball"]


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Writes a text of several blocks."""
    monkeypatch.setattr(corpus_translation, "BLOCK_LINES", 5)
    path = tmp_path / "mono.en.gz"
    path.write_bytes(gzip.compress("\ufeff{}\r\n".format("\r\n".join(LINES)).encode()))
    return path


def test_every_line_has_its_translation(tmp_path, exported_run, source):
    report = translate_corpus(exported_run, source, tmp_path / "out")
    model = load_model(exported_run)
    expected = [found[0].text for found in translate_lines(model, LINES)]
    assert (tmp_path / "out/translations.txt").read_text().split("\n") == [*expected, ""]
    assert (report["lines"], report["untranslated"]) == (len(LINES), 0)
    assert json.loads((tmp_path / "out/report.json").read_text()) == report
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "translations.txt",
        "report.json",
    }
    with pytest.raises(InputError, match=mentions("out", "exists")):
        translate_corpus(exported_run, source, tmp_path / "out")


def test_finished_blocks_are_kept_after_a_kill(tmp_path, exported_run, source, monkeypatch):
    translate_corpus(exported_run, source, tmp_path / "whole")
    done, translate = [], translate_lines

    def until_the_third(model, lines):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(lines)
        return translate(model, lines)

    with monkeypatch.context() as patch:
        patch.setattr(corpus_translation, "translate_lines", until_the_third)
        with pytest.raises(KeyboardInterrupt):
            translate_corpus(exported_run, source, tmp_path / "out")
        done.clear()
        translate_corpus(exported_run, source, tmp_path / "out")
    assert [line for lines in done for line in lines] == LINES[10:]
    texts = [(tmp_path / name / "translations.txt").read_bytes() for name in ("out", "whole")]
    assert texts[0] == texts[1]


def test_a_changed_text_is_detected(tmp_path, source, exported_run, monkeypatch):
    fingerprint = corpus_translation.model_fingerprint
    for lines in (LINES[:7], [*LINES, "one more"], LINES[::-1]):
        before, after = source.read_bytes(), gzip.compress("\n".join(lines).encode())

        def change_text(path, after=after):  # after the text was checked
            source.write_bytes(after)
            return fingerprint(path)

        monkeypatch.setattr(corpus_translation, "model_fingerprint", change_text)
        with pytest.raises(InputError, match=mentions("mono.en.gz", "changed")):
            translate_corpus(exported_run, source, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        source.write_bytes(before)


def test_line_breaks_in_translations_become_spaces(tmp_path, source, exported_run, monkeypatch):
    monkeypatch.setattr(
        corpus_translation,
        "translate_lines",
        lambda model, lines: [[Translation(f"{n}\n\u2028x", -1.0)] for n in lines],
    )
    translate_corpus(exported_run, source, tmp_path / "out")
    text = (tmp_path / "out/translations.txt").read_text()
    assert text.split("\n")[:-1] == [f"{line}  x" for line in LINES]


def test_invalid_inputs_are_refused(tmp_path, exported_run, run_directory, source):
    bad = tmp_path / "bad"
    bad.write_bytes(b"a\n" * 6 + b"b\xff\n")
    with pytest.raises(InputError, match=mentions("bad", "line 7", "byte 2", "0xff")):
        translate_corpus(exported_run, bad, tmp_path / "out")
    for path, message in (
        (tmp_path / "none", mentions("none", "missing")),
        (tmp_path, mentions("regular file")),
    ):
        with pytest.raises(InputError, match=message):
            translate_corpus(exported_run, path, tmp_path / "out")
    with pytest.raises(InputError, match=mentions("run directory", "keras-transformer export")):
        translate_corpus(run_directory.path, source, tmp_path / "out")
    with pytest.raises(InputError, match=mentions("absent", "read")):
        translate_corpus(tmp_path / "absent", source, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))
