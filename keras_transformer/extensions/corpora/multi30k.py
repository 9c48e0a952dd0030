"""Multi30k for TFDS: captions of photographs, in English, German and French.

Importing this module registers the set, so that `tfds.load("multi30k/de-en")`
finds it. It is the raw text of task 1 of the Multimodal Translation shared tasks.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds
from etils import epath

_HOMEPAGE = "https://github.com/multi30k/dataset"
_RAW = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
_CITATION = """\
Elliott, Frank, Sima'an and Specia: Multi30K: Multilingual English-German Image Descriptions (2016),
https://doi.org/10.18653/v1/W16-3210. Elliott, Frank, Barrault, Bougares and Specia: Findings of the
Second Shared Task on Multimodal Machine Translation and Multilingual Image Description (2017),
https://doi.org/10.18653/v1/W17-4718."""

# TFDS's name of each split, and its part of the files' names.
_SPLITS = {
    "train": "train",
    "validation": "val",
    "test_2016_flickr": "test_2016_flickr",
    "test_2017_flickr": "test_2017_flickr",
    "test_2017_mscoco": "test_2017_mscoco",
    "test_2018_flickr": "test_2018_flickr",
}

# Name, size in bytes and SHA-256 of each file as it is downloaded. The name is not checksums.tsv,
# because TFDS downloads without a check if that file was lost in packaging.
_FILES = Path(__file__).with_name("multi30k.txt").read_text("utf-8").splitlines()


class Multi30k(tfds.core.GeneratorBasedBuilder):
    """Multi30k, task 1: translations of 31,014 captions and of four test sets."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS: ClassVar = [
        tfds.core.BuilderConfig(name=name, description=f"Multi30k, {name.replace('-', ' and ')}")
        for name in ("de-en", "fr-en", "de-fr")
    ]
    # TFDS reads these from checksums.tsv. A download with another hash fails.
    url_infos: ClassVar = {
        _RAW + name: tfds.download.checksums.UrlInfo(
            size=tfds.core.utils.Size(int(size)), checksum=checksum, filename=name
        )
        for name, size, checksum in map(str.split, _FILES)
    }

    def _info(self) -> tfds.core.DatasetInfo:
        first, second = self.builder_config.name.split("-")
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.Translation(languages=(first, second)),
            supervised_keys=(first, second),
            homepage=_HOMEPAGE,
            citation=_CITATION,
            disable_shuffling=True,  # sentences stay in the order of the files
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        languages = self.builder_config.name.split("-")
        # TFDS would extract in a pool of 4 threads for each core, in which each file waits for
        # another thread of the pool. With 2 cores, these 10 files can block each other forever.
        files = dl_manager.download(
            {
                split: {language: f"{_RAW}{part}.{language}.gz" for language in languages}
                for split, part in _SPLITS.items()
            }
        )
        return {split: self._generate_examples(files[split]) for split in _SPLITS}

    def _generate_examples(self, files: dict[str, str]) -> Iterator[tuple[int, dict[str, str]]]:
        texts = [_lines(path) for path in files.values()]
        for key, sentences in enumerate(zip(*texts, strict=True)):
            yield key, dict(zip(files, sentences, strict=True))


def _lines(path: str) -> list[str]:
    # Text mode and splitlines would also split at a CR or a U+2028 inside a sentence.
    text = gzip.decompress(epath.Path(path).read_bytes()).decode()
    return text.removesuffix("\n").split("\n")
