"""Treebanks become pairs of words and symbols. The vocabulary has one piece for each symbol."""

import dataclasses
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data import options as options_module
from keras_transformer.data.prepare import PreparedData, PrepareOptions
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.extensions.paper.parsing import treebank
from keras_transformer.extensions.paper.parsing.trees import restore
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.builders import refuses
from tests.extensions.paper.parsing.sentences import TREEBANK
from tests.messages import mentions


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "penn"
    folder.mkdir()
    paths = [folder / f"{number}.tree" for number in (12, 3, 7)]
    for number, path in enumerate(paths):
        path.write_text("".join(f"{tree}\n" for tree in TREEBANK[number::3]), encoding="utf-8")
    return paths


def small(**changes: Any) -> PrepareOptions:
    return dataclasses.replace(treebank.DEFAULTS, **{"vocab_size": 60, **changes})


def test_files_follow_patterns_and_names(tmp_path: Path, files: list[Path]) -> None:
    one, three, seven = files
    pattern = str(tmp_path / "penn" / "*.tree")
    assert treebank.find_files([pattern]) == [one, three, seven]  # sorted as text
    (tmp_path / "folder").symlink_to("penn")
    again = [str(three), pattern, str(tmp_path / "folder" / "*"), f"{tmp_path}/penn/../penn/7.tree"]
    assert treebank.find_files(again) == [three, one, seven]
    ids = tmp_path / "ids.txt"
    ids.write_text("7\n12.tree\n\n7.tree\n")
    assert treebank.find_files([pattern], ids) == [seven, one]
    refuses(treebank.find_files, ([str(tmp_path / "none*")],), "file", "none*")
    ids.write_text("12\n4\n")
    refuses(treebank.find_files, ([pattern], ids), "ids.txt", "line 2", "0", "3", "4")
    files[0].with_name("12.mrg").write_text("(NN a)\n")
    ids.write_text("12\n")
    refuses(treebank.find_files, ([str(tmp_path / "penn" / "*")], ids), "line 1", "2 of 4")
    ids.write_text("\n")
    refuses(treebank.find_files, ([pattern], ids), ids, "files")


def test_pairs_are_words_and_symbols(files: list[Path]) -> None:
    pairs = list(treebank.Treebank((files[0],)).pairs())
    assert pairs[0] == (
        b"The mice were n't fed .",
        b"(S (NP DT NNS )NP (VP VBD RB (VP VBN )VP )VP . )S",
    )
    assert pairs[1][0] == b"Old mice -LRB- OM -RRB- eat slowly ."
    (untagged, *_) = treebank.Treebank((files[0],), tags=False).pairs()
    assert untagged[1] == b"(S (NP XX XX )NP (VP XX XX (VP XX )VP )VP XX )S"


@pytest.mark.parametrize("tags", [False, True])
def test_prepared_data_contains_the_trees(tmp_path: Path, files: list[Path], tags: bool) -> None:
    def prepare() -> PreparedData:
        return treebank.prepare_trees(
            files[:2], tmp_path / "data", small(), valid_files=files[2:], tags=tags
        )

    prepared = prepare()
    assert not prepared.reused
    vocabulary = Vocabulary.load(tmp_path / "data")
    symbols = treebank.symbols_by_id(vocabulary)
    assert symbols is not None and not vocabulary.joint
    for split, part in (("train", files[:2]), ("valid", files[2:])):
        store = TokenStore(tmp_path / "data" / split)
        known = list(treebank.Treebank(tuple(part)).trees())
        assert len(store) == len(known) == prepared.report[split]["pairs"]
        for pair, tree in enumerate(known):
            ids = store.target.ids(np.array([pair]))
            found = restore(tree.words, [symbols[i] for i in ids])
            if split == "train":  # validation has symbols that training lacks
                assert found.constituents == tree.constituents
                assert found.tags == (tree.tags if tags else ("XX",) * len(tree.words))
            assert store.source.text()[pair] == " ".join(tree.words)
    assert prepare().reused


def test_sentences_are_held_out(tmp_path: Path, files: list[Path]) -> None:
    report = treebank.prepare_trees(files, tmp_path / "data", small(valid_pairs=2)).report
    assert (report["held_out"], report["train"]["pairs"], report["valid"]["pairs"]) == (2, 4, 2)


def test_the_vocabulary_is_learned_from_a_part_of_many_trees(
    tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = mock.Mock(wraps=learn_vocabulary)
    monkeypatch.setattr(options_module, "learn_vocabulary", learn)
    treebank.prepare_trees(files, tmp_path / "lines", small(vocabulary_lines=4))
    monkeypatch.setattr(treebank, "MAX_BYTES", 120)
    treebank.prepare_trees(files, tmp_path / "bytes", small())
    few, short = (call.args[0] for call in learn.call_args_list)
    assert len(few) == 3 and 1 <= len(short) <= 3 and sum(map(len, short)) <= 120


def test_validation_files_must_not_be_training_files(tmp_path: Path, files: list[Path]) -> None:
    with pytest.raises(InputError, match=mentions("3.tree", "training", "validation")):
        treebank.prepare_trees(files, tmp_path / "data", small(), valid_files=files[1:2])
    assert not (tmp_path / "data").exists()


def test_invalid_trees_are_reported_and_leave_nothing(tmp_path: Path, files: list[Path]) -> None:
    files[1].write_text("(S (NN a))\n(S (NN b)\n")
    with pytest.raises(InputError, match=mentions("3.tree", "line 2", "column 1", "tree")):
        treebank.prepare_trees(files, tmp_path / "data", small())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["penn"]


# The vocabulary of symbols.

# Some are prefixes of others, and some have characters that SentencePiece splits off.
SYMBOLS = ["XX", "NN", "NNS", "(S", "(SBAR", ")S", ")SBAR", "(X|Y", ")X|Y", "``", ",", "é"]
WORDS = learn_vocabulary([b"the old mice eat seeds", b"the lab is old"], 40)
MODEL = treebank.symbol_model(SYMBOLS)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(WORDS, MODEL)


@given(symbols=st.lists(st.sampled_from(SYMBOLS), max_size=20))
def test_every_symbol_is_one_piece(tokenizer: Tokenizer, symbols: list[str]) -> None:
    vocabulary, text = tokenizer.vocabulary, " ".join(symbols)
    by_id = treebank.symbols_by_id(vocabulary)
    assert by_id is not None
    (ids,) = vocabulary.encode_target([text.encode()])
    assert [by_id[i] for i in ids] == [*symbols, ""]  # the end id
    assert ids[-1] == vocabulary.end_id
    row = tokenizer.tokenize_target(tf.constant([text]))
    assert row.to_list() == [ids]
    assert tokenizer.detokenize(row.to_tensor(), tf.constant([len(ids)])).numpy() == [text.encode()]
    assert vocabulary.target_text(ids) == text


def test_special_ids_and_missing_symbols(tokenizer: Tokenizer) -> None:
    ids = (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.start_id, tokenizer.end_id)
    assert ids == (0, 1, 2, 3) and tokenizer.target_vocab_size == 5 + len(SYMBOLS)
    (found,) = tokenizer.vocabulary.encode_target([b"(S (INTJ XX )INTJ )S"])
    by_id = treebank.symbols_by_id(tokenizer.vocabulary) or []
    assert [by_id[i] for i in found if by_id[i]] == ["(S", "XX", ")S"]
    assert found.count(tokenizer.unknown_id) == 2
    assert treebank.symbol_model(SYMBOLS) == MODEL, "the same symbols give the same bytes"


def test_target_tokens_belong_to_words(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.vocabulary
    begins, stands = treebank.word_boundaries(vocabulary) or ([], [])
    assert (len(begins), len(stands)) == (tokenizer.source_vocab_size, 5 + len(SYMBOLS))
    words = "the old mice eat seeds"
    (source,) = vocabulary.encode_source([words.encode()])
    assert len(source) > 6  # some words have several pieces
    assert sum(begins[i] for i in source) == 5 + 1 and begins[source[-1]]
    (target,) = vocabulary.encode_target([b"(S NN NNS , )S XX"])
    assert [stands[i] for i in target] == [False, True, True, True, False, True, False]
    assert treebank.word_boundaries(Vocabulary(WORDS)) is None


@pytest.mark.parametrize(
    "vocabulary",
    [
        Vocabulary(WORDS),
        Vocabulary(MODEL, WORDS),
        Vocabulary(WORDS, learn_vocabulary([b"(S XX )S"] * 3, 20, symbols=["(S", ")S", "XX"])),
        Vocabulary(WORDS, treebank.symbol_model([])),
    ],
    ids=["joint", "the wrong way round", "learned, with symbols", "no symbols"],
)
def test_other_models_are_refused_as_parsers(vocabulary: Vocabulary) -> None:
    assert treebank.symbols_by_id(vocabulary) is None
    refuses(treebank.require_parser, (vocabulary, "build/run"), "build/run", "parser", "vocabulary")
