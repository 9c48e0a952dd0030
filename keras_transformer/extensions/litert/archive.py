"""The ZIP archive at the end of a LiteRT model, which makes one file enough to translate text.

It contains the SentencePiece models, and the metadata in `model.json`. The metadata has a checksum
of the model, and the hashes of the SentencePiece models, which the examples in deploy/phone check.
LiteRT ignores the archive.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.text.vocabulary import Vocabulary

# 1 had ids of any length, and no input `lengths`. 2 was never released.
FORMAT_VERSION = 3
_METADATA = "model.json"
_CHECKSUM = "model_crc32"  # key in the metadata: CRC-32 of the bytes before the archive
_ADVICE = "Copy or export it again."


class LiteRTMetadata(NamedTuple):
    """The metadata of a LiteRT model. Longer sources are truncated. The end token counts."""

    n_best: int  # translations of a sentence, K
    batch_size: int  # sentences in the fastest call of `translate_batch`; 1 without this signature
    max_source_tokens: int
    max_source_bytes: int
    max_output_tokens: int
    max_train_source_length: int | None  # longest source in training; None if it is unknown
    has_text: bool  # the model has the signature `translate`
    has_alignments: bool = False  # older files have none
    has_quality: bool = False


def append_archive(path: Path, metadata: LiteRTMetadata, vocabulary: Vocabulary) -> None:
    """Appends the archive to a model file."""
    with path.open("rb") as file:
        checksum = _crc32(file, path.stat().st_size)
    models = vocabulary.models()
    described = {
        name: {"bytes": len(model), "sha256": hashlib.sha256(model).hexdigest()}
        for name, model in models.items()
    }
    fields = {"format_version": FORMAT_VERSION, _CHECKSUM: checksum, "vocabulary": described}
    fields |= metadata._asdict()
    # `ZipInfo` has a fixed date, so equal models have equal files.
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(_METADATA), json.dumps(fields))
        for name, model in models.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, model)


def read_archive(path: Path, file: BinaryIO) -> tuple[LiteRTMetadata, Vocabulary]:
    """Reads the archive of a LiteRT model, and compares the model with its checksum.

    ZIP itself has checksums of the metadata and the vocabulary.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
            model_bytes = min(info.header_offset for info in archive.infolist())
        fields = json.loads(files.pop(_METADATA))
        version = fields["format_version"]
        if version == FORMAT_VERSION:
            known = {name: fields[name] for name in LiteRTMetadata._fields if name in fields}
            metadata = LiteRTMetadata(**known)
            vocabulary = Vocabulary.from_models(files)
    except Exception as error:  # zipfile, zlib and SentencePiece raise many exceptions
        raise InputError(
            f"{path} does not end with the archive of a LiteRT model. The file is cut off or "
            f"damaged, or is not from keras-transformer export --format=litert. {_ADVICE}"
        ) from error
    if version != FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {version!r}. This program reads {FORMAT_VERSION}. Export "
            "the model again with this version of the package."
        )
    if fields.get(_CHECKSUM) != _crc32(file, model_bytes):
        raise InputError(
            f"{path} was changed after the export: the checksum of the model is not the one in "
            f"{_METADATA} at the end of the file. {_ADVICE}"
        )
    return metadata, vocabulary


def _crc32(file: BinaryIO, size: int) -> int:
    """Returns the CRC-32 of the first bytes of a file. It takes about 0.2 s per GB."""
    file.seek(0)
    checksum = 0
    while size > 0 and (block := file.read(min(size, 2**20))):
        checksum = zlib.crc32(block, checksum)
        size -= len(block)
    return checksum
