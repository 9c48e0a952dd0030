"""Text files: lines end at line feeds in any compression, and errors name the line."""

import bz2
import contextlib
import gzip
import io
import lzma
import sys
import zipfile
from types import ModuleType

import hypothesis
import hypothesis.strategies as st
import pytest
from backports import zstd

from keras_transformer.data import reading
from keras_transformer.data.reading import (
    decode_lines,
    raw_lines,
    read_lines,
    read_text,
)
from keras_transformer.errors import InputError
from tests.builders import refuses
from tests.messages import mentions

PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd.compress}


@pytest.fixture
def file(tmp_path):
    """Writes a file and returns its path."""

    def write(content, suffix=".en"):
        path = tmp_path / f"s{suffix}"
        path.write_bytes(content)
        return path

    return write


def test_lines_end_only_at_lf_and_bom_and_cr_before_lf_are_not_text(file):
    path = file("a\rb\nc\x0bd\u2028e\x85f\u0085g\n\n h".encode())
    assert list(read_lines(path)) == [b"a\rb", "c\x0bd\u2028e\x85f\u0085g".encode(), b"", b" h"]
    lines = read_lines(file(b"\xef\xbb\xbfa\r\nb\r\r\n\xef\xbb\xbfc\r\n"))
    assert list(lines) == [b"a", b"b\r", b"\xef\xbb\xbfc"]


def zipped(*names):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, "one\ntwo\n")
    return buffer.getvalue()


def test_text_of_windows_and_of_opus(file):
    for encoding in ("utf-16", "utf-16-be"):
        text = ("\ufeff" if encoding[6:] else "") + "Ärger\r\na\u2028b\n\n鼠😀"
        lines = list(raw_lines(file(text.encode(encoding))))
        assert lines == [line.encode() for line in ("Ärger\r\n", "a\u2028b\n", "\n", "鼠😀\n")]
    packed = gzip.compress("é\n".encode("utf-16"))
    assert read_text(file(packed, ".gz")) == ["é"]
    assert read_text(file(zipped("folder/", "folder/corpus.en"), ".zip")) == ["one", "two"]


@pytest.mark.parametrize("suffix", PACKED)
def test_packed_files_give_their_lines_and_are_read_to_their_end(file, suffix):
    pack = PACKED[suffix]
    path = file(pack(b"one\n") + pack(b"two\nthree\n"), suffix)  # as `cat` joins two
    assert list(read_lines(path)) == [b"one", b"two", b"three"]
    assert read_text(file(pack(b"one\ntwo\n"), ".en")) == ["one", "two"], "by its first bytes"
    assert read_text(file(b"one\n", suffix)) == ["one"], "decompressed by the browser"
    refuses(list, (read_lines(file(pack(b"line\n" * 1000)[:-4], suffix)),), f"s{suffix}", "read")


def test_zstandard_is_an_extra(file, monkeypatch):
    path = file(zstd.compress(b"one\n"), ".zst")
    assert list(read_lines(path)) == [b"one"]
    # Like a missing package, also if another package provides a part of `backports`.
    monkeypatch.delitem(sys.modules, "backports.zstd")
    of_another = ModuleType("backports")
    of_another.__path__ = []
    for namespace in (None, of_another):
        monkeypatch.setitem(sys.modules, "backports", namespace)
        with pytest.raises(InputError, match=r"s.zst.* needs the extra zstd .*\[zstd\]"):
            list(read_lines(path))
    assert list(read_lines(file(b"two\n"))) == [b"two"]


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"", ("empty",)),
        (b"ab\nc\xffd\n", ("line 2", "byte 2", "0xff", "UTF-8")),
        (b"\xef\xbb\xbfab\xc3", ("line 1", "byte 6", "0xc3", "UTF-8")),
        ("é\nab\0\n".encode(), ("line 2", "NUL", "byte 3")),
        ("ab\n".encode("utf-16-le"), ("line 1", "NUL", "byte 2", "UTF-16")),
        ("ab\n".encode("utf-16") + b"c", ("after line 1", "utf-16")),
        (b"one\rtwo\rthree\r", ("2 carriage returns", "tr")),
        (zipped("a.en", "a.de", "README"), ("ZIP", "3 files", "a.de", "Unpack")),
        (b"PK\x03\x04 is not a ZIP archive", ("read", "zip")),
        (zipped("a.en").replace(b"\x14\0\0\0\x08", b"\x14\0\0\0\x09"), ("Unpack",)),  # Deflate64
    ],
)
def test_bad_bytes_name_the_line_and_the_byte(file, tmp_path, content, facts):
    refuses(list, (read_lines(file(content)),), "s.en", *facts)
    refuses(list, (read_lines(tmp_path / "absent.de"),), "absent.de", "missing")


def test_an_endless_line_is_rejected_before_memory_is_full(file, monkeypatch):
    monkeypatch.setattr(reading, "_MAX_LINE", 2**21)
    with pytest.raises(InputError, match=mentions("s.en", "line 2", "2,097,152", "bytes")):
        list(raw_lines(file(b"one\n" + b"x" * 2**23)))


@hypothesis.settings(max_examples=100)
@hypothesis.given(content=st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
def test_any_file_is_refused_or_read_completely(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "s"
    path.write_bytes(content)
    ended = content if content.endswith(b"\n") or not content else content + b"\n"
    hypothesis.assume(not content.startswith((b"\xff\xfe", b"\xfe\xff")))  # becomes UTF-8
    with contextlib.suppress(InputError):
        assert b"".join(raw_lines(path)) == ended
    try:
        lines = list(read_lines(path))
    except InputError:
        with contextlib.suppress(UnicodeDecodeError):
            text = content.decode()
            assert not text or "\0" in text or "\r" in text or text.startswith("PK\x03\x04")
        return
    expected = ended.decode().removeprefix("\ufeff").split("\n")[:-1]
    assert [line.decode() for line in lines] == [line.removesuffix("\r") for line in expected]


def test_text_in_memory_ends_its_lines_only_at_line_feeds():
    data = "\ufeffone\r\ntwo\rhalf\n\u2028\n\nlast".encode()
    assert decode_lines(data, "x") == ["one", "two\rhalf", "\u2028", "", "last"]
    assert (decode_lines(b"", "x"), decode_lines(b"\n", "x")) == ([], [""])
    with pytest.raises(InputError, match=mentions("x", "line 8", "byte 2", "0xff")):
        decode_lines(b"a\nb\xff\n", "x", first_line=7)
