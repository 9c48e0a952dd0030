"""Preparation: an aligned store and a correct report, or an error and no files."""

import dataclasses
import hashlib
import json
import os
import resource
from unittest.mock import Mock

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_transformer.data import blocks as blocks_module
from keras_transformer.data import options as options_module
from keras_transformer.data import prepare as preparation_module
from keras_transformer.data import token_store
from keras_transformer.data.blocks import read_blocks
from keras_transformer.data.cleaning import CleaningReport, clean
from keras_transformer.data.corpus import parallel_files
from keras_transformer.data.data_report import summarize
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.builders import refuses
from tests.data.corpora import SMALL, Pairs, numbered, texts
from tests.messages import mentions, tells
from tests.runs.checkpoints_test import no_file_beyond


def changed(**options):
    return dataclasses.replace(SMALL, **options)


@pytest.fixture
def files(tmp_path):
    """Writes a source and a target file and returns them as corpora."""

    def write(source, target):
        (tmp_path / "c.en").write_bytes(source)
        (tmp_path / "c.de").write_bytes(target)
        return parallel_files([tmp_path / "c.en"], [tmp_path / "c.de"])

    return write


@pytest.mark.parametrize("separate", [False, True])
def test_ids_text_and_vocabulary_belong_together(tmp_path, monkeypatch, separate):
    monkeypatch.setattr(blocks_module, "BLOCK_LINES", 7)
    options = changed(separate_vocabularies=separate, vocab_size=60)
    prepared = prepare([Pairs(numbered(20)), Pairs(numbered(13, 20))], tmp_path / "d", options)
    assert prepared.directory == tmp_path / "d" and not prepared.reused
    vocabulary = Vocabulary.load(tmp_path / "d")
    assert vocabulary.joint != separate
    everything = []
    for split in ("train", "valid"):
        store = TokenStore(tmp_path / "d" / split)
        everything += texts(tmp_path / "d", split)
        for i, (source, target) in enumerate(texts(tmp_path / "d", split)):
            assert source.split()[1] == target.split()[1], "aligned"
            one = np.array([i])
            assert store.source.ids(one).tolist() == vocabulary.encode_source([source.encode()])[0]
            assert store.target.ids(one).tolist() == vocabulary.encode_target([target.encode()])[0]
    assert sorted(everything) == sorted(numbered(33)), "each pair once, in one of the two"


def test_report_has_the_counts_of_the_data(tmp_path):
    content = [*numbered(30), ("", "leer"), ("\u200b", "null"), ("lang " * 50, "x"), ("a\tb", "c")]
    options = changed(max_tokens=40, valid_pairs=4, max_length_ratio=None)
    valid = Pairs([*numbered(3, 50), ("the 1 dogs", "ΩΩ die ΩΩ"), ("the", "die")])
    prepared = prepare([Pairs(content)], tmp_path / "d", options, valid_corpora=[valid])
    report = json.loads((tmp_path / "d" / "report.json").read_text())
    cleaning = report["cleaning"]["train"]
    assert (cleaning["read"], cleaning["kept"]) == (34, 31)
    assert cleaning["dropped"] == {"empty": 2, "too_many_tokens": 1}
    assert [e["line"] for e in cleaning["examples"]["empty"]] == [31, 32]
    assert cleaning["examples"]["too_many_tokens"][0]["line"] == 33
    assert cleaning["control_characters_made_spaces"] == 1
    assert report["cleaning"]["valid"]["kept"] == 5 and report["held_out"] == 0
    for split, pairs in (("train", 31), ("valid", 5)):
        store = TokenStore(tmp_path / "d" / split)
        assert report[split]["pairs"] == len(store) == pairs
        for side, lengths in (("source", store.source.lengths), ("target", store.target.lengths)):
            stored = report[split][side]
            assert stored["tokens"] == lengths.sum() and stored["max_length"] == lengths.max()
            assert sum(stored["length_histogram"].values()) == pairs
            assert stored["length_histogram"]["1-16"] == (lengths <= 16).sum()
    lines = "".join(f"{pair[side]}\n" for side in (0, 1) for pair in valid.content)
    digest = hashlib.sha256(lines.encode()).hexdigest()
    description = {"name": "pairs", "kind": "Pairs", "pairs": 5}
    assert report["inputs"]["valid"] == [{**description, "sha256": {"pairs": digest}}]
    vocabulary = Vocabulary.load(tmp_path / "d")
    assert report["vocabulary"]["source_size"] == vocabulary.source_vocab_size
    assert report["vocabulary"]["fingerprint"] == vocabulary.fingerprint
    assert report["options"]["max_tokens"] == 40
    assert report["examples"] == ["the 50 dogs", "the 51 dogs", "the 52 dogs"]
    # A run of unknown characters is one piece.
    target = report["valid"]["target"]
    assert (target["unknown"], target["unknown_rate"]) == (2, 2 / target["tokens"])
    assert report["valid"]["source"]["unknown"] == 0 == report["train"]["target"]["unknown"]
    (warning,) = (line for line in prepared.summary().splitlines() if "Warning" in line)
    assert tells(warning, "valid", "target", "byte_fallback")


def test_texts_that_normalization_changes_are_counted(tmp_path):
    pairs = [(f"the {i} dogs", f"{i}隻狗，喺度") for i in range(30)]
    pairs += [(f"the {i} ｃａｔｓ in 25 m²", f"{i} Katzen  gut 10³") for i in range(30, 40)]
    pairs.append(("fund " * 20, "die Hunde " * 10 + "… ja"))
    valid = Pairs([("the 1 dogs", "１隻狗"), ("the 2 dogs", "2隻狗")])
    prepared = prepare([Pairs(pairs)], tmp_path / "d", SMALL, valid_corpora=[valid])
    target = prepared.report["train"]["target"]
    assert target["rewritten"] == 31 and prepared.report["valid"]["target"]["rewritten"] == 1
    examples = target["rewritten_examples"]
    assert len(examples) == 5 and examples[0] == {"before": "0隻狗，喺度", "after": "0隻狗,喺度"}
    summary = prepared.summary()
    assert prepared.report["train"]["source"]["rewritten"] == 10
    assert tells(summary, "nfkc_numbers", "10 of 41", "the 30 cats in 25 m²")
    assert tells(summary, "nfkc_numbers", "31 of 41", "0隻狗，喺度", "normalization=identity")
    kept = changed(normalization="identity", max_tokens=999)
    other = prepare([Pairs(pairs[-1:] * 9)], tmp_path / "e", kept, valid_corpora=[valid])
    assert other.report["train"]["target"]["rewritten"] == 0 and "identity" not in other.summary()
    # A long text is shown from its difference.
    long = prepare([Pairs(pairs[-1:] * 9)], tmp_path / "f", SMALL, valid_corpora=[valid]).report
    example = long["train"]["target"]["rewritten_examples"][0]
    assert example["before"].endswith("Hunde … ja") and example["after"].endswith("Hunde ... ja")
    assert len(example["before"]) < 30
    del long["train"]["target"]["rewritten_examples"]  # earlier versions had none
    assert not tells("\n".join(summarize(long)), "normalization=identity")


def test_text_that_another_program_has_changed_is_reported(tmp_path):
    """Tatoeba's quotation marks are not doubled, and one mark of Moses may be a quotation."""
    pairs = [(f"I don &apos;t like blue @-@ green {i}", f'"Er sagte ""{i}""."') for i in range(20)]
    pairs += [(f"{i} un@@ split words", f'"Hallo {i}," sagte er. "Ja."') for i in range(20, 60)]
    prepared = prepare([Pairs(pairs)], tmp_path / "d", SMALL, valid_corpora=[Pairs(pairs[:1])])
    source, target = (prepared.report["train"][side]["forms"] for side in ("source", "target"))
    assert ([*source.values()], [*target.values()]) == ([0, 20, 40], [20, 0, 0])
    assert tells(prepared.summary(), "20 of 60", "sources", "Moses", "sacremoses")
    assert tells(prepared.summary(), "40 of 60", "sources", "BPE")
    assert tells(prepared.summary(), "20 of 60", "targets", "doubled quotation", "tsv_quoted")
    others = [(f"It rains {i} times.", f"▁ Es {i}") for i in range(200)]
    others[0] = ("a @-@ b", "▁ c")
    other = prepare([Pairs(others)], tmp_path / "e", SMALL).summary()
    assert "Moses" not in other and "SentencePiece" in other


def test_held_out_pairs_are_a_seeded_sample_that_the_vocabulary_never_saw(tmp_path):
    content = [(f"word {chr(0x4E00 + i)}", f"Wort {chr(0x5E00 + i)}") for i in range(200)]
    held_out = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        options = PrepareOptions(vocab_size=800, valid_pairs=20, seed=seed)
        report = prepare([Pairs(content)], tmp_path / name, options).report
        held_out[name] = texts(tmp_path / name, "valid")
        assert len(held_out[name]) == report["held_out"] == 20
        assert report["valid"]["source"]["unknown"] == report["valid"]["target"]["unknown"] == 20
        assert report["train"]["source"]["unknown"] == 0
    assert held_out["a"] == held_out["b"] != held_out["c"]
    for split in ("train", "valid"):
        first, second = (TokenStore(tmp_path / name / split) for name in "ab")
        assert first.fingerprint == second.fingerprint
    defaults = prepare([Pairs(content)], tmp_path / "d", PrepareOptions(vocab_size=800))
    assert defaults.report["held_out"] == 4, "two in a hundred"


@pytest.mark.parametrize("limits, separate", [((200, 10**9), False), ((10**9, 4000), True)])
def test_a_text_beyond_the_limits_is_sampled_by_the_seed(tmp_path, monkeypatch, limits, separate):
    """Without the pairs that are held out. The clean text is read once, to encode it."""
    monkeypatch.setattr(blocks_module, "BLOCK_LINES", 70)
    monkeypatch.setattr(preparation_module, "MAX_BYTES", limits[1])
    read, learn = Mock(wraps=blocks_module._clean_lines), Mock(wraps=learn_vocabulary)
    monkeypatch.setattr(blocks_module, "_clean_lines", read)
    monkeypatch.setattr(options_module, "learn_vocabulary", learn)
    for name, seed in zip("abc", (1, 1, 2), strict=True):
        options = changed(vocab_size=60, valid_pairs=200, vocabulary_lines=limits[0], seed=seed)
        options = dataclasses.replace(options, separate_vocabularies=separate)
        prepare([Pairs(numbered(1000))], tmp_path / name, options)
    assert read.call_count == 3 * 15
    first, again, other = [call.args[0] for call in learn.call_args_list][:: 1 + separate]
    assert first == again != other
    size = len(first) if limits[0] == 200 else sum(map(len, first))
    assert 0.3 * min(limits) < size <= min(limits)
    drawn = [int(line.split()[1]) for line in first]
    held_out = {int(source.split()[1]) for source, _ in texts(tmp_path / "a", "valid")}
    assert len(set(drawn)) * (2 - separate) == len(drawn) and held_out.isdisjoint(drawn)
    assert 400 < sum(drawn) / len(drawn) < 600


def test_the_sample_is_counted_once_and_freed_before_the_encoding(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks_module, "BLOCK_LINES", 10)
    measure, encode = Mock(wraps=preparation_module._measure), Mock(side_effect=RuntimeError)
    monkeypatch.setattr(preparation_module, "_measure", measure)
    monkeypatch.setattr(preparation_module, "_encode", encode)
    with pytest.raises(RuntimeError):
        prepare([Pairs(numbered(100))], tmp_path / "d", SMALL)
    assert sum(len(part) for call in measure.call_args_list for part in call.args[0]) == 100
    assert encode.call_args.args[1]["train"].samples == []


def test_many_shards_need_few_open_files(tmp_path, monkeypatch):
    """The limit of open files, often 1,024 per process."""
    monkeypatch.setattr(blocks_module, "BLOCK_LINES", 2)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # which takes long for many files
    monkeypatch.setattr(token_store, "_MAPS", 10)  # for each side, of ids and of text
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 60, hard))
    try:
        options = PrepareOptions(vocab_size=60, drop_duplicates=True, valid_pairs=3)
        prepare([Pairs(numbered(200))], tmp_path / "d", options)
        store = TokenStore(tmp_path / "d/train")
        pairs = np.arange(len(store))
        assert len(list(store.directory.iterdir())) > 90
        assert len(store.source.ids(pairs)) == store.source.lengths.sum()
        assert len(store.target.lines(pairs)) == 197
        assert len(list((tmp_path / "d/valid").iterdir())) <= 4
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_duplicates_are_dropped_over_all_corpora(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks_module, "BLOCK_LINES", 7)
    corpora = [Pairs(numbered(20)), Pairs(numbered(20, 10))]
    report = prepare(corpora, tmp_path / "d", changed(drop_duplicates=True, valid_pairs=5)).report
    stored = texts(tmp_path / "d", "train") + texts(tmp_path / "d", "valid")
    assert sorted(stored) == sorted(numbered(30)) and report["held_out"] == 5
    cleaning = report["cleaning"]["train"]
    assert cleaning["dropped"] == {"duplicate": 10} and cleaning["kept"] == 30
    assert [example["line"] for example in cleaning["examples"]["duplicate"]] == [1, 2, 3, 4, 5]
    assert report["valid_pairs_in_train"] == 0
    assert prepare(corpora, tmp_path / "e", SMALL).report["cleaning"]["train"]["kept"] == 40


@pytest.mark.parametrize("given", [True, False])
def test_validation_pairs_that_are_in_the_training_text_are_counted(tmp_path, monkeypatch, given):
    monkeypatch.setattr(blocks_module, "BLOCK_LINES", 7)
    # Pairs with only one equal side are not duplicates. Dropped pairs are in neither store.
    known = [*numbered(2), *numbered(1), *numbered(1, 19), ("lang " * 50, "x")]
    other = [*numbered(9, 50), ("the 1 dogs", "die 2 Hunde")]
    options = changed(max_tokens=40, max_length_ratio=None, valid_pairs=20)
    if given:
        corpora, valid = [Pairs([*numbered(20), known[-1]])], [Pairs([*known, *other])]
    else:
        corpora, valid = [Pairs(numbered(20) * 2)], []
    prepared = prepare(corpora, tmp_path / "d", options, valid_corpora=valid)
    train, valid = (texts(tmp_path / "d", split) for split in ("train", "valid"))
    expected = sum(pair in set(train) for pair in valid)
    assert expected == 4 if given else 0 < expected < 20
    assert prepared.report["valid_pairs_in_train"] == expected
    assert tells(prepared.summary(), f"{expected} of {len(valid)}", "training text")


def test_a_tag_is_one_piece_before_every_source(tmp_path):
    options = changed(source_tag="<2de>", symbols=("<2de>", "<2fr>"))
    prepare([Pairs(numbered(30))], tmp_path / "a", options)
    vocabulary = Vocabulary.load(tmp_path / "a")
    store = TokenStore(tmp_path / "a" / "train")
    assert all(line.startswith("<2de> the ") for line in store.source.text())
    assert not any("<2de>" in line for line in store.target.text())
    for i in range(len(store)):
        pieces = [vocabulary.pieces()[0][id_] for id_ in store.source.ids(np.array([i]))]
        assert pieces[0] in ("<2de>", "▁") and pieces.count("<2de>") == 1


@pytest.fixture
def vocabulary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folded = changed(normalization="nmt_nfkc_cf", model_type="bpe", symbols=("<2de>", "<2fr>"))
    return prepare([Pairs(numbered(30))], "a", folded)


def test_a_vocabulary_can_be_taken_from_other_data(vocabulary_folder):
    expected = vocabulary_folder.report["vocabulary"]
    assert (expected["normalization"], expected["model_type"]) == ("nmt_nfkc_cf", "bpe")
    for origin in ("a", "a/tokenizer", Vocabulary.load("a")):
        name = f"from_{len(str(origin))}"
        options = changed(source_tag="<2fr>")
        report = prepare([Pairs(numbered(9, 30))], name, options, vocab_from=origin).report
        assert report["vocabulary"] == expected
        assert not {"normalization", "model_type", "vocab_size"} & set(report["options"])
    assert vocabulary_folder.report["options"]["normalization"] == "nmt_nfkc_cf"


LONG = "x" * 300


@pytest.mark.parametrize(
    ("options", "output", "vocab_from", "facts"),
    [
        ({"separate_vocabularies": True}, "d", "a", ("a", "joint", "separate")),
        ({}, "d", "nowhere", ("nowhere", "vocabulary")),
        ({"source_tag": "<2it>"}, "d", "a", ("a", "token", "<2it>")),
        ({"source_tag": "s"}, "d", "a", ("a", "token")),
        ({}, LONG, None, ("File name too long", LONG)),
        ({}, "/proc", None, ("/proc", "exists")),
        ({}, "mine", None, ("mine", "exists")),
        ({}, "list", None, ("list", "exists")),
        ({}, "mine/thesis.txt", None, ("thesis.txt", "exists")),
        ({}, "mine/thesis.txt/d", None, ("mine/thesis.txt", "written")),
        ({}, "a", None, ("a", "data", "input")),
    ],
)
def test_unusable_vocabularies_and_directories_are_refused(
    vocabulary_folder, tmp_path, options, output, vocab_from, facts
):
    for name, text in (("mine/thesis.txt", "years of work"), ("list/report.json", "[]")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=mentions(*facts)):
        prepare([Pairs(numbered(9))], output, changed(**options), vocab_from=vocab_from)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("source", "target", "facts"),
    [
        (b"a\nb\n", b"c\n", ("c.en", "2", "c.de", "1")),
        (b"a\nb\n", b"", ("c.de", "empty")),
        (b"a\n\xff\n", b"c\nd\n", ("c.en", "line 2", "0xff")),
        (b"a\n\n", b"\nd\n", ("train", "2", "empty")),
        (b"a\n", b"c\n", ("1", "clean pairs", "hold out")),
    ],
)
def test_invalid_input_is_an_error_and_leaves_no_files(tmp_path, files, source, target, facts):
    refuses(prepare, (files(source, target), tmp_path / "d", SMALL), *facts)
    assert not [path for path in tmp_path.iterdir() if path.name not in ("c.en", "c.de")]


def test_an_empty_corpus_beside_another_is_named(tmp_path):
    with pytest.raises(InputError, match=mentions("nothing", "no pair")):
        prepare([Pairs(numbered(9)), Pairs([], "nothing")], tmp_path / "d", SMALL)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"max_tokens": 1}, ("max_tokens", "1", "2")),
        ({"valid_pairs": 0}, ("valid_pairs", "more than 0", "none")),
        ({"max_bytes": 0}, ("max_bytes", "more than 0")),
        ({"max_length_ratio": 0.5}, ("max_length_ratio", "0.5", "1")),
        ({"vocab_size": 0}, ("vocab_size", "0", "5", "1,000,000")),
        ({"character_coverage": 2.0}, ("character_coverage", "2.0", "0.98", "1")),
        ({"model_type": "char"}, ("model_type", "char", "unigram", "bpe")),
        ({"normalization": "nfd"}, ("normalization", "nfd")),
        ({"on_bad_utf8": "guess"}, ("on_bad_utf8", "guess", "fail", "replace", "drop")),
        ({"check_languages": ("en",)}, ("check_languages", "en", "en,de")),
        ({"augment": {"spans": 0.7, "tags": 0.7}}, ("augment", "shares", "1")),
        ({"augment": {"upper": -1}}, ("augment", "upper", "-1")),
        ({"augment": 0.5}, ("augment", "0.5", "spans")),
        ({"source_tag": "to German"}, ("to German", "spaces")),
        ({"symbols": ("<pad>",)}, ("<pad>", "vocabulary")),
        ({"source_tag": "<0x0A>", "byte_fallback": True}, ("<0x0A>", "token")),
    ],
)
def test_unusable_options_are_refused(options, facts):
    refuses(PrepareOptions, options, *facts)


LINE = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\n")
    | st.sampled_from("ab \r\t\x85\u2028\ufeff\u200b"),
    max_size=8,
).map(str.encode)
ALIGNED = st.lists(st.tuples(LINE, LINE), min_size=2, max_size=8).map(
    lambda pairs: tuple(
        b"".join(line + b"\n" for line in side) for side in zip(*pairs, strict=True)
    )
)
ANY_FILE = st.lists(LINE | st.binary(max_size=3), max_size=6).map(b"\n".join)


@hypothesis.settings(max_examples=100)
@hypothesis.given(
    files=ALIGNED | ALIGNED | st.tuples(ANY_FILE, ANY_FILE),
    tokens=st.integers(4, 12),
    byte_fallback=st.booleans(),
)
def test_any_bytes_are_refused_or_stored_aligned(tmp_path_factory, files, tokens, byte_fallback):
    directory = tmp_path_factory.mktemp("fuzz")
    for name, content in zip("st", files, strict=True):
        (directory / name).write_bytes(content)
    options = PrepareOptions(
        vocab_size=400, byte_fallback=byte_fallback, max_tokens=tokens, valid_pairs=1
    )
    try:
        corpora = parallel_files([directory / "s"], [directory / "t"])
        report = prepare(corpora, directory / "d", options).report
    except InputError:
        assert {path.name for path in directory.iterdir()} == {"s", "t"}
        return
    vocabulary = Vocabulary.load(directory / "d")
    (block,) = read_blocks(corpora[0])
    cleaned = clean(block, options, CleaningReport())
    pairs = [
        (source.decode(), target.decode())
        for source, target in zip(cleaned.sources, cleaned.targets, strict=True)
    ]
    pairs = [
        pair
        for pair in pairs
        if 2 <= len(vocabulary.encode_source([pair[0].encode()])[0]) <= tokens
        and 2 <= len(vocabulary.encode_target([pair[1].encode()])[0]) <= tokens
    ]
    train, valid = texts(directory / "d", "train"), texts(directory / "d", "valid")
    assert len(train) == report["train"]["pairs"] and len(valid) == report["valid"]["pairs"] == 1
    assert any(pairs == [*train[:i], *valid, *train[i:]] for i in range(len(train) + 1))


def test_a_full_disk_is_an_error_and_work_resumes_later(tmp_path):
    options = PrepareOptions(vocab_size=60, vocabulary_lines=999)
    arguments = ([Pairs(numbered(20_000))], tmp_path / "d", options)
    for size in (100_000, 1_000, 300_000):
        with no_file_beyond(size), pytest.raises(InputError) as caught:
            prepare(*arguments)
        assert tells(str(caught.value), "d", "File too large")
        assert tells(str(caught.value), "same command")
        assert not (tmp_path / "d").exists()
    prepare(*arguments)
    assert len(texts(tmp_path / "d", "train")) == 19_600
