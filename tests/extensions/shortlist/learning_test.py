"""Shortlists: learned from the data of a run, and CTranslate2's file."""

import ctranslate2
import numpy as np
import pytest
import sentencepiece

from keras_transformer import plugins
from keras_transformer.data.token_store import TokenStore, write_index, write_shard
from keras_transformer.extensions.alignment import ibm_model_1
from keras_transformer.extensions.ctranslate2.exporter import save_model, save_shortlist
from keras_transformer.extensions.shortlist import learning
from keras_transformer.extensions.shortlist.learning import learn_shortlist, shortlist_of
from keras_transformer.inference.loading import load_translator
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.builders import refuses
from tests.conftest import PHRASES, random_shortlist


@pytest.fixture(scope="module")
def vocabularies():
    letters = b"abcdefghijklmnopqrstuvwxyz"
    model = learn_vocabulary([letters, letters[::-1]], 32)
    return {"joint": Vocabulary(model), "separate": Vocabulary(model, model)}


def write(directory, pairs):
    lines, ids = [[b"x"] * len(pairs)] * 2, [*zip(*pairs, strict=True)]
    shards = []
    if pairs:
        shards = [("0", len(pairs), *write_shard(directory / "0", lines, ids, (60, 60)))]
    write_index(directory, shards)
    return TokenStore(directory)


def learn(store, vocabulary, size, seed=1):
    """Returns the frequent tokens, and the translations of each source token."""
    found = shortlist_of(store, vocabulary, size, seed=seed)
    return found.frequent.numpy(), found.translations.numpy()


# Token s from 4 to 13 is translated by s + 10. Token 24 is in every target.
def random_pairs(count):
    random = np.random.default_rng(7)
    pairs = []
    for _ in range(count):
        source = random.choice(np.arange(4, 14), 4, replace=False).tolist()
        target = [source[i] + 10 for i in random.permutation(4)]
        pairs.append(([*source, 3], [24, *target, 3]))
    return pairs


@pytest.mark.parametrize("links_at_once", [7, 2_000_000])
def test_the_best_translation_is_found_in_any_order_and_block(
    tmp_path, monkeypatch, vocabularies, links_at_once
):
    monkeypatch.setattr(ibm_model_1, "_LINKS_AT_ONCE", links_at_once)
    store = write(tmp_path / "s", random_pairs(60))
    frequent, translations = learn(store, vocabularies["separate"], size=1)
    assert frequent.tolist() == [3, 1, 24]
    assert translations.shape == (vocabularies["separate"].source_vocab_size, 1)
    assert translations[4:14, 0].tolist() == list(range(14, 24))
    assert (translations[[0, 1, 2, 14, 24]] == 3).all()  # tokens without translations


def test_a_joint_vocabulary_copies_tokens(tmp_path, vocabularies):
    store = write(tmp_path / "s", random_pairs(60))
    frequent, translations = learn(store, vocabularies["joint"], size=2)
    assert translations[:, 0].tolist() == [3, 1, 3, *range(3, len(translations))]
    # Only one token is frequent enough to be the second best.
    assert set(frequent.tolist()) >= {1, 3, 24}
    rest = [s for s in range(4, 14) if s + 10 not in frequent]
    assert [translations[s, 1] for s in rest] == [s + 10 for s in rest]


def test_large_corpora_are_sampled(tmp_path, monkeypatch, vocabularies):
    monkeypatch.setattr(learning, "_MAX_LINKS", 1000)  # half of the links
    store = write(tmp_path / "s", random_pairs(100))
    one, same, other = (
        learn(store, vocabularies["separate"], 1, seed=seed)[1] for seed in (1, 1, 2)
    )
    assert one[4:14, 0].tolist() == list(range(14, 24))
    np.testing.assert_array_equal(one, same)
    assert other.shape == one.shape


def test_stores_that_cannot_be_learned_from_are_errors(tmp_path, vocabularies):
    common = {"vocabulary": vocabularies["separate"], "size": 5}
    empty = {**common, "store": write(tmp_path / "empty", [])}
    refuses(shortlist_of, empty, "no pairs", tmp_path / "empty")
    for size in (0, 10**12):
        store = {**common, "store": write(tmp_path / "s", random_pairs(1)), "size": size}
        refuses(shortlist_of, store, "size", f"{size:,}", 1)


def test_other_data_is_an_error(run_directory, tagged_run, tmp_path):
    common = {"run": run_directory, "data_dir": tmp_path, "size": 50}
    refuses(learn_shortlist, {**common, "data_dir": None}, "training data", "data_dir")
    tagged_run.tokenizer().save(tmp_path)
    refuses(learn_shortlist, common, "different vocabularies", run_directory.path)
    run_directory.tokenizer().save(tmp_path)
    refuses(learn_shortlist, common, tmp_path / "train", "not a token store")


def test_the_data_of_the_run_gives_a_shortlist(run_directory, tmp_path):
    run_directory.tokenizer().save(tmp_path)
    vocabulary, lines = Vocabulary.load(tmp_path), [phrase.encode() for phrase in PHRASES]
    ids = vocabulary.encode_source(lines)
    digests = write_shard(tmp_path / "train" / "0", [lines] * 2, [ids] * 2, (60, 60))
    write_index(tmp_path / "train", [("0", len(lines), *digests)])
    option = plugins.find("export_options", "shortlist")
    shortlist = option.learn(str(run_directory.path), str(tmp_path), "8")
    assert shortlist.describe() == {"frequent": 10, "translations": 8}


def test_ctranslate2_uses_the_shortlist(run_directory, tmp_path):
    translator = load_translator(run_directory)
    shortlist = random_shortlist(run_directory, 2)
    vocabulary = translator.tokenizer.vocabulary
    save_model(translator, "float32", tmp_path)
    save_shortlist(shortlist, vocabulary, tmp_path)
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.source_model)
    _, target = vocabulary.pieces()
    engine = ctranslate2.Translator(str(tmp_path))
    whole = 0
    for phrase in PHRASES:
        source = processor.id_to_piece(processor.encode(phrase))
        ids, *_ = translator.source_ids([phrase])
        allowed = {target[i] for i in shortlist(ids).numpy().ravel()} | {"<s>"}
        (result,) = engine.translate_batch([source], use_vmap=True, max_decoding_length=20)
        assert set(result.hypotheses[0]) <= allowed
        (result,) = engine.translate_batch([source], max_decoding_length=20)
        whole += not set(result.hypotheses[0]) <= allowed
    assert whole  # without the shortlist, the engine uses other tokens
