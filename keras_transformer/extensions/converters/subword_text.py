"""The subwords of Tensor2Tensor, for models that were converted from it.

Tensor2Tensor splits a text between letters and other characters, and each part greedily into the
longest subwords. SentencePiece cannot express this, so it happens outside of the graph.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from keras_transformer.errors import InputError

_SPACE = "\u2423"  # how a space inside a subword is written
_ESCAPED = re.compile(r"\\u|\\\\|\\([0-9]+);")
_ESCAPE_CHARACTERS = set("\\_u;0123456789")
_UNDEFINED = "\u3013"  # for numbers of characters that do not exist


class SubwordText:
    """Converts text to subwords and back, like `SubwordTextEncoder` of Tensor2Tensor.

    `encode` makes the texts that a converted model reads: subwords between spaces. `decode` makes
    text of its translations.

    Args:
        subwords: the subwords in the order of their ids, with the two reserved ones.

    Raises:
        InputError: if a subword contains U+2423, which stands for a space.

    Example:
    >>> subwords = SubwordText(["<pad>", "<EOS>", "dog", "s_", "d", "o", "g", "_", ". ", "."])
    >>> subwords.encode("dogs. dog")
    'dog s_ .␣ _ dog _'
    >>> subwords.decode("dog s_ .␣ _ dog _")
    'dogs. dog'
    """

    def __init__(self, subwords: Sequence[str]):
        self.subwords = tuple(subwords)
        spaced = next((each for each in subwords if _SPACE in each), None)
        if spaced is not None:
            raise InputError(
                f"The vocabulary has the subword {spaced!r}. U+2423 is reserved: it stands for a "
                "space. Such a vocabulary cannot be converted."
            )
        self._known = set(subwords)
        self._longest = max(map(len, subwords), default=0)
        self._alphabet = {c for subword in subwords for c in subword} | _ESCAPE_CHARACTERS

    @classmethod
    def load(cls, path: str | Path) -> SubwordText:
        """Reads a vocabulary of Tensor2Tensor, such as "vocab.translate_ende_wmt32k.subwords".

        Raises:
            InputError: if it cannot be read, or lacks the padding and the end token.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read as a vocabulary ({error}).") from None
        subwords = [_unquoted(line.rstrip()) for line in lines]
        if [subword.rstrip("_") for subword in subwords[:2]] != ["<pad>", "<EOS>"]:
            raise InputError(
                f"{path} begins with {' '.join(subwords[:2])!r:.60}, but a subword vocabulary of "
                "Tensor2Tensor begins with '<pad>' and '<EOS>'."
            )
        return cls(subwords)

    def encode(self, text: str) -> str:
        """Returns the subwords of a text, joined by spaces."""
        return " ".join(self._split(text))

    def decode(self, line: str) -> str:
        """Returns the text of subwords that are joined by spaces."""
        escaped = "".join(line.split(" ")).replace(_SPACE, " ").split("_")
        tokens = [token for token in map(_unescaped, escaped) if token]
        text = ""
        for i, token in enumerate(tokens):
            if i > 0 and _is_letter(tokens[i - 1][0]) and _is_letter(token[0]):
                text += " "
            text += token
        return text

    def written(self) -> list[str]:
        """Returns all subwords as `encode` writes them, in the order of their ids."""
        return [subword.replace(" ", _SPACE) for subword in self.subwords]

    def _split(self, text: str) -> Iterable[str]:
        for token in _tokens(text):
            escaped = token.replace("\\", "\\\\").replace("_", "\\u")
            escaped = "".join(
                c if c in self._alphabet and c != "\n" else f"\\{ord(c)};" for c in escaped
            )
            yield from self._longest_subwords(f"{escaped}_")

    def _longest_subwords(self, escaped: str) -> Iterable[str]:
        start = 0
        while start < len(escaped):
            ends = range(min(len(escaped), start + self._longest), start, -1)
            end = next((end for end in ends if escaped[start:end] in self._known), None)
            if end is None:
                raise InputError(
                    f"The vocabulary lacks the character {escaped[start]!r}, which every subword "
                    "vocabulary of Tensor2Tensor has."
                )
            yield escaped[start:end].replace(" ", _SPACE)
            start = end


def _tokens(text: str) -> list[str]:
    """Splits between letters (or numbers) and other characters; drops single spaces between."""
    parts, start = [], 0
    for end in range(1, len(text) + 1):
        if end == len(text) or _is_letter(text[end]) != _is_letter(text[end - 1]):
            parts.append(text[start:end])
            start = end
    last = len(parts) - 1
    return [part for i, part in enumerate(parts) if part != " " or i in (0, last)]


def _is_letter(character: str) -> bool:
    return unicodedata.category(character)[0] in "LN"


def _unquoted(line: str) -> str:
    is_quoted = len(line) > 1 and line[0] == line[-1] and line[0] in "'\""
    return line[1:-1] if is_quoted else line


def _unescaped(token: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return "_" if match.group(0) == "\\u" else "\\"
        number = int(match.group(1)[:8])
        return chr(number) if number < 0x110000 else _UNDEFINED

    return _ESCAPED.sub(character, token)
