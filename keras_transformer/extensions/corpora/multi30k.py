"""Multi30k for TFDS: captions of photographs, in English, German and French.

Importing this module registers the set, so that `tfds.load("multi30k/de-en")`
finds it. It is the raw text of task 1 of the Multimodal Translation shared tasks.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
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

# Name, size in bytes and SHA-256 of each file as it is downloaded. They are here and not in
# checksums.tsv, because TFDS downloads without a check if that file was lost in packaging.
_FILES = """
train.en.gz 568929 d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f
train.de.gz 637044 726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6
train.fr.gz 604242 622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c
val.en.gz 21650 14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28
val.de.gz 24681 f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a
val.fr.gz 23001 ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9
test_2016_flickr.en.gz 21077 611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9
test_2016_flickr.de.gz 22890 9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8
test_2016_flickr.fr.gz 22310 6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90
test_2017_flickr.en.gz 19138 76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074
test_2017_flickr.de.gz 21471 a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee
test_2017_flickr.fr.gz 20434 3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496
test_2017_mscoco.en.gz 8844 aab300bfb4427697987e02cd0aacd44bfe8aa50456231b6474c08038bbed2b58
test_2017_mscoco.de.gz 10230 799e4854c25d601cb6cb6be29eabe5667734c61ace2f495e03e429031a0bc338
test_2017_mscoco.fr.gz 9751 754f3072ba9f124569ba5258b32730fc1d214bbf8e0c6dfb2b74401676220db0
test_2018_flickr.en.gz 23514 ef4f4844037d4c5dea75c9a8ed5fd78905967a26f67c255e230cc9780032654d
test_2018_flickr.de.gz 26461 ddd0130c7d97482dc5197a02141dae8dd79f20f03586c480d675c09a32daf608
test_2018_flickr.fr.gz 25321 fb2b83fcceb937a4f7e3e93c1c51c22aba92f1e342391e6b5ba392b16a920501
"""


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
        for name, size, checksum in map(str.split, _FILES.strip().splitlines())
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
