"""Small corpora, and the texts of prepared data."""

import dataclasses
from pathlib import Path

from keras_transformer.data.prepare import PrepareOptions
from keras_transformer.data.token_store import TokenStore

ROOT = Path(__file__).resolve().parents[2]
SMALL = PrepareOptions(vocab_size=80, augment={})


@dataclasses.dataclass
class Pairs:
    """A corpus without a file."""

    content: list
    name: str = "pairs"

    def pairs(self):
        return iter([(source.encode(), target.encode()) for source, target in self.content])


def numbered(count, start=0):
    """Pairs with a different text each."""
    return [(f"the {i} dogs", f"die {i} Hunde") for i in range(start, start + count)]


def texts(directory, split):
    store = TokenStore(directory / split)
    return list(zip(store.source.text(), store.target.text(), strict=True))


def tree(directory):
    """Returns the content of all files but the reports."""
    return {
        path.relative_to(directory): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.stem != "report"
    }
