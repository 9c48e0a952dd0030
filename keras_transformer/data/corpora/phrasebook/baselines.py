"""What is scored without learning anything: the floor that a translator must rise above."""

from collections.abc import Sequence

import numpy as np

from keras_transformer.data.corpora.phrasebook.corpus import Phrase


def copy_exact_match(test: Sequence[Phrase]) -> float:
    """Share of the phrases whose German is their English."""
    return sum(phrase.english == phrase.german for phrase in test) / len(test)


def _trigrams(text: str) -> set[str]:
    padded = f"  {text.lower()} "
    return {padded[i : i + 3] for i in range(len(padded) - 2)}


def nearest_phrase_exact_match(train: Sequence[Phrase], test: Sequence[Phrase]) -> float:
    """Share of `test` that a translation memory gets right.

    The memory answers with the German of the training phrase whose English is most similar:
    the highest Dice coefficient of character-trigram sets, the first of equals.
    """
    postings: dict[str, list[int]] = {}
    sizes = np.zeros(len(train), np.int64)
    for i, phrase in enumerate(train):
        trigrams = _trigrams(phrase.english)
        sizes[i] = len(trigrams)
        for trigram in trigrams:
            postings.setdefault(trigram, []).append(i)
    rows = {trigram: np.array(indices, np.int64) for trigram, indices in postings.items()}
    correct = 0
    for phrase in test:
        trigrams = _trigrams(phrase.english)
        common = np.zeros(len(train), np.int64)
        for trigram in trigrams & rows.keys():
            common[rows[trigram]] += 1
        nearest = int(np.argmax(2 * common / (sizes + len(trigrams))))
        correct += train[nearest].german == phrase.german
    return correct / len(test)
