"""Reads the lexical shortlists of Marian, such as `lex.50.50.ende.s2t.bin` of Firefox.

A file has a header, the offset of the first translation of each source token, and the translations,
in little-endian order. Tokens have the ids of Marian, which are those of a converted run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.errors import require
from keras_transformer.inference.loading import members
from keras_transformer.runs.checkpoints import reading
from keras_transformer.runs.run_directory import RunDirectory

_MAGIC = 0xF11A48D5013417F5
_HEADER_SIZE = 48  # six numbers of 64 bits
_MAX_TRANSLATIONS = 1_000  # of a token; Firefox has 50


def read_shortlist(file: str | Path, run: str | Path | RunDirectory) -> Shortlist:
    """Reads the candidates of each source token from a binary file of Marian.

    With a joint vocabulary, the tokens of the source are candidates, too. Marian also adds up to
    seven tokens to a batch, so that their number is a multiple of eight; this function does not.

    Args:
        file: a file that `marian-conv --dump-shortlist` has written.
        run: a converted run with the vocabulary of the file. It has the ids of Marian, unless it
            was converted with `keep_text`.
    """
    file = Path(file)
    require(file.is_file(), f"The shortlist {file} does not exist. Give a file, or a number.")
    with reading(file, "a shortlist of Marian"):
        num_frequent, counts, tokens = _parse(file.read_bytes())
    vocabulary = members(run)[0][0].tokenizer().vocabulary
    num_sources, num_targets = vocabulary.source_vocab_size, vocabulary.target_vocab_size
    # Converters append a pad token to the ids of Marian. A smaller vocabulary begins with it.
    largest, pad_id = int(tokens.max(initial=0)), vocabulary.pad_id
    require(
        len(counts) <= pad_id and largest < pad_id,
        f"{file} has candidates for {len(counts):,} source tokens, with ids up to {largest:,}, but "
        f"the run has only {pad_id:,} ids of Marian. Give the file of its model. A run with a "
        "smaller vocabulary (keep_text) has other ids, so no file fits.",
    )
    frequent = np.union1d(np.arange(min(num_frequent, num_targets)), vocabulary.end_id)
    own, width = int(vocabulary.joint), int(counts.max(initial=0))
    # Rows with fewer translations end with end tokens.
    translations = np.full((num_sources, max(own + width, 1)), vocabulary.end_id, np.int32)
    rows = translations[: len(counts)]
    rows[:, own:][np.arange(width) < counts[:, None]] = tokens
    if vocabulary.joint:
        rows[:, 0] = np.arange(len(rows))
    return Shortlist(frequent, translations)


def _parse(content: bytes) -> tuple[int, npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """Returns the number of frequent tokens, that of each token's translations, and all these."""
    header = np.frombuffer(content, "<u8", _HEADER_SIZE // 8)
    magic, checksum, num_frequent, num_best, num_offsets, num_tokens = map(int, header)
    if magic != _MAGIC:
        raise ValueError("its first bytes are those of another format")
    size = _HEADER_SIZE + 8 * num_offsets + 4 * num_tokens
    if size != len(content):
        raise ValueError(f"its header needs {size:,} bytes, but it has {len(content):,}")
    if _checksum(content) != checksum:
        raise ValueError("its checksum is wrong")
    offsets = np.frombuffer(content, "<u8", num_offsets, _HEADER_SIZE).astype(np.int64)
    counts = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != num_tokens or counts.min(initial=0) < 0:
        raise ValueError("its offsets are not ascending numbers of translations")
    if (most := counts.max(initial=0)) > min(num_best, _MAX_TRANSLATIONS):
        raise ValueError(f"a token has {most:,} translations")
    return num_frequent, counts, np.frombuffer(content, "<u4", offset=size - 4 * num_tokens)


def _checksum(content: bytes) -> int:
    """Returns the hash of all numbers of 64 bits after the checksum, as by `hash_combine`."""
    value = 0
    for number in np.frombuffer(content, "<u8", len(content) // 8)[2:].tolist():
        value ^= (number + 0x9E3779B9 + (value << 6) + (value >> 2)) & (1 << 64) - 1
    return value
