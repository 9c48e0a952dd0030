"""The phrasebook for TFDS: generated, so that nothing is downloaded.

Importing this module registers the set, so that `tfds.load("phrasebook/de-en")`
finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import tensorflow_datasets as tfds
from babel.core import get_cldr_version

from keras_transformer.extensions.corpora.phrasebook import Phrase, phrases, split


class Phrasebook(tfds.core.GeneratorBasedBuilder):
    """Short phrases in English and German, made from the Unicode CLDR and templates."""

    # A different version of the CLDR gives different phrases.
    VERSION = tfds.core.Version(f"1.{int(float(get_cldr_version()))}.0")
    BUILDER_CONFIGS: ClassVar = [
        tfds.core.BuilderConfig(name="de-en", description="Phrases in German and English")
    ]

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.Translation(languages=("de", "en")),
            supervised_keys=("de", "en"),
            homepage="https://cldr.unicode.org",
            disable_shuffling=True,  # phrases stay in the order of `write_corpus`
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        names = ("train", "validation", "test")
        parts = zip(names, split(phrases()).values(), strict=True)
        return {name: self._generate_examples(part) for name, part in parts}

    def _generate_examples(self, part: Iterable[Phrase]) -> Iterator[tuple[int, dict[str, str]]]:
        for key, phrase in enumerate(part):
            yield key, {"de": phrase.german, "en": phrase.english}
