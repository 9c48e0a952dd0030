"""Sampled segmentations: text, probabilities, keys, lengths, and a row for each pair that fits."""

import collections
import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import sentencepiece

from keras_transformer.data.subwords import hashed, key_of, regroup, samplers_of
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.builders import PHRASES, refuses
from tests.data.pairs_in_memory import END, PAD, START, batches, encoded

LINES = [phrase.encode() for phrase in PHRASES]


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary(learn_vocabulary(LINES, 90))


@pytest.fixture(scope="module")
def model(vocabulary):
    return sentencepiece.SentencePieceProcessor(model_proto=vocabulary.source_model)


def draw(vocabulary, lines, alpha=0.2, keys=None, longest=None):
    """Returns the drawn source ids of each line."""
    store = encoded(vocabulary, lines, lines)
    pairs = np.arange(len(lines))
    keys = hashed(key_of(1), pairs) if keys is None else keys
    sampler, _ = samplers_of(vocabulary, alpha)
    longest = None if longest is None else np.full(len(lines), longest)
    return [ids.tolist() for ids in sampler.draw(store.source, pairs, keys, longest)]


def test_drawn_ids_spell_the_same_text(vocabulary, model):
    drawn = draw(vocabulary, LINES * 20)
    best = vocabulary.encode_source(LINES * 20)
    for ids, best_ids in zip(drawn, best, strict=True):
        assert ids[-1] == END and END not in ids[:-1]
        assert model.decode(ids) == model.decode(best_ids)
    assert sum(a != b for a, b in zip(drawn, best, strict=True)) > 100
    assert len({tuple(ids) for ids in drawn}) > 100


@hypothesis.settings(max_examples=200)
@hypothesis.given(st.lists(st.text(max_size=30), min_size=1, max_size=4))
def test_without_randomness_any_text_has_its_stored_segmentation(vocabulary, lines):
    """With a large alpha, only the best segmentation is drawn. U+2581 is white space."""
    lines = [line.replace("\u2581", " ").encode("utf-8", "ignore") for line in lines]
    model = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.source_model)
    drawn = draw(vocabulary, lines, alpha=1e6)
    for ids, best in zip(drawn, vocabulary.encode_source(lines), strict=True):
        assert model.decode(ids) == model.decode(best)


def all_segmentations(model, word):
    """Returns {ids: score} of every way to cut a word into pieces."""
    pieces = {model.id_to_piece(i): i for i in range(4, model.get_piece_size())}
    found = {}
    for cuts in itertools.product((False, True), repeat=len(word) - 1):
        parts, start = [], 0
        for end in [i for i, cut in enumerate(cuts, start=1) if cut] + [len(word)]:
            parts.append(word[start:end])
            start = end
        if all(part in pieces for part in parts):
            ids = tuple(pieces[part] for part in parts)
            found[ids] = sum(model.get_score(i) for i in ids)
    return found


def test_words_are_drawn_by_probability_to_the_power_of_alpha(vocabulary, model):
    count, alpha = 20_000, 0.5
    drawn = collections.Counter(
        tuple(ids[:-1]) for ids in draw(vocabulary, [b"red"] * count, alpha)
    )
    scores = all_segmentations(model, "\u2581red")
    assert len(scores) >= 3
    chances = np.exp(alpha * np.array(list(scores.values())))
    expected = count * chances / chances.sum()
    found = np.array([drawn[ids] for ids in scores])
    assert found.sum() == count
    chi_square = ((found - expected) ** 2 / expected).sum()
    assert chi_square < len(scores) - 1 + 5 * np.sqrt(2 * (len(scores) - 1))


def test_words_of_a_sentence_are_drawn_each_by_itself(vocabulary):
    drawn = draw(vocabulary, [b"red red"] * 2000, 0.5)
    (words,) = {tuple(ids[:-1]) for ids in draw(vocabulary, [b"red"], 1e6)}
    same = sum(ids[:-1] == list(words) * 2 for ids in drawn) / 2000
    first = sum(ids[: len(words)] == list(words) for ids in drawn) / 2000
    assert 0.1 < first < 0.9 and abs(same - first**2) < 0.05


def test_keys_decide_for_each_sentence_by_itself(vocabulary):
    lines = LINES * 3
    keys = hashed(key_of(1), np.arange(len(lines)))
    forward = draw(vocabulary, lines, keys=keys)
    assert draw(vocabulary, lines[::-1], keys=keys[::-1])[::-1] == forward
    assert draw(vocabulary, lines, keys=hashed(key_of(2), np.arange(len(lines)))) != forward
    assert draw(vocabulary, lines[4:5], keys=keys[4:5]) == forward[4:5]


def test_too_long_segmentations_are_drawn_again_or_kept(vocabulary):
    best = vocabulary.encode_source(LINES)
    longest = min(map(len, best))
    assert any(len(ids) > longest for ids in draw(vocabulary, LINES))
    for ids, best_ids in zip(draw(vocabulary, LINES, 1e-3, longest=longest), best, strict=True):
        assert len(ids) <= longest or ids == best_ids
    # Half of the draws fit at once, and almost no sentence keeps its best segmentation.
    lines = LINES[:1] * 500
    room = int(np.median([len(ids) for ids in draw(vocabulary, lines)]))
    drawn = draw(vocabulary, lines, longest=room)
    assert max(map(len, drawn)) == room > len(best[0])
    assert sum(ids == best[0] for ids in drawn) < 100


def test_tags_are_never_split():
    vocabulary = Vocabulary(learn_vocabulary(LINES, 90, symbols=["<2de>"]))
    model = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.source_model)
    tag = model.piece_to_id("<2de>")
    lines = [b"<2de> " + line for line in LINES] * 20
    for ids, best in zip(
        draw(vocabulary, lines, 0.01), vocabulary.encode_source(lines), strict=True
    ):
        assert ids.count(tag) == 1 and ids[:2] == best[:2]


def test_byte_fallback_and_two_vocabularies():
    source = Vocabulary(learn_vocabulary(LINES, 350, byte_fallback=True)).source_model
    target = learn_vocabulary(LINES[3:], 60)
    vocabulary = Vocabulary(source, target)
    lines = ["a small dög 漢字".encode()]
    (ids,) = draw(vocabulary, lines, 1e6)
    assert [ids] == vocabulary.encode_source(lines)
    store = encoded(vocabulary, lines, LINES[3:4])
    _, sampler = samplers_of(vocabulary, 1e6)
    (found,) = sampler.draw(store.target, np.arange(1), key_of(1))
    assert [found.tolist()] == vocabulary.encode_target(LINES[3:4])


class TestBatches:
    def make(self, vocabulary, alpha=0.2, seed=1):
        lines = LINES * 15
        store = encoded(vocabulary, lines, lines[::-1])
        return store, batches([store], 256, seed, vocabulary, subword_alpha=alpha)

    def sentences(self, made, model, epoch):
        """Returns (source ids, target ids) of each row of an epoch."""
        found = []
        for step in range(epoch * made.steps_per_epoch, (epoch + 1) * made.steps_per_epoch):
            inputs, labels = made.batch(step)
            assert (*inputs["source_ids"].shape, labels.shape[1]) in made.shapes
            for source, shown, target in zip(*inputs.values(), labels, strict=True):
                real = int((target != PAD).sum())
                if real:
                    assert shown[0] == START and (shown[1:real] == target[: real - 1]).all()
                    assert (shown[real:] == PAD).all() and target[real - 1] == END
                    found.append((tuple(source[source != PAD]), tuple(target[:real])))
        return found

    def test_epochs_contain_every_pair_once_with_new_segmentations(self, vocabulary, model):
        store, made = self.make(vocabulary)
        expected = collections.Counter(
            (model.decode(source), model.decode(target))
            for source, target in zip(store.source.rows, store.target.rows, strict=True)
        )
        epochs = [self.sentences(made, model, epoch) for epoch in (0, 1)]
        for found in epochs:
            texts = (
                (model.decode(list(map(int, s))), model.decode(list(map(int, t)))) for s, t in found
            )
            assert collections.Counter(texts) == expected
        assert len(set(epochs[0]) & set(epochs[1])) < len(store) / 2

    def test_are_pure_functions_of_corpus_seed_and_step(self, vocabulary):
        _, walked = self.make(vocabulary)
        for step in range(7):
            walked.batch(step)
        _, fresh = self.make(vocabulary)
        for parts in (1, 3):
            rows = [fresh.batch(6, part, parts)[1] for part in range(parts)]
            whole = walked.batch(6)[1]
            np.testing.assert_array_equal(np.concatenate(rows)[: len(whole)], whole)
        _, other = self.make(vocabulary, seed=2)
        assert not np.array_equal(other.batch(6)[1], walked.batch(6)[1])

    def test_hardly_a_sentence_is_drawn_as_short_as_can_be_to_fit(self, vocabulary):
        store, made = self.make(vocabulary)
        drawn = [len(target) for _, target in self.sentences(made, None, 0)]
        free = draw(vocabulary, LINES * 15)
        best = store.target.lengths.sum()
        assert sum(drawn) - best > 0.8 * (sum(map(len, free)) - best)

    def test_have_little_padding(self, test_data):
        lines = [
            (test_data / f"multi30k/train.{code}").read_bytes().split(b"\n")[:3000]
            for code in ("en", "de")
        ]
        vocabulary = Vocabulary(learn_vocabulary(itertools.chain(*lines), 2000))
        store = encoded(vocabulary, *lines)
        made = batches([store], 2048, vocabulary=vocabulary, subword_alpha=0.2)
        epoch = [made.batch(step) for step in range(made.steps_per_epoch)]
        arrays = [ids for inputs, labels in epoch for ids in (inputs["source_ids"], labels)]
        padding = 1 - sum(map(np.count_nonzero, arrays)) / sum(ids.size for ids in arrays)
        assert padding < 0.16 and made.padding_share == pytest.approx(padding, abs=0.04)
        assert len({ids.shape for ids in arrays[1::2]}) <= 16


def test_errors_name_the_invalid_argument(vocabulary):
    bpe = Vocabulary(learn_vocabulary(LINES, 90, model_type="bpe"))
    mixed = Vocabulary(vocabulary.source_model, bpe.source_model)
    for vocabulary_, alpha, facts in (
        (bpe, 0.2, ("source vocabulary", "bpe", "unigram")),
        (mixed, 0.2, ("target vocabulary", "bpe")),
        (vocabulary, 0, ("alpha", "subword", "0")),
        (vocabulary, float("inf"), ("alpha", "subword", "inf")),
    ):
        refuses(samplers_of, {"vocabulary": vocabulary_, "alpha": alpha}, *facts)


def test_keys_depend_on_each_number_and_its_place():
    keys = [int(key_of(*numbers)[0]) for numbers in ((1, 2), (2, 1), (1, 2, 1), (1,), (12,))]
    assert len(set(keys)) == len(keys)
    assert len(np.unique(hashed(key_of(1), np.arange(100_000)))) == 100_000


SIDE = st.integers(1, 6)
PAIRS = st.lists(
    st.tuples(SIDE, SIDE, SIDE, SIDE, st.integers(0, 3), st.integers(0, 3)), min_size=1
)


@hypothesis.given(PAIRS)
def test_rows_of_any_pairs(pairs):
    columns = np.array(pairs)
    least = columns[:, :2]
    bounds = least + columns[:, 4:]
    lengths = np.maximum(columns[:, 2:4], least)
    row_of, too_long = regroup(bounds, lengths, least)
    assert sorted(row_of.tolist()) == list(range(len(pairs)))
    assert (too_long == (lengths > bounds[row_of]).any(axis=1)).all()
    assert (least <= bounds[row_of]).all(), "who is too long can be shortened"
    if (lengths <= bounds).all() and len(np.unique(bounds, axis=0)) == 1:
        assert not too_long.any()
