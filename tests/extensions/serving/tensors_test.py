"""JSON to arrays, and arrays to JSON."""

import json
import re
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from keras_transformer.extensions.serving import tensors
from keras_transformer.extensions.serving.tensors import (
    RequestError,
    Tensor,
    read_document,
    read_inputs,
    write_outputs,
)
from tests.messages import mentions

TEXT = {"text": Tensor(object, (-1,))}
TWO = {**TEXT, "ids": Tensor(np.int32, (-1, -1))}
KINDS = {
    "f": Tensor(np.float32, (-1, 2)), "d": Tensor(np.float64, (-1,)), "i": Tensor(np.int8, (-1,)),
    "u": Tensor(np.uint64, (-1,)), "b": Tensor(np.bool_, (-1,)),
}  # fmt: skip
OPTIONS = {
    **TEXT, "max_length": Tensor(np.int32, (-1,)), "length_penalty": Tensor(np.float32, (-1,)),
    "prefix": Tensor(object, (-1,)),
}  # fmt: skip


def read(body: str | bytes, expected: Any) -> dict[str, Any]:
    data = body if isinstance(body, bytes) else body.encode()
    arrays = read_inputs(read_document(data), expected)
    return {name: (array.dtype, array.tolist()) for name, array in arrays.items()}


def test_the_formats_of_requests() -> None:
    alone = {"text": (np.dtype(object), [b"a", b"\xff", "ä".encode()])}
    values = '["a", {"b64": "/w=="}, "ä"]'
    for body in (
        f'{{"instances": {values}}}',
        f'{{"inputs": {values}}}',
        f'{{"inputs": {{"text": {values}}}}}',
        '{"instances": [{"text": "a"}, {"text": {"b64": "/w"}}, {"text": "\\u00e4"}]}',
    ):
        assert read(body, TEXT) == alone, body
    both = {"text": (np.dtype(object), [b"a", b""]), "ids": (np.dtype(np.int32), [[1, 2], [3, 4]])}
    rows = '[{"text": "a", "ids": [1, 2]}, {"ids": [3, 4], "text": ""}]'
    assert read(f'\ufeff{{"signature_name": "x", "instances": {rows}}}', TWO) == both
    assert read('{"inputs": {"text": ["a", ""], "ids": [[1, 2], [3, 4]]}}', TWO) == both


def test_messages_can_be_sent_whatever_a_request_contains() -> None:
    assert str(RequestError(400, "\ud800" + "x" * 9)) == r"\ud800xxxxxxxxx"


def test_the_dtypes_of_requests() -> None:
    row = {"f": [1, -2.5], "d": 1e300, "i": -128, "u": 2**64 - 1, "b": True}
    found = read(json.dumps({"instances": [row]}), KINDS)
    assert {name: values for name, (_, values) in found.items()} == {k: [v] for k, v in row.items()}
    dtypes = [str(dtype) for dtype, _ in found.values()]
    assert dtypes == ["float32", "float64", "int8", "uint64", "bool"]
    special = read('{"inputs": [[NaN, -Infinity]]}', {"f": KINDS["f"]})["f"][1]
    assert np.isnan(special[0][0]) and special[0][1] == -np.inf


@pytest.mark.parametrize(
    "body",
    [
        {"instances": [{"text": "abc", "beam_size": None, "max_length": None},
                       {"text": "de", "max_length": 7, "prefix": "x"}]},
        {"inputs": {"text": ["abc", "de"], "max_length": [None, 7], "prefix": ["", "x"]}},
        {"inputs": {"text": ["abc", "de"], "max_length": [0, 7], "length_penalty": None,
                    "prefix": [None, "x"], "beam_size": None}},
    ],
)  # fmt: skip
def test_null_and_omitted_options_mean_as_exported(body: dict[str, Any]) -> None:
    found = {name: values for name, (_, values) in read(json.dumps(body), OPTIONS).items()}
    assert np.isnan(found.pop("length_penalty")).all()
    assert found == {"text": [b"abc", b"de"], "max_length": [0, 7], "prefix": [b"", b"x"]}


@pytest.mark.parametrize(
    ("expected", "body", "sentence"),
    [
        (TEXT, "", "JSON Parse error: Expecting value"),
        (TEXT, b'{"instances": ["\xff"]}', "JSON Parse error: 'utf-8' codec can't decode"),
        (TEXT, "[" * 100_000, mentions("body", "nested", "deep")),
        (TEXT, '["a"]', mentions('JSON Value: ["a"] Is not object')),
        (TEXT, '{"signature_name": ["\\ud800"]}', mentions("signature_name", r"\ud800", "string")),
        (TEXT, '{"inputs": ["a"], "instances": ["a"]}', mentions("inputs", "instances")),
        (TEXT, '{"instances": []}', mentions("0 rows", "1")),
        (TEXT, '{"instances": [5]}', mentions("text", "5", "string")),
        (TEXT, '{"inputs": "a"}', mentions("text", '"a"', "(-1,)")),
        (TEXT, '{"instances": [{"b64": "!"}]}', mentions("text", '{"b64": "!"}', "string")),
        (TEXT, '{"instances": ["\\ud800"]}', mentions("text", r"\ud800", "string")),
        (TEXT, '{"instances": [{"txt": "a"}]}', mentions("instances[0]", "txt", "text")),
        (TEXT, '{"inputs": {"text": ["a"], "x": [1]}}', mentions("inputs", "text, x", "text")),
        (TWO, '{"instances": [{"text": "a", "ids": [1]}, "b"]}', mentions("instances[1]", "none")),
        (
            TWO,
            '{"inputs": {"text": ["a", "b"], "ids": [[1], [1, 2]]}}',
            mentions("ids", "(-1, -1)"),
        ),
        (TWO, '{"instances": [{"text": "a", "ids": [1.0]}]}', mentions("ids", "1.0", "int32")),
        (TWO, '{"inputs": {"text": ["a"], "ids": [[2147483648]]}}', mentions("ids", "2147483648")),
        (TWO, '{"inputs": {"ids": [[1]], "text": ["a", "b"]}}', mentions("1 of ids", "2 of text")),
        ({"b": KINDS["b"]}, '{"instances": [1]}', mentions("b", "1", "bool")),
        ({"d": KINDS["d"]}, f'{{"instances": [1{"0" * 400}]}}', mentions("d") + r"(?=.*\b1000)"),
    ],
)
def test_invalid_requests(expected: Any, body: str | bytes, sentence: str) -> None:
    with pytest.raises(RequestError) as error:
        read(body, expected)
    assert re.search(sentence, str(error.value))
    assert error.value.status == 400


# Python limits the stack depth, so it may not be able to write JSON that it can read.
@pytest.mark.parametrize("ends", [("[", "]"), ('{"x": ', "}")], ids=["lists", "objects"])
@pytest.mark.parametrize(
    "body", ["%s", '{"instances": %s}', '{"inputs": %s}', '{"signature_name": %s}']
)
def test_a_body_of_any_depth_is_refused(body: str, ends: tuple[str, str]) -> None:
    for depth in (*range(700, 1100, 10), 5_000, 20_000):
        nested = ends[0] * depth + "1" + ends[1] * depth
        with pytest.raises(RequestError) as error:
            read(body % nested, TEXT)
        assert error.value.status == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "ids", "b64", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
REQUESTS = st.dictionaries(st.sampled_from(["instances", "inputs", "signature_name"]), JSON)


@hypothesis.settings(max_examples=300)
@hypothesis.given(
    st.binary(max_size=30) | REQUESTS.map(lambda each: json.dumps(each).encode()),
    st.sampled_from([TEXT, TWO, KINDS]),
)
def test_any_body_is_read_or_refused(body: bytes, expected: Any) -> None:
    try:
        arrays = read_inputs(read_document(body), expected)
    except RequestError as error:
        assert str(error)
    else:
        assert set(arrays) == set(expected)
        for name, array in arrays.items():
            dtype, shape = expected[name]
            assert array.dtype == dtype and len(array.shape) == len(shape)
            assert all(size in (-1, found) for size, found in zip(shape, array.shape, strict=True))


def test_answers() -> None:
    texts = np.array([["ä".encode(), b"\xff"], [b"", b'"']], object)
    scores = np.array([0.1, -np.inf], np.float32)
    both = {"t": texts, "s": scores}
    assert json.loads(write_outputs({"t": texts}, True)) == {"predictions": [["ä", "�"], ["", '"']]}
    assert json.loads(write_outputs({"t": texts}, False)) == {"outputs": [["ä", "�"], ["", '"']]}
    assert write_outputs(both, True).decode() == (
        '{"predictions": [{"t": ["ä", "�"], "s": 0.1}, {"t": ["", "\\""], "s": -Infinity}]}'
    )
    assert write_outputs(both, False).decode() == (
        '{"outputs": {"t": [["ä", "�"], ["", "\\""]], "s": [0.1, -Infinity]}}'
    )
    assert json.loads(write_outputs({"t_bytes": texts[:1]}, True)) == {
        "predictions": [[{"b64": "w6Q="}, {"b64": "/w=="}]]
    }
    numbers = {"n": np.array([2**63 - 1]), "b": np.array([True]), "f": np.array([np.nan])}
    assert write_outputs(numbers, False) == (
        b'{"outputs": {"n": [9223372036854775807], "b": [true], "f": [NaN]}}'
    )


def test_many_numbers_are_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    both = {"n": numbers, "t": np.full((3, 2, 9), b'"', object)}
    whole = [write_outputs(both, by_row) for by_row in (False, True)]
    monkeypatch.setattr(tensors, "_PART_VALUES", 6)
    assert [write_outputs(both, by_row) for by_row in (False, True)] == whole
    np.testing.assert_array_equal(np.float32(json.loads(whole[0])["outputs"]["n"]), numbers)
    rows = json.loads(whole[1])["predictions"]
    np.testing.assert_array_equal(np.float32([row["n"] for row in rows]), numbers)
