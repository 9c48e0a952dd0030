"""JSON and protocol buffers to arrays, and arrays to JSON."""

from __future__ import annotations

import json
from typing import Any

import grpc
import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from keras_transformer.serving.server import tensors
from keras_transformer.serving.server.batching import RequestError
from keras_transformer.serving.server.tensors import (
    read_document,
    read_inputs,
    read_tensors,
    write_outputs,
)


def info(dtype: tf.DType, *shape: int | None) -> Any:
    return meta_graph_pb2.TensorInfo(
        dtype=dtype.as_datatype_enum, tensor_shape=tf.TensorShape([None, *shape]).as_proto()
    )


TEXT = {"text": info(tf.string)}
TWO = {"text": info(tf.string), "ids": info(tf.int32, None)}
KINDS = {
    "f": info(tf.float32, 2),
    "d": info(tf.float64),
    "i": info(tf.int8),
    "u": info(tf.uint64),
    "b": info(tf.bool),
}


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


def test_the_dtypes_of_requests() -> None:
    row = {"f": [1, -2.5], "d": 1e300, "i": -128, "u": 2**64 - 1, "b": True}
    found = read(json.dumps({"instances": [row]}), KINDS)
    assert {name: values for name, (_, values) in found.items()} == {k: [v] for k, v in row.items()}
    dtypes = [str(dtype) for dtype, _ in found.values()]
    assert dtypes == ["float32", "float64", "int8", "uint64", "bool"]
    special = read('{"inputs": [[NaN, -Infinity]]}', {"f": KINDS["f"]})["f"][1]
    assert np.isnan(special[0][0]) and special[0][1] == -np.inf


@pytest.mark.parametrize(
    ("expected", "body", "sentence"),
    [
        (TEXT, "", "JSON Parse error: Expecting value"),
        (TEXT, '{"instances": ["a"]', "JSON Parse error: Expecting"),
        (TEXT, '{"instances": ["a"]} x', "JSON Parse error: Extra data"),
        (
            TEXT,
            b'{"instances": ["\xff"]}',
            "JSON Parse error: 'utf-8' codec can't decode byte 0xff",
        ),
        (TEXT, "[" * 100_000, "JSON Parse error: the body is nested too deep; expected"),
        (TEXT, '["a"]', 'JSON Value: ["a"] Is not object'),
        (TEXT, '{"signature_name": 5, "inputs": []}', "signature_name is 5; expected a string"),
        (TEXT, "{}", "the request has both or neither of 'inputs' and 'instances'"),
        (TEXT, '{"inputs": ["a"], "instances": ["a"]}', "the request has both or neither"),
        (TEXT, '{"instances": []}', "instances is []; expected a list with at least one value"),
        (TEXT, '{"instances": "a"}', 'instances is "a"; expected a list with at least one value'),
        (TEXT, '{"instances": [5]}', "text[0] is 5; expected string"),
        (TEXT, '{"instances": [null]}', "text[0] is null; expected string"),
        (TEXT, '{"instances": ["a", ["b"]]}', 'text[1] is ["b"]; expected string'),
        (TEXT, '{"instances": [["a"]]}', "input text has the shape [1, 1]; expected (None,)"),
        (TEXT, '{"inputs": "a"}', "input text has the shape []; expected (None,)"),
        (TEXT, '{"instances": [{"b64": "!"}]}', 'text[0] is {"b64": "!"}; expected string'),
        (TEXT, '{"instances": ["\\ud800"]}', 'text[0] is "\\ud800"; expected string'),
        (TEXT, '{"instances": [{"txt": "a"}]}', 'instances[0] is {"txt": "a"}; expected text'),
        (TEXT, '{"inputs": {"text": ["a"], "x": [1]}}', "the inputs are text, x; expected text"),
        (TWO, '{"inputs": {"text": ["a"]}}', "the inputs are text; expected ids, text"),
        (TWO, '{"inputs": ["a"]}', 'inputs is ["a"]; expected an object of ids, text'),
        (TWO, '{"instances": ["a"]}', "instances is a plain list; expected a list of objects"),
        (TWO, '{"instances": [{"text": "a", "ids": [1]}, "b"]}', 'instances[1] is "b"; expected'),
        (
            TWO,
            '{"instances": [{"text": "a", "ids": [1]}, {"text": "b", "ids": [1, 2]}]}',
            "ids[1] is [1, 2]; expected a list of 1 values",
        ),
        (TWO, '{"instances": [{"text": "a", "ids": [1.0]}]}', "ids[0][0] is 1.0; expected int32"),
        (TWO, '{"instances": [{"text": "a", "ids": [true]}]}', "ids[0][0] is true; expected int32"),
        (TWO, '{"instances": [{"text": "a", "ids": [2147483648]}]}', "ids[0][0] is 2147483648"),
        ({"b": KINDS["b"]}, '{"instances": [1]}', "b[0] is 1; expected bool"),
        ({"d": KINDS["d"]}, '{"instances": ["1"]}', 'd[0] is "1"; expected float64'),
        ({"d": KINDS["d"]}, f'{{"instances": [1{"0" * 400}]}}', "d[0] is 1000"),
    ],
)
def test_what_is_refused(expected: Any, body: str | bytes, sentence: str) -> None:
    with pytest.raises(RequestError) as error:
        read(body, expected)
    assert str(error.value).startswith(sentence)
    assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT


# Python counts how deep the stack is, so that the JSON that it just reads it may not write.
@pytest.mark.parametrize("ends", [("[", "]"), ('{"x": ', "}")], ids=["lists", "objects"])
@pytest.mark.parametrize(
    "body", ["%s", '{"instances": %s}', '{"inputs": %s}', '{"signature_name": %s}']
)
def test_a_body_of_any_depth_is_refused(body: str, ends: tuple[str, str]) -> None:
    for depth in (*range(700, 1100), 5_000, 20_000):
        nested = ends[0] * depth + "1" + ends[1] * depth
        with pytest.raises(RequestError) as error:
            read(body % nested, TEXT)
        assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_a_dtype_that_json_has_not_is_unimplemented() -> None:
    with pytest.raises(RequestError, match="JSON does not go into complex64") as error:
        read('{"instances": [1]}', {"c": info(tf.complex64)})
    assert error.value.code is grpc.StatusCode.UNIMPLEMENTED


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "ids", "b64", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
REQUESTS = st.dictionaries(st.sampled_from(["instances", "inputs", "signature_name"]), JSON)


@hypothesis.settings(max_examples=300, deadline=None)
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
            assert array.dtype == tf.dtypes.as_dtype(expected[name].dtype).as_numpy_dtype
            assert tf.TensorShape(expected[name].tensor_shape).is_compatible_with(array.shape)


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
    whole = write_outputs({"n": numbers}, False)
    monkeypatch.setattr(tensors, "_MANY_DIGITS", 6)
    assert write_outputs({"n": numbers}, False) == whole
    np.testing.assert_array_equal(np.float32(json.loads(whole)["outputs"]), numbers)


@pytest.mark.parametrize("other", [np.zeros(3), np.zeros(())])
def test_rows_of_different_numbers_go_by_column_alone(other: np.ndarray) -> None:
    outputs = {"a": np.zeros(2), "b": other}
    with pytest.raises(RequestError, match="different numbers of rows"):
        write_outputs(outputs, True)
    assert json.loads(write_outputs(outputs, False))["outputs"]["b"] == other.tolist()


def proto(dtype: tf.DType, sizes: list[int], **fields: Any) -> tensor_pb2.TensorProto:
    dims = [{"size": size} for size in sizes]
    return tensor_pb2.TensorProto(
        dtype=dtype.as_datatype_enum, tensor_shape={"dim": dims}, **fields
    )


def test_tensors_of_protocol_buffers() -> None:
    tensors = {
        "text": tf.make_tensor_proto([b"\xff", b"a"]),
        "ids": tf.make_tensor_proto([[1, 2]], tf.int32),
        "same": proto(tf.float32, [3], float_val=[0.5]),  # the last value fills the rest
    }
    arrays = read_tensors(tensors, 100)
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "text": [b"\xff", b"a"], "ids": [[1, 2]], "same": [0.5, 0.5, 0.5],
    }  # fmt: skip


@pytest.mark.parametrize(
    "tensor",
    [
        proto(tf.float32, [2**40], float_val=[0.5]),  # would take 4 TiB
        proto(tf.float32, [3], tensor_content=b"\0\0\0"),
        proto(tf.string, [2], tensor_content=b"\0"),
        proto(tf.string, [2**28], string_val=[b"a"]),  # would be repeated
        proto(tf.int32, [-3], int_val=[1]),
        proto(tf.int32, [-1], tensor_content=b"\0\0\0\0"),  # NumPy would find the size
        proto(tf.uint8, [1], int_val=[-5]),
        proto(tf.half, [1], half_val=[70_000]),
        tensor_pb2.TensorProto(dtype=99),
        tensor_pb2.TensorProto(),
    ],
)
def test_damaged_tensors_are_refused(tensor: Any) -> None:
    with pytest.raises(RequestError, match="^input x ") as error:
        read_tensors({"x": tensor}, 2**20)
    assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_strings_and_their_pointers_count() -> None:
    text = proto(tf.string, [2], string_val=[b"abc", b""])
    assert len(read_tensors({"x": text}, 2 * 8 + 3)) == 1
    with pytest.raises(RequestError, match="which makes 19 bytes of inputs; expected at most 18 "):
        read_tensors({"x": text}, 2 * 8 + 2)


def test_the_tensors_of_a_request_are_bounded_together() -> None:
    def request(count: int) -> dict[str, tensor_pb2.TensorProto]:
        full = proto(tf.float32, [2**18], float_val=[0.5])  # 1 MiB of a message of some bytes
        return {f"x{number}": full for number in range(count)}

    assert len(read_tensors(request(4), 2**22)) == 4
    with pytest.raises(RequestError) as error:
        read_tensors(request(5), 2**22)
    assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert str(error.value) == (
        "input x4 has the shape [262144], which makes 5,242,880 bytes of inputs; expected at most "
        "4,194,304 in a request"
    )
