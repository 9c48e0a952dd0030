"""Preparation: an aligned store and a correct report, or an error and no files."""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_transformer.data import blocks as blocks_module
from keras_transformer.data.blocks import BlockReader
from keras_transformer.data.cleaning import CleaningReport, clean
from keras_transformer.data.corpus import TsvFile, parallel_files
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.text.vocabulary import Vocabulary
from tests.data.corpora import ROOT, SMALL, Pairs, numbered, run_binary, texts
from tests.messages import mentions, tells


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
    options = dataclasses.replace(SMALL, separate_vocabularies=separate, vocab_size=60)
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
            assert store.source_ids(one).tolist() == vocabulary.encode_source([source.encode()])[0]
            assert store.target_ids(one).tolist() == vocabulary.encode_target([target.encode()])[0]
    assert sorted(everything) == sorted(numbered(33)), "each pair once, in one of the two"


def test_report_has_the_counts_of_the_data(tmp_path):
    content = [*numbered(30), ("", "leer"), ("\u200b", "null"), ("lang " * 50, "x"), ("a\tb", "c")]
    options = dataclasses.replace(SMALL, max_tokens=40, valid_pairs=4, max_length_ratio=None)
    prepare([Pairs(content)], tmp_path / "d", options, valid_corpora=[Pairs(numbered(5, 50))])
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
        for side, lengths in (("source", store.source_lengths), ("target", store.target_lengths)):
            stored = report[split][side]
            assert stored["tokens"] == lengths.sum() and stored["max_length"] == lengths.max()
            assert sum(stored["length_histogram"].values()) == pairs
            assert stored["length_histogram"]["1-16"] == (lengths <= 16).sum()
    lines = "".join(f"{pair[side]}\n" for side in (0, 1) for pair in numbered(5, 50))
    digest = hashlib.sha256(lines.encode()).hexdigest()
    assert report["inputs"]["valid"] == [
        {
            "name": "pairs",
            "kind": "Pairs",
            "blocks": 1,
            "pairs": 5,
            "sha256": {"pairs": digest},
        }
    ]
    vocabulary = Vocabulary.load(tmp_path / "d")
    assert report["vocabulary"]["source_size"] == vocabulary.source_vocab_size
    assert report["vocabulary"]["fingerprint"] == vocabulary.fingerprint
    assert report["options"]["max_tokens"] == 40
    assert report["examples"] == ["the 50 dogs", "the 51 dogs", "the 52 dogs"]


def test_unknown_pieces_are_counted_and_reported(tmp_path):
    valid = Pairs([("the 1 dogs", "ΩΩ die ΩΩ"), ("the", "die")])
    prepared = prepare([Pairs(numbered(30))], tmp_path / "d", SMALL, valid_corpora=[valid])
    report = prepared.report
    (warning,) = (line for line in prepared.summary().splitlines() if "Warning" in line)
    assert "valid" in warning and "target" in warning and "--byte_fallback" in warning
    assert report["valid"]["source"]["unknown"] == 0 == report["train"]["target"]["unknown"]
    assert report["valid"]["target"]["unknown"] == 2, "a run of unknown characters is one piece"
    rate = report["valid"]["target"]["unknown_rate"]
    assert rate == 2 / report["valid"]["target"]["tokens"]


def test_targets_that_normalization_changes_are_counted(tmp_path):
    pairs = [(f"the {i} dogs", f"{i}隻狗，喺度") for i in range(30)]
    pairs += [(f"the {i} cats", f"{i} Katzen  gut") for i in range(30, 40)]
    pairs.append(("fund", "x" * 30 + " చిట్\u200cఫండు"))
    valid = Pairs([("the 1 dogs", "１隻狗"), ("the 2 dogs", "2隻狗")])
    prepared = prepare([Pairs(pairs)], tmp_path / "d", SMALL, valid_corpora=[valid])
    target = prepared.report["train"]["target"]
    assert target["rewritten"] == 31 and prepared.report["valid"]["target"]["rewritten"] == 1
    first, *_ = examples = target["rewritten_examples"]
    assert len(examples) == 5 and first["line"] == 1
    assert (first["before"], first["after"]) == ("0隻狗，喺度", "0隻狗,喺度")
    assert tells(
        prepared.summary(), "nmt_nfkc", "31 of 41", "0隻狗，喺度", "normalization=identity"
    )
    kept = dataclasses.replace(SMALL, normalization="identity")
    other = prepare([Pairs(pairs)], tmp_path / "e", kept, valid_corpora=[valid])
    assert other.report["train"]["target"]["rewritten"] == 0
    assert "identity" not in other.summary()
    vocabulary = Vocabulary.load(tmp_path / "e")
    for _, target in texts(tmp_path / "e", "train"):
        assert vocabulary.target_text(vocabulary.encode_target([target.encode()])[0]) == " ".join(
            target.split()
        )


def test_a_changed_target_is_shown_from_its_difference(tmp_path):
    pairs = [("the dogs " * 20 + f"{i}", f"{i} " + "die Hunde " * 20 + "… ja") for i in range(9)]
    report = prepare(
        [Pairs(pairs)],
        tmp_path / "d",
        dataclasses.replace(SMALL, vocab_size=60),
        valid_corpora=[Pairs(numbered(2))],
    ).report
    example = report["train"]["target"]["rewritten_examples"][0]
    assert example["before"].endswith("Hunde … ja") and example["after"].endswith("Hunde ... ja")
    assert len(example["before"]) < 30


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


def test_the_same_text_in_other_columns_is_other_data(tmp_path, files):
    tsv = b"".join(b"the %d dogs\tdie %d Hunde\n" % (i, i) for i in range(20))
    (tmp_path / "c.tsv").write_bytes(tsv)
    prepare([TsvFile(tmp_path / "c.tsv")], tmp_path / "d", SMALL)
    twice = parallel_files([tmp_path / "c.tsv"], [tmp_path / "c.tsv"])
    with pytest.raises(InputError, match=mentions("data", "input")):
        prepare(twice, tmp_path / "d", SMALL)


def test_many_shards_need_few_open_files(tmp_path):
    """The limit of open files, often 1,024 per process."""
    program = """
import resource, sys
import numpy as np
from pathlib import Path
from keras_transformer.data import blocks
from keras_transformer.data.corpus import TsvFile
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.data.token_store import TokenStore
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
blocks.BLOCK_LINES = 2
options = PrepareOptions(vocab_size=60, drop_duplicates=True, valid_pairs=3)
prepare([TsvFile(Path("c.tsv"))], "d", options)
store = TokenStore("d/train")
pairs = np.arange(len(store))
print(len(list(store.directory.iterdir())), len(store.source_ids(pairs)), sum(store.source_lengths))
print(len(store.target_lines(pairs)), len(list(TokenStore("d/valid").directory.iterdir())))
"""
    lines = "".join(f"{source}\t{target}\n" for source, target in numbered(1200))
    (tmp_path / "c.tsv").write_text(lines)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shards, found, tokens, texts, valid = map(int, done.stdout.split())
    assert shards > 590 and found == tokens and texts == 1197 and valid <= 4


def test_duplicates_are_dropped_over_all_corpora(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks_module, "BLOCK_LINES", 7)
    corpora = [Pairs(numbered(20)), Pairs(numbered(20, 10))]
    options = dataclasses.replace(SMALL, drop_duplicates=True, valid_pairs=5)
    report = prepare(corpora, tmp_path / "d", options).report
    stored = texts(tmp_path / "d", "train") + texts(tmp_path / "d", "valid")
    assert sorted(stored) == sorted(numbered(30)) and report["held_out"] == 5
    cleaning = report["cleaning"]["train"]
    assert cleaning["dropped"] == {"duplicate": 10} and cleaning["kept"] == 30
    assert [example["line"] for example in cleaning["examples"]["duplicate"]] == [1, 2, 3, 4, 5]
    assert prepare(corpora, tmp_path / "e", SMALL).report["cleaning"]["train"]["kept"] == 40


@pytest.mark.parametrize("given", [True, False])
def test_validation_pairs_that_are_in_the_training_text_are_counted(tmp_path, monkeypatch, given):
    monkeypatch.setattr(blocks_module, "BLOCK_LINES", 7)
    # Pairs with only one equal side are not duplicates. Dropped pairs are in neither store.
    known = [*numbered(2), *numbered(1), *numbered(1, 19), ("lang " * 50, "x")]
    other = [*numbered(9, 50), ("the 1 dogs", "die 2 Hunde")]
    options = dataclasses.replace(SMALL, max_tokens=40, max_length_ratio=None, valid_pairs=20)
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


def test_distinct_validation_pairs_are_not_reported(tmp_path):
    prepared = prepare([Pairs(numbered(30))], tmp_path / "d", SMALL)
    assert prepared.report["valid_pairs_in_train"] == 0
    assert "as well" not in prepared.summary()


def test_a_tag_is_one_piece_before_every_source(tmp_path):
    options = dataclasses.replace(SMALL, source_tag="<2de>", symbols=("<2de>", "<2fr>"))
    prepare([Pairs(numbered(30))], tmp_path / "a", options)
    vocabulary = Vocabulary.load(tmp_path / "a")
    for split in ("train", "valid"):
        store = TokenStore(tmp_path / "a" / split)
        assert all(line.startswith("<2de> the ") for line in store.source_text())
        assert not any("<2de>" in line for line in store.target_text())
        for i in range(len(store)):
            ids = store.source_ids(np.array([i])).tolist()
            assert vocabulary.source_piece(ids[0]) in ("<2de>", "▁")
            assert [vocabulary.source_piece(id) for id in ids].count("<2de>") == 1
    french = dataclasses.replace(SMALL, source_tag="<2fr>")
    prepare([Pairs(numbered(30))], tmp_path / "b", french, vocab_from=tmp_path / "a")
    for options in ({"source_tag": "<2it>"}, {"source_tag": "s"}):
        others = dataclasses.replace(SMALL, **options)
        with pytest.raises(InputError, match=mentions("/a", "token") + r"(?=.*(<2it>|\bs\b))"):
            prepare([Pairs(numbered(30))], tmp_path / "c", others, vocab_from=tmp_path / "a")
    for symbol, message in (
        ("to German", mentions("to German", "spaces")),
        ("</s>", mentions("</s>", "vocabulary")),
    ):
        with pytest.raises(InputError, match=message):
            PrepareOptions(source_tag=symbol)
    with pytest.raises(InputError, match=mentions("<0x0A>", "byte_fallback")):
        PrepareOptions(source_tag="<0x0A>", byte_fallback=True)
    assert PrepareOptions(source_tag="<0x0A>").all_symbols() == ("<0x0A>",)


def test_a_vocabulary_can_be_taken_from_other_data(tmp_path):
    prepare([Pairs(numbered(30))], tmp_path / "a", SMALL)
    for place in ("a", "a/tokenizer"):
        name = place.replace("/", "_") + "_b"
        prepare([Pairs(numbered(9, 30))], tmp_path / name, vocab_from=tmp_path / place)
        assert Vocabulary.load(tmp_path / name).fingerprint == (
            Vocabulary.load(tmp_path / "a").fingerprint
        )
    separate = dataclasses.replace(SMALL, separate_vocabularies=True)
    with pytest.raises(InputError, match=mentions("/a", "joint", "separate")):
        prepare([Pairs(numbered(9))], tmp_path / "c", separate, vocab_from=tmp_path / "a")
    with pytest.raises(InputError, match=mentions("nowhere", "vocabulary")):
        prepare([Pairs(numbered(9))], tmp_path / "c", SMALL, vocab_from=tmp_path / "nowhere")


def test_the_report_has_the_normalization_of_a_given_vocabulary(tmp_path):
    folded = dataclasses.replace(SMALL, normalization="nmt_nfkc_cf", model_type="bpe")
    reports = [
        prepare([Pairs(numbered(30))], tmp_path / "a", folded).report,
        prepare([Pairs(numbered(30))], tmp_path / "b", vocab_from=tmp_path / "a").report,
    ]
    for report in reports:
        assert report["vocabulary"]["normalization"] == "nmt_nfkc_cf"
        assert report["vocabulary"]["model_type"] == "bpe"
    assert reports[0]["options"]["normalization"] == "nmt_nfkc_cf"
    assert not {"normalization", "model_type", "vocab_size"} & set(reports[1]["options"])


def test_line_breaks_inside_a_sentence_keep_the_alignment(tmp_path):
    breaks = [(f"the\n{i}\u2028dogs", f"die\r{i}\x85Hunde\n") for i in range(20)]
    prepare([Pairs(breaks)], tmp_path / "d", SMALL)
    stored = texts(tmp_path / "d", "train") + texts(tmp_path / "d", "valid")
    assert sorted(stored) == sorted(numbered(20))


def test_crlf_and_bom_are_not_text(tmp_path, files):
    source = b"\xef\xbb\xbf" + b"".join(b"%b\r\n" % s.encode() for s, _ in numbered(20))
    target = b"".join(b"%b\n" % t.encode() for _, t in numbered(20))
    prepare(files(source, target), tmp_path / "d", SMALL)
    stored = texts(tmp_path / "d", "train") + texts(tmp_path / "d", "valid")
    assert sorted(stored) == sorted(numbered(20))


def test_a_line_of_megabytes_is_a_counted_drop(tmp_path, files):
    source = b"the dogs\n" * 20 + b"dog " * 1_000_000 + b"\n"
    start = time.process_time()
    report = prepare(files(source, b"die Hunde\n" * 21), tmp_path / "d", SMALL).report
    assert time.process_time() - start < 3
    assert report["cleaning"]["train"]["dropped"] == {"too_many_bytes": 1}


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"a\nb\n", b"c\n", mentions("c.en", "2", "c.de", "1")),
        (b"a\nb\n", b"", mentions("c.de", "empty")),
        (b"a\n\xff\n", b"c\nd\n", mentions("c.en", "line 2", "0xff")),
        (b"a\n\n", b"\nd\n", mentions("train", "2", "empty")),
        (b"a\n", b"c\n", mentions("1", "clean pairs", "hold out")),
    ],
)
def test_invalid_input_is_an_error_and_leaves_no_files(tmp_path, files, source, target, message):
    with pytest.raises(InputError, match=message):
        prepare(files(source, target), tmp_path / "d", SMALL)
    assert not [path for path in tmp_path.iterdir() if path.name not in ("c.en", "c.de")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 1}, mentions("max_tokens", "1", "2")),
        ({"valid_pairs": 0}, mentions("valid_pairs", "0", "1")),
        ({"model_type": "char"}, mentions("model_type", "char")),
    ],
)
def test_unusable_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        PrepareOptions(**options)


def test_an_empty_list_of_corpora_is_an_error(tmp_path):
    with pytest.raises(InputError, match=mentions("corpus")):
        prepare([], tmp_path / "d")


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


@hypothesis.settings(max_examples=100, deadline=None)
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
    (block,) = BlockReader(corpora[0])
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


def test_the_command_prepares_and_prints_a_summary(tmp_path):
    for name, pairs in (("a", numbered(20)), ("b", numbered(20, 20)), ("v", numbered(3, 90))):
        for suffix, side in (("en", 0), ("de", 1)):
            lines = "".join(f"{pair[side]}\n" for pair in pairs)
            (tmp_path / f"{name}.{suffix}").write_text(lines)
    for name in "xy":
        (tmp_path / f"{name}.tsv").write_text(f"the {name}\tdas {name}\n")
    command = (
        "--source=a.en,b.en --target=a.de --target=b.de --tsv=x.tsv --tsv=y.tsv "
        "--valid_source=v.en --valid_target=v.de "
        "--vocab_size=60 --model_type=bpe --output_dir=deep/data"
    ).split()
    done = run_binary(*command, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert tells(done.stdout, "train", "42 pairs") and tells(done.stdout, "valid", "3 pairs")
    columns = [("the x", "das x"), ("the y", "das y")]
    assert texts(tmp_path / "deep/data", "train") == [*numbered(40), *columns]
    assert tells(run_binary(*command, cwd=tmp_path).stdout, "already")
    (tmp_path / "b.de").write_text("nur eine Zeile\n")
    done = run_binary(*command[:-1], "--output_dir=new", cwd=tmp_path)
    assert done.returncode == 1 and not (tmp_path / "new").exists()
    assert done.stderr.startswith("error: ") and tells(done.stderr, "b.en", "20", "b.de", "1")
