"""Reads an HTML page like a browser, but fails where a browser would have to guess."""

from __future__ import annotations

import collections
import html.parser
import json
from typing import Any

_VOID = {"meta", "input", "br"}


class Page(html.parser.HTMLParser):
    """The contents of a page, which must be well-formed and load nothing.

    Attributes:
        source: the HTML.
        tags: number of elements by name.
        rows: the texts of the cells of each row of each table.
        labels, titles: the values of the attributes `aria-label` and `title`.
        data: the content of `<script id="data">`, parsed.
    """

    def __init__(self, source: str):
        super().__init__()
        self.source = source
        self.tags: collections.Counter[str] = collections.Counter()
        self.rows: list[list[str]] = []
        self.labels: list[str] = []
        self.titles: list[str] = []
        self.data: Any = None
        self._ids: list[str] = []
        self._words: list[str] = []
        self._open: list[str] = []
        assert source.startswith("<!DOCTYPE html>")
        self.feed(source)
        self.close()
        assert not self._open
        assert len(self._ids) == len(set(self._ids))
        assert not {"link", "img", "iframe", "object"} & self.tags.keys()
        assert "url(" not in source and "@import" not in source

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        given = {name: value or "" for name, value in attrs}
        assert not {"href", "src", "srcset"} & given.keys()
        assert not any(name.startswith("on") for name in given)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        self._is_data = given.get("id") == "data"
        for name, values in (
            ("id", self._ids),
            ("aria-label", self.labels),
            ("title", self.titles),
        ):
            if name in given:
                values.append(given[name])

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["script"]:
            if self._is_data:
                self.data = json.loads(data)
        elif "style" not in self._open:
            self._words.append(data)
            # The titles of bars do not count as the text of their cells.
            if {"td", "th"} & {*self._open} and self._open[-1] != "title":
                self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._words).split())
