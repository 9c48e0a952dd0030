"""Corpus translation: one line per line, resumable, and with clear errors."""

import gzip
import json

import pytest

from keras_transformer.data.cleaning import is_repetitive
from keras_transformer.errors import InputError
from keras_transformer.extensions.corpora import monolingual
from keras_transformer.extensions.corpora.monolingual import translate_corpus
from keras_transformer.inference import Translation
from keras_transformer.inference.loading import load_model
from keras_transformer.inference.translate import translate_lines
from tests.builders import refuses
from tests.conftest import PHRASES
from tests.messages import mentions, tells

LINES = [*PHRASES, "", "Ω", "a dog", *PHRASES[:2], "the red ball"]


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Writes a text of several blocks."""
    monkeypatch.setattr(monolingual, "BLOCK_LINES", 5)
    path = tmp_path / "mono.en.gz"
    path.write_bytes(gzip.compress("\ufeff{}\r\n".format("\r\n".join(LINES)).encode()))
    return path


def test_a_corpus_is_translated_line_by_line_also_after_a_kill(
    tmp_path, exported_run, source, monkeypatch
):
    done = []

    def until_the_third(model, lines):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(lines)
        return translate_lines(model, lines)

    monkeypatch.setattr(monolingual, "translate_lines", until_the_third)
    with pytest.raises(KeyboardInterrupt):
        translate_corpus(exported_run, source, tmp_path / "out")
    done.clear()
    report = translate_corpus(exported_run, source, tmp_path / "out")
    assert [line for lines in done for line in lines] == LINES[10:]
    expected = [found[0].text for found in translate_lines(load_model(exported_run), LINES)]
    assert (tmp_path / "out/translations.txt").read_text().split("\n") == [*expected, ""]
    assert (report["lines"], report["untranslated"]) == (len(LINES), 0)
    assert json.loads((tmp_path / "out/report.json").read_text()) == report
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"translations.txt", "report.json"}
    assert translate_corpus(exported_run, source, tmp_path / "out") == report
    source.write_bytes(gzip.compress(b"another text\n"))
    refuses(translate_corpus, (exported_run, source, tmp_path / "out"), "out", "exists")


def test_a_changed_text_is_detected(tmp_path, source, exported_run, monkeypatch):
    fingerprint = monolingual.model_fingerprint
    for lines in (LINES[:7], [*LINES, "one more"], LINES[::-1]):
        before, after = source.read_bytes(), gzip.compress("\n".join(lines).encode())

        def change_text(path, after=after):  # after the text was checked
            source.write_bytes(after)
            return fingerprint(path)

        with (
            monkeypatch.context() as patch,
            pytest.raises(InputError, match=mentions("mono.en.gz", "changed")),
        ):
            patch.setattr(monolingual, "model_fingerprint", change_text)
            translate_corpus(exported_run, source, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        source.write_bytes(before)


def test_line_breaks_in_translations_become_spaces(tmp_path, source, exported_run, monkeypatch):
    monkeypatch.setattr(
        monolingual,
        "translate_lines",
        lambda model, lines: [[Translation(f"{n}\n\u2028x", -1.0)] for n in lines],
    )
    translate_corpus(exported_run, source, tmp_path / "out")
    text = (tmp_path / "out/translations.txt").read_text()
    assert text.split("\n")[:-1] == [f"{line}  x" for line in LINES]


def test_pairs_for_back_translation_pass_the_rules(tmp_path, exported_run, source, driver):
    (tmp_path / "second").write_text("a ball\n" + "again and again and again and again and\n")
    flags = f"--model_dir={exported_run} --input={source} --input=second --source_tag=<bt>"
    lines = [*LINES, "a ball"]
    translated = translate_lines(load_model(exported_run), lines)
    best = {line: found[0] for line, found in zip(lines, translated, strict=True)}
    lowest = sorted(one.score for one in best.values())[len(best) // 2]
    flags += f" --min_score={lowest} --output_dir=out"
    ended = driver.run(tmp_path, "back_translate", flags.split(), "")
    assert ended.code == 0, ended.err
    sources, targets = (
        (tmp_path / "out" / f"{side}.txt").read_text().splitlines() for side in ("source", "target")
    )
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    good = (line for line in lines if line and best[line].text and best[line].score >= lowest)
    expected = [
        (f"<bt> {best[line].text}", line)
        for line in good
        if not is_repetitive(best[line].text.encode())
    ]
    assert list(zip(sources, targets, strict=True)) == expected and len(expected) > 3
    assert report["lines"] == len(LINES) + 2 and report["cleaning"]["kept"] == len(expected)
    assert {"low_score", "repetitive", "empty"} <= report["cleaning"]["dropped"].keys()
    assert tells(ended.out, len(expected), len(LINES) + 2, "low_score")


def test_invalid_inputs_are_refused(tmp_path, exported_run, run_directory, source):
    (tmp_path / "bad").write_bytes(b"a\n" * 6 + b"b\xff\n")
    for changes, *facts in (
        ({"sources": tmp_path / "bad"}, "bad", "line 7", "byte 2", "0xff"),
        ({"sources": tmp_path / "none"}, "none", "missing"),
        ({"sources": tmp_path}, "regular file"),
        ({"model_dir": run_directory.path}, "run directory", "keras-transformer export"),
        ({"model_dir": tmp_path / "absent"}, "absent", "read"),
    ):
        given = {"model_dir": exported_run, "sources": source, "output_dir": tmp_path / "out"}
        refuses(translate_corpus, given | changes, *facts)
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))
