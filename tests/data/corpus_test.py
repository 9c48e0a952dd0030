"""Parallel files: lines are aligned as the bytes say, and every defect names its place."""

import contextlib
import gzip

import hypothesis
import hypothesis.strategies as st
import pytest

from keras_transformer.data.corpus import ParallelFiles, parallel_files, read_lines
from keras_transformer.errors import InputError


@pytest.fixture
def files(tmp_path):
    """Writes a source and a target file and returns their corpus."""

    def write(source, target):
        (tmp_path / "s").write_bytes(source)
        (tmp_path / "t").write_bytes(target)
        return ParallelFiles(tmp_path / "s", tmp_path / "t")

    return write


def test_lines_end_at_lf_alone(files):
    corpus = files("a\rb\nc\x0bd\u2028e\x85f\u0085g\n\n h".encode("utf-8", "surrogatepass"), b"")
    lines = list(read_lines(corpus.source))
    assert lines == [b"a\rb", "c\x0bd\u2028e\x85f\u0085g".encode(), b"", b" h"]


def test_bom_and_one_cr_a_line_are_no_text(files):
    corpus = files(b"\xef\xbb\xbfa\r\nb\r\r\n\xef\xbb\xbfc\r\n", b"1\n2\n3")
    assert list(corpus.pairs()) == [(b"a", b"1"), (b"b\r", b"2"), (b"\xef\xbb\xbfc", b"3")]


def test_gz_and_plain_files_pair_in_order(tmp_path):
    (tmp_path / "1.en.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    (tmp_path / "1.de").write_bytes(b"eins\nzwei\n")
    (tmp_path / "2.en").write_bytes(b"three\n")
    (tmp_path / "2.de").write_bytes(b"drei\n")
    corpora = parallel_files(
        [tmp_path / "1.en.gz", tmp_path / "2.en"], [tmp_path / "1.de", tmp_path / "2.de"]
    )
    pairs = [pair for corpus in corpora for pair in corpus.pairs()]
    assert pairs == [(b"one", b"eins"), (b"two", b"zwei"), (b"three", b"drei")]
    assert list(corpora[0].pairs()) == pairs[:2], "a corpus can be read again"


@pytest.mark.parametrize(
    ("source", "target", "counts"),
    [
        (b"a\nb\nc\n", b"1\n", "s has 3 lines and {}/t has 1;"),
        (b"a\n", b"1\n2\n3\n4", "s has 1 lines and {}/t has 4;"),
    ],
)
def test_different_numbers_of_lines_are_both_told(files, tmp_path, source, target, counts):
    corpus = files(source, target)
    with pytest.raises(InputError, match=counts.format(tmp_path)):
        list(corpus.pairs())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "s is empty"),
        (b"ab\nc\xffd\n", "s, line 2: byte 0xff at byte offset 4 is not UTF-8"),
        (b"\xef\xbb\xbfab\xc3", "s, line 1: byte 0xc3 at byte offset 5 is not UTF-8"),
        ("é\nab\0\n".encode(), "s, line 2: NUL at byte offset 5"),
        ("ab\n".encode("utf-16"), "s, line 1: NUL at byte offset 3"),
    ],
)
def test_bad_bytes_name_line_and_offset(files, content, message):
    with pytest.raises(InputError, match=message):
        list(files(content, b"1\n2\n").pairs())


def test_files_that_cannot_be_read_are_named(tmp_path):
    good = tmp_path / "good.en"
    good.write_bytes(b"a\n")
    whole = gzip.compress(b"line\n" * 1000)
    (tmp_path / "cut.gz").write_bytes(whole[:-20])
    (tmp_path / "fake.gz").write_bytes(b"no gzip")
    for name in ("cut.gz", "fake.gz"):
        with pytest.raises(InputError, match=f"{name} cannot be read"):
            list(read_lines(tmp_path / name))
    with pytest.raises(InputError, match="absent.de is missing"):
        parallel_files([good], [tmp_path / "absent.de"])
    with pytest.raises(InputError, match="is no regular file"):
        parallel_files([good], [tmp_path])
    with pytest.raises(InputError, match="absent.de is missing"):
        list(read_lines(tmp_path / "absent.de"))
    with pytest.raises(InputError, match="2 source files and 1 target files"):
        parallel_files([good, good], [good])


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(content=st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
def test_any_file_is_refused_or_read_back_whole(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "s"
    path.write_bytes(content)
    try:
        lines = list(read_lines(path))
    except InputError:
        with contextlib.suppress(UnicodeDecodeError):
            assert not content or "\0" in content.decode()
        return
    ended = content if content.endswith(b"\n") else content + b"\n"
    expected = ended.decode().removeprefix("\ufeff").split("\n")[:-1]
    assert [line.decode() for line in lines] == [line.removesuffix("\r") for line in expected]
