"""Augmentation of training pairs: a pure function of the corpus, the seed and the options."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from keras_transformer import plugins
from keras_transformer.data.options import DEFAULT_SHARES
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.data.token_store import TokenStore
from keras_transformer.text.symbols import SYMBOLS
from keras_transformer.text.vocabulary import Vocabulary
from tests.builders import refuses
from tests.data.corpora import SMALL, Pairs, numbered, texts, tree
from tests.messages import tells

AUGMENTED = dataclasses.replace(SMALL, augment={"spans": 0.3, "tags": 0.2})


def with_symbols(pairs):
    return [pair for pair in pairs if "｟" in pair[0]]


def test_only_training_pairs_get_symbols_and_the_report_counts_them(tmp_path):
    prepared = prepare([Pairs(numbered(200))], tmp_path / "d", AUGMENTED)
    train, valid = texts(tmp_path / "d", "train"), texts(tmp_path / "d", "valid")
    assert len(valid) == 4 and {*valid} <= {*numbered(200)}
    changed = with_symbols(train)
    counts = prepared.report["augmented"]
    assert sum("｟b" in source for source, _ in changed) == counts["tags"]
    assert sum("｟b" not in source for source, _ in changed) == counts["spans"]
    assert 40 < counts["spans"] < 80 and 25 < counts["tags"] < 55
    assert {*train} - {*changed} <= {*numbered(200)}
    for examples in prepared.report["augmented_examples"].values():
        assert len(examples) == 3 and all(tuple(pair["after"]) in changed for pair in examples)
        assert all(tuple(pair["before"]) in numbered(200) for pair in examples)
    assert tells(prepared.summary(), f"{counts['spans']} with spans", f"{counts['tags']} with tags")
    vocabulary, store = Vocabulary.load(tmp_path / "d"), TokenStore(tmp_path / "d" / "train")
    assert {*SYMBOLS} < {*vocabulary.pieces()[0]}
    assert vocabulary.source_vocab_size <= AUGMENTED.vocab_size
    index = train.index(changed[0])
    ids = store.source.ids(np.array([index])).tolist()
    assert ids == vocabulary.encode_source([changed[0][0].encode()])[0]
    assert {*ids} & {*vocabulary.symbol_ids[0]}


def test_the_result_depends_only_on_corpus_seed_and_options(tmp_path):
    corpora = [Pairs(numbered(100)), Pairs(numbered(100, 100))]  # of a block each
    for name, seed, workers in (("a", 1, 1), ("b", 1, 2), ("c", 2, 1)):
        options = dataclasses.replace(AUGMENTED, seed=seed)
        prepare(corpora, tmp_path / name, options, num_workers=workers)
    assert tree(tmp_path / "a") == tree(tmp_path / "b") != tree(tmp_path / "c")


def test_a_given_vocabulary_decides_about_symbols(tmp_path):
    prepare([Pairs(numbered(30))], tmp_path / "plain", SMALL)
    assert Vocabulary.load(tmp_path / "plain").symbol_ids is None
    prepare([Pairs(numbered(30))], tmp_path / "symbols", AUGMENTED)
    default = dataclasses.replace(SMALL, augment=DEFAULT_SHARES)
    for name, options, expected in (("plain", default, False), ("symbols", AUGMENTED, True)):
        given = Vocabulary.load(tmp_path / name)
        data = prepare([Pairs(numbered(50))], tmp_path / "d" / name, options, vocab_from=given)
        assert Vocabulary.load(data).fingerprint == given.fingerprint
        assert bool(with_symbols(texts(data.directory, "train"))) == expected
        assert bool(data.report["augmented"]) == expected
    given = {"vocab_from": Vocabulary.load(tmp_path / "plain"), "options": AUGMENTED}
    given |= {"corpora": [Pairs(numbered(50))], "output_dir": tmp_path / "e"}
    refuses(prepare, given, "lacks the symbols", "augment=spans")


def test_pairs_that_would_become_too_long_stay_as_they_are(tmp_path):
    prepared = prepare([Pairs(numbered(60))], tmp_path / "d", AUGMENTED)
    longest = max(prepared.report["train"][side]["max_length"] for side in ("source", "target"))
    plain = prepare([Pairs(numbered(60))], tmp_path / "e", SMALL).report["train"]
    most = max(plain[side]["max_length"] for side in ("source", "target"))
    assert most < longest
    options = dataclasses.replace(AUGMENTED, max_tokens=most)
    limited = prepare([Pairs(numbered(60))], tmp_path / "f", options).report
    assert limited["train"]["pairs"] == plain["pairs"]
    assert not limited["cleaning"]["train"]["dropped"]
    assert sum(limited["augmented"].values()) < sum(prepared.report["augmented"].values())


class Shouting:
    """An augmentation of another package."""

    kinds, symbols = ("capitals",), ()

    def __init__(self, learned, vocabulary):
        self.pairs = learned["pairs"]

    @staticmethod
    def learn(pairs):
        return {"pairs": len(pairs)}

    def __call__(self, kind, pair, following, random_):
        assert kind == "capitals" and self.pairs > 0
        target = "" if pair[0] == "the 6 dogs" else following[1].upper()  # which stays as it is
        return (pair[0].upper(), target) if pair[0][-6] in "67" else None


@pytest.fixture
def shouting(monkeypatch):
    points = {"augmentations": {"shouting": SimpleNamespace(load=lambda: Shouting)}}
    monkeypatch.setattr(plugins, "entry_points", lambda group: points.get(group, {}))


def test_other_packages_add_augmentations(tmp_path, shouting):
    options = PrepareOptions(vocab_size=320, augment={"capitals": 1.0})
    prepared = prepare([Pairs(numbered(20))], tmp_path / "e", options)
    assert prepared.report["augmented"] == {"capitals": 0}, "capitals are unknown"
    options = dataclasses.replace(options, byte_fallback=True)
    prepared = prepare([Pairs(numbered(20))], tmp_path / "d", options)
    shouted = [pair for pair in texts(tmp_path / "d", "train") if pair[0].isupper()]
    assert prepared.report["augmented"] == {"capitals": len(shouted)}
    assert {*shouted} <= {(f"THE {i} DOGS", f"DIE {i + 1} HUNDE") for i in (7, 16, 17)}


def test_unknown_changes_are_errors_but_the_defaults_need_no_extension(tmp_path, shouting):
    prepared = prepare([Pairs(numbered(20))], tmp_path / "d", PrepareOptions(vocab_size=80))
    assert prepared.report["augmented"] == {}
    options = PrepareOptions(vocab_size=80, augment={"capital": 0.1})
    refuses(prepare, ([Pairs(numbered(20))], tmp_path / "e", options), "'capital'", "capitals")
