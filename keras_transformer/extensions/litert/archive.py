"""The ZIP archive at the end of a LiteRT model, which makes one file enough to translate text.

It contains the SentencePiece models, and the metadata in `model.json`. The metadata has a checksum
of the model, and the hashes of the SentencePiece models. LiteRT ignores the archive.
"""

from __future__ import annotations

import hashlib
import json
import typing
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.schema import Bounds, check_scalar
from keras_transformer.text.vocabulary import Vocabulary

# 1 had ids of any length, and no input `lengths`. 2 was never released.
FORMAT_VERSION = 3
_METADATA = "model.json"
_CHECKSUM = "model_crc32"  # in the metadata: of the bytes before the archive
_VOCABULARY = "vocabulary"  # in the metadata: sizes and hashes of the SentencePiece models
_Count = Annotated[int, Bounds(least=1)]


class LiteRTMetadata(NamedTuple):
    """The metadata of a LiteRT model.

    Attributes:
        n_best: translations of a sentence, K.
        batch_size: sentences in a call for which `translate_batch` is fastest, or 1 if the model
            has no such signature.
        max_source_tokens: longest source, including the end token; longer ones are truncated.
        max_source_bytes: longest source text in bytes; longer ones are truncated.
        max_output_tokens: longest translation, including the end token.
        max_train_source_length: longest source in training, or None if it is unknown.
        has_text: whether the model has the signature `translate`.

    Example:
    >>> LiteRTMetadata(1, 1, 1024, 16384, 1074, None, has_text=True).n_best
    1
    """

    n_best: _Count
    batch_size: _Count
    max_source_tokens: _Count
    max_source_bytes: _Count
    max_output_tokens: _Count
    max_train_source_length: _Count | None
    has_text: bool


def append_archive(path: Path, metadata: LiteRTMetadata, vocabulary: Vocabulary) -> None:
    """Appends the archive to a model file.

    Args:
        path: the file.
        metadata: metadata of the model.
        vocabulary: the SentencePiece models.

    Example:
    >>> metadata = LiteRTMetadata(1, 1, 1024, 16384, 1074, None, has_text=True)
    >>> _ = Path("model.tflite").write_bytes(b"model")
    >>> append_archive(Path("model.tflite"), metadata, Vocabulary.load("build/run/tokenizer"))
    >>> zipfile.ZipFile("model.tflite").namelist()
    ['model.json', 'joint.model']
    """
    with path.open("rb") as file:
        checksum = _crc32(file, path.stat().st_size)
    models = vocabulary.models()
    fields = {
        "format_version": FORMAT_VERSION,
        _CHECKSUM: checksum,
        _VOCABULARY: _describe(models),
        **metadata._asdict(),
    }
    # `ZipInfo` has a fixed date, so equal models have equal files.
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(_METADATA), json.dumps(fields))
        for name, model in models.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, model)


def read_archive(path: Path, file: BinaryIO, verify: bool) -> tuple[LiteRTMetadata, Vocabulary]:
    """Reads the archive of a LiteRT model.

    Args:
        path: place of the file in error messages.
        file: the content.
        verify: compares the model before the archive, and the vocabulary, with the metadata.

    Raises:
        InputError: if the file is damaged or was not written by keras-transformer export.

    Example:
    >>> path = Path("build/litert/1/model.tflite")
    >>> metadata, vocabulary = read_archive(path, path.open("rb"), verify=True)
    >>> metadata.n_best
    1
    """
    advice = "Copy or export it again."
    try:
        with zipfile.ZipFile(file) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
            model_bytes = min(info.header_offset for info in archive.infolist())
        fields = json.loads(files.pop(_METADATA))
        version, checksum = fields.pop("format_version"), fields.pop(_CHECKSUM, None)
        listed = fields.pop(_VOCABULARY, None)  # the first files of version 3 do not have it
    except Exception as error:  # zipfile and zlib raise many exceptions for damaged files
        raise InputError(
            f"{path} does not end with the archive of a LiteRT model. The file is cut off or "
            f"damaged, or is not from keras-transformer export --format=litert. {advice}"
        ) from error
    if version != FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {version!r}. This program reads {FORMAT_VERSION}. Export "
            "the model again with this version of the package."
        )
    if verify and checksum != _crc32(file, model_bytes):
        raise InputError(
            f"{path} was changed after the export: the checksum of the model is not the one in "
            f"{_METADATA} at the end of the file. {advice}"
        )
    if verify and listed not in (None, _describe(files)):
        raise InputError(
            f"The vocabulary at the end of {path} was changed after the export: it is not the one "
            f"that {_METADATA} describes. {advice}"
        )
    try:
        for name, hint in typing.get_type_hints(LiteRTMetadata, include_extras=True).items():
            check_scalar(name, hint, fields[name])
        return LiteRTMetadata(**fields), Vocabulary.from_models(files)
    except Exception as error:  # SentencePiece raises many exceptions for damaged models
        raise InputError(
            f"The metadata or the vocabulary at the end of {path} is damaged. {advice}"
        ) from error


def _describe(models: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """Returns the size and the SHA-256 of each SentencePiece model."""
    return {
        name: {"bytes": len(model), "sha256": hashlib.sha256(model).hexdigest()}
        for name, model in models.items()
    }


def _crc32(file: BinaryIO, size: int) -> int:
    """Returns the CRC-32 of the first bytes of a file. It takes about 0.2 s per GB."""
    file.seek(0)
    checksum = 0
    while size > 0 and (block := file.read(min(size, 2**20))):
        checksum = zlib.crc32(block, checksum)
        size -= len(block)
    return checksum
