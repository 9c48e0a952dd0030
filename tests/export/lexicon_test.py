"""The lexicon of a corpus: frequent tokens, and the translations of each source token."""

import numpy as np
import pytest

from keras_transformer.data.token_store import TokenStore, encoded, write_index, write_shard
from keras_transformer.errors import InputError
from keras_transformer.export import lexicon
from keras_transformer.export.lexicon import learn_lexicon
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.messages import mentions


@pytest.fixture(scope="module")
def vocabularies() -> dict[str, Vocabulary]:
    letters = b"abcdefghijklmnopqrstuvwxyz"
    model = learn_vocabulary([letters, letters[::-1]], 32)
    return {"joint": Vocabulary(model), "separate": Vocabulary(model, model)}


def write(directory, pairs) -> TokenStore:
    columns = [[*column] for column in zip(*pairs, strict=True)] or [[], []]
    sides = [encoded([b"x"] * len(pairs), ids, 2**16) for ids in columns]
    digest = write_shard(directory / "0", *sides)
    directory.mkdir(exist_ok=True)
    write_index(directory, [("0", len(pairs), digest)])
    return TokenStore(directory)


# Token s from 4 to 13 is translated by s + 10. Token 24 is in every target.
def random_pairs(count: int) -> list[tuple[list[int], list[int]]]:
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
    monkeypatch.setattr(lexicon, "_LINKS_AT_ONCE", links_at_once)
    store = write(tmp_path / "s", random_pairs(60))
    found = learn_lexicon(store, vocabularies["separate"], size=1)
    assert found.frequent.tolist() == [3, 1, 24]
    assert found.translations.shape == (vocabularies["separate"].source_vocab_size, 1)
    assert found.translations[4:14, 0].tolist() == list(range(14, 24))
    assert (found.translations[[0, 1, 2, 14, 24]] == 3).all()  # tokens without translations


def test_a_joint_vocabulary_copies_tokens(tmp_path, vocabularies):
    found = learn_lexicon(write(tmp_path / "s", random_pairs(60)), vocabularies["joint"], size=2)
    assert found.translations[:, 0].tolist() == [3, 1, 3, *range(3, len(found.translations))]
    # Only one token is frequent enough to be the second best.
    assert set(found.frequent.tolist()) >= {1, 3, 24}
    rest = [s for s in range(4, 14) if s + 10 not in found.frequent]
    assert [found.translations[s, 1] for s in rest] == [s + 10 for s in rest]


def test_large_corpora_are_sampled(tmp_path, monkeypatch, vocabularies):
    monkeypatch.setattr(lexicon, "_MAX_LINKS", 1000)  # half of the links
    store = write(tmp_path / "s", random_pairs(100))
    one, same, other = (
        learn_lexicon(store, vocabularies["separate"], 1, seed=seed) for seed in (1, 1, 2)
    )
    assert one.translations[4:14, 0].tolist() == list(range(14, 24))
    np.testing.assert_array_equal(one.translations, same.translations)
    assert other.translations.shape == one.translations.shape


def test_stores_that_cannot_be_learned_from_are_errors(tmp_path, vocabularies):
    vocabulary = vocabularies["separate"]
    with pytest.raises(InputError, match=mentions("no pairs", tmp_path / "empty")):
        learn_lexicon(write(tmp_path / "empty", []), vocabulary, 5)
    foreign = write(tmp_path / "foreign", [([40, 3], [5, 3])])
    with pytest.raises(InputError, match=mentions("source", 40, "vocabulary", "trained on")):
        learn_lexicon(foreign, vocabulary, 5)
    for size in (0, 10**12):
        with pytest.raises(InputError, match=mentions("size", f"{size:,}", 1)):
            learn_lexicon(foreign, vocabulary, size)
    (tmp_path / "foreign" / "0" / "target_ids.npy").write_bytes(b"damaged")
    with pytest.raises(InputError, match=mentions("target_ids.npy", "Prepare")):
        TokenStore(tmp_path / "foreign")
