"""TFDS sets on disk: real names, features and files, with invented sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from unittest import mock

import tensorflow_datasets as tfds

from keras_transformer.extensions.corpora import tfds as tfds_module


def write_set(
    name: str,
    data_dir: Path,
    splits: Mapping[str, Iterable[tuple[str | bytes, str | bytes]]],
    *,
    file_format: str = "tfrecord",
    shards: int = 1,
) -> Path:
    """Prepares a set with the given texts of each split. The first language comes first.

    Returns:
        Its directory.
    """
    builder = tfds_module._builder(name, str(data_dir))
    languages = builder.info.features.keys()
    generators = {
        split: [(i, dict(zip(languages, pair, strict=True))) for i, pair in enumerate(pairs)]
        for split, pairs in splits.items()
    }
    with mock.patch.object(type(builder), "_split_generators", lambda *_: generators):
        builder.download_and_prepare(
            file_format=file_format,
            download_config=tfds.download.DownloadConfig(num_shards=shards),
        )
    return Path(builder.data_dir)
