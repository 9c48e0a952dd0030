"""Translation memories (TMX 1.4b) in: the segments of two languages, unit by unit."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterator, Sequence
from pathlib import Path

from lxml import etree

from keras_transformer.data.corpora.corpus import require_file
from keras_transformer.data.corpora.reading import open_binary, reading_errors
from keras_transformer.errors import InputError

_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
# Inline elements that contain markup of another program. `hi` and `sub` contain text.
_CODES = {"bpt", "ept", "it", "ph", "ut"}


@dataclasses.dataclass(frozen=True)
class TmxFile:
    """A corpus of a TMX file, compressed or not; unit i is line i.

    Attributes:
        path: path of the file.
        source_language, target_language: as in `xml:lang`. "en" also matches "en-US" and "en_US".
            If a unit has several variants of a language, the first one is used. If it has none,
            that side is empty, and cleaning drops and counts the pair.

    Example:
    >>> _ = Path("a.tmx").write_text(
    ...     '<tmx><body><tu><tuv xml:lang="en-US"><seg>A dog.</seg></tuv>'
    ...     '<tuv xml:lang="de"><seg>Ein Hund.</seg></tuv></tu></body></tmx>'
    ... )
    >>> list(TmxFile(Path("a.tmx"), "en", "de").pairs())
    [(b'A dog.', b'Ein Hund.')]
    """

    path: Path
    source_language: str
    target_language: str

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the segments of both languages, one line each.

        Raises:
            InputError: for a file that cannot be read, is not XML, or lacks units.
        """
        units = 0
        try:
            with open_binary(self.path) as file:
                # No document type is read, so no entity can grow or name a file.
                parser = etree.iterparse(
                    file, tag="{*}tu", resolve_entities=False, no_network=True, load_dtd=False
                )
                for _, unit in parser:
                    units += 1
                    yield (
                        self._segment(unit, self.source_language),
                        self._segment(unit, self.target_language),
                    )
                    unit.clear()
                    while unit.getprevious() is not None:
                        del unit.getparent()[0]
        except etree.XMLSyntaxError as error:
            reason = " ".join(str(error.msg).split())
            raise InputError(f"{self.path} is not TMX: {reason}.") from error
        except reading_errors() as error:
            raise InputError(f"{self.path} cannot be read after unit {units} ({error}).") from error
        if not units:
            raise InputError(f"{self.path} lacks a translation unit (element <tu>).")

    def _segment(self, unit: etree._Element, language: str) -> bytes:
        for variant in unit.iterfind("{*}tuv"):
            code = _code(variant.get(_LANGUAGE) or variant.get("lang") or "")
            if code == _code(language) or code.startswith(f"{_code(language)}-"):
                segment = variant.find("{*}seg")
                text = "" if segment is None else "".join(_text(segment))
                return " ".join(text.split("\n")).encode()
        return b""


def _code(language: str) -> str:
    return language.lower().replace("_", "-")


def tmx_files(
    paths: Sequence[str | Path], source_language: str | None, target_language: str | None
) -> list[TmxFile]:
    """Returns corpora of files. Raises `InputError` if a file or a language is missing.

    Args:
        paths: the files.
        source_language: language code of the source, such as "en".
        target_language: language code of the target.

    Example:
    >>> [corpus.name for corpus in tmx_files(["train.en"], "en", "de")]
    ['train.en']
    """
    if not (source_language and target_language):
        raise InputError(
            f"The languages of {paths[0]} are {source_language} and {target_language}. Give two, "
            "such as en and de."
        )
    return [TmxFile(require_file(path), source_language, target_language) for path in paths]


def _text(element: etree._Element) -> Iterator[str]:
    """Yields the text of a segment without the codes of other programs."""
    yield element.text or ""
    for child in element:
        if child.tag is etree.Entity:  # tools use those of HTML; unknown ones stay unchanged
            yield html.unescape(child.text)
        elif isinstance(child.tag, str) and etree.QName(child).localname not in _CODES:
            yield from _text(child)
        yield child.tail or ""
