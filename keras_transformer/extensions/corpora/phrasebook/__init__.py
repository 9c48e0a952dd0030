"""An embedded English-German corpus of short phrases, generated without a download.

Dates, times, amounts, units and names come from the Unicode CLDR through `babel`;
hand-written templates put them into sentences.
"""

from keras_transformer.extensions.corpora.phrasebook.corpus import (
    TEMPLATES,
    Phrase,
    Split,
    Template,
    phrases,
    split,
    write_corpus,
)

__all__ = [
    "TEMPLATES",
    "Phrase",
    "Split",
    "Template",
    "phrases",
    "split",
    "write_corpus",
]
