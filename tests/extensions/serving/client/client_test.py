"""The REST and gRPC clients with the server of keras-transformer serve, and with TF Serving if
available.

`tests/extensions/serving/reversing_model.py` says how TF Serving is given the model.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2,
    prediction_service_pb2_grpc,
)

from keras_transformer.errors import InputError
from keras_transformer.extensions.serving.client import (
    Client,
    GrpcClient,
    RestClient,
    ServerError,
    Signature,
    Tensor,
    Translation,
    connect,
)
from keras_transformer.extensions.serving.client.tensors import input_array
from tests.conftest import ROOT
from tests.extensions.serving.reversing_model import NAME
from tests.extensions.serving.running_server import Running, model_held, running_server, wait_until
from tests.messages import mentions

_VARIABLE = "KERAS_TRANSFORMER_TF_SERVING"
KINDS = {"rest": RestClient, "grpc": GrpcClient}


@pytest.fixture(scope="module", params=["serve.py", "TF Serving"])
def addresses(request: pytest.FixtureRequest) -> dict[str, str]:
    """REST and gRPC addresses of a server of the model that reverses text."""
    if request.param == "serve.py":
        running: Running = request.getfixturevalue("running")
        return {"rest": running.rest, "grpc": running.grpc}
    if _VARIABLE not in os.environ:
        pytest.skip(f"no TF Serving; {_VARIABLE}=HOST:PORT,HOST:PORT names its REST and gRPC")
    rest, grpc_address = os.environ[_VARIABLE].split(",")
    return {"rest": rest, "grpc": grpc_address}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(addresses: dict[str, str], kind: str) -> Iterator[Client]:
    with KINDS[kind](addresses[kind], NAME, timeout=30.0, max_batch_size=8) as client:
        client.wait_until_ready()
        yield client


def test_text_round_trip(client: Client) -> None:
    outputs = client.predict({"text": ["für", b"a\0b", "\U0001f600"]})
    assert outputs["translations"].tolist() == [
        ["rüf".encode(), "für".encode()], [b"b\0a", b"a\0b"], ["\U0001f600".encode()] * 2,
    ]  # fmt: skip
    assert outputs["scores"].dtype == np.float32
    assert outputs["scores"].tolist() == [np.float32([-0.1, -2.5]).tolist()] * 3
    assert client.predict({"text": np.array([b"\xff\xfe"], object)}, "size")["bytes"] == [2]


def test_every_dtype_survives_a_round_trip(client: Client) -> None:
    inputs = {
        "values": [[0.1, np.inf, -1e-30], [np.nan, 2.0, 3.0]],
        "number": [2**63 - 1, -(2**63)],
        "flag": [True, False],
        "raw": [b"\xff\0", "ä"],
    }
    outputs = client.predict(inputs, "kinds")
    np.testing.assert_array_equal(outputs["values"], np.array(inputs["values"], np.float32))
    assert outputs["number"].dtype == np.int64
    assert outputs["number"].tolist() == inputs["number"]
    assert outputs["flag"].tolist() == inputs["flag"]
    assert outputs["raw_bytes"].tolist() == [b"\xff\0", "ä".encode()]


def test_metadata(client: Client) -> None:
    signatures = client.metadata()
    assert set(signatures) == {"serving_default", "translate", "size", "kinds", "join", "no_poison"}
    assert signatures["join"] == Signature(
        {"ids": Tensor(np.int32, (-1, -1)), "lengths": Tensor(np.int32, (-1,))},
        {"ids": Tensor(np.int32, (-1, -1)), "text": Tensor(object, (-1,))},
    )
    assert signatures["serving_default"].outputs["translations"].shape == (-1, 2)


def test_lines_are_translated_in_their_order(client: Client) -> None:
    lines = [f"{'x' * (7 * i % 13)} {i}" for i in range(37)]
    assert [best.text for best, _ in client.translate(lines)] == [line[::-1] for line in lines]
    assert client.translate([""]) == [[Translation("", pytest.approx(-0.1))]]
    assert client.translate([]) == []


def test_source_tag_begins_each_line_that_is_not_empty(client: Client) -> None:
    results = client.translate(["abc", "", b"de"], source_tag="<2de>")
    assert [best.text for best, *_ in results] == ["cba >ed2<", "", "ed >ed2<"]


def test_large_requests_are_split(client: Client) -> None:
    lengths = client.predict({"text": ["x" * i for i in range(20)]}, "size")["bytes"]
    assert lengths.tolist() == list(range(20))


@pytest.mark.parametrize(
    ("inputs", "signature", "sentence"),
    [
        ({"text": ["a"]}, "no", mentions("no", "join", "kinds", "no_poison")),
        ({"txt": ["a"]}, "size", mentions("txt", "text", "size", "reversing")),
        ({}, "size", mentions("inputs", "none", "text")),
        ({"text": [5]}, "size", mentions("input text", "5")),
        ({"text": "a"}, "size", mentions("input text", "batch dimension")),
        ({"text": []}, "size", mentions("inputs", "[0]", "rows", "1")),
        ({"ids": [[1], [2, 3]], "lengths": [1, 2]}, "join", mentions("input ids")),
        ({"ids": [[1]], "lengths": [0.5]}, "join", mentions("input lengths")),
        ({"ids": [[1]], "lengths": [1, 2]}, "join", mentions("inputs", "[1, 2]", "rows")),
    ],
)
def test_invalid_requests_are_not_sent(
    client: Client, inputs: Any, signature: str, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        client.predict(inputs, signature)


def test_errors_contain_the_message_of_the_server(client: Client) -> None:
    with pytest.raises(InputError, match=r"(400|INVALID_ARGUMENT): .*there is poison") as error:
        client.predict({"text": ["a", "poison"]}, "no_poison")
    assert not isinstance(error.value, ServerError)
    with pytest.raises(InputError, match=r"(400|INVALID_ARGUMENT): "):
        client.predict({"text": [["a"]]}, "size")


def test_missing_models_and_versions(addresses: dict[str, str], kind: str) -> None:
    with KINDS[kind](addresses[kind], "other") as client:
        with pytest.raises(InputError, match=r"(404|NOT_FOUND): Servable not found for request: L"):
            client.predict({"text": ["a"]})
        with pytest.raises(ServerError, match=mentions("respond", "0.2 s")):
            client.wait_until_ready(0.2)
    with (
        KINDS[kind](addresses[kind], NAME, 7) as client,
        pytest.raises(InputError, match=r"(404|NOT_FOUND): Servable not found for request: S"),
    ):
        client.predict({"text": ["a"]})
    with KINDS[kind](addresses[kind], NAME, 1) as client:
        assert client.predict({"text": ["a"]}, "size")["bytes"] == [1]


def test_statuses_of_grpc(addresses: dict[str, str]) -> None:
    channel = grpc.insecure_channel(addresses["grpc"])
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    text = {"text": tf.make_tensor_proto(["a"])}

    def code(method: Any, request: Any) -> grpc.StatusCode:
        with pytest.raises(grpc.RpcError) as error:
            method(request, timeout=30)
        assert error.value.details()
        return error.value.code()

    def predict(signature: str, inputs: Any, outputs: Any = (), **spec: Any) -> grpc.StatusCode:
        spec = {"name": NAME, "signature_name": signature, **spec}
        request = predict_pb2.PredictRequest(
            model_spec=spec, inputs=inputs, output_filter=list(outputs)
        )
        return code(stub.Predict, request)

    codes = grpc.StatusCode
    assert predict("no", text) is codes.FAILED_PRECONDITION
    assert predict("size", text, name="other") is codes.NOT_FOUND
    assert predict("size", text, version={"value": 7}) is codes.NOT_FOUND
    assert predict("size", {}) is codes.INVALID_ARGUMENT
    assert predict("size", {**text, "more": text["text"]}) is codes.INVALID_ARGUMENT
    assert predict("size", {"text": tf.make_tensor_proto([1])}) is codes.INVALID_ARGUMENT
    assert predict("size", text, ["no"]) is codes.INVALID_ARGUMENT
    classify = classification_pb2.ClassificationRequest(model_spec={"name": NAME})
    with pytest.raises(grpc.RpcError):
        stub.Classify(classify, timeout=30)
    metadata = get_model_metadata_pb2.GetModelMetadataRequest(model_spec={"name": NAME})
    assert code(stub.GetModelMetadata, metadata) is codes.INVALID_ARGUMENT
    channel.close()


def test_output_filter_of_grpc(addresses: dict[str, str]) -> None:
    request = predict_pb2.PredictRequest(
        model_spec={"name": NAME},
        inputs={"text": tf.make_tensor_proto(["ab"])},
        output_filter=["scores"],
    )
    with grpc.insecure_channel(addresses["grpc"]) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        response = stub.Predict(request, timeout=30)
    assert list(response.outputs) == ["scores"]
    assert (response.model_spec.name, response.model_spec.version.value) == (NAME, 1)
    assert response.model_spec.signature_name == "serving_default"


# The tests below need a server that they can stop and block.


def test_a_missing_server_is_one_sentence(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (
        KINDS[kind](address, NAME) as client,
        pytest.raises(ServerError, match=mentions(address, "respond", "0.3 s")),
    ):
        client.predict({"text": ["a"]}, timeout=0.3)


def test_a_full_queue_is_tried_again(kind: str, reversing_version: Path) -> None:
    options = {"batches_at_once": 1, "max_queue": 1, "batch_timeout_ms": 0.0}
    with (
        running_server(reversing_version.parent, **options) as running,
        KINDS[kind](getattr(running, kind), NAME) as client,
        concurrent.futures.ThreadPoolExecutor(3) as pool,
    ):
        client.metadata()
        with model_held():
            refused = running.server.metrics.requests.labels(
                *{"rest": ("REST", "429"), "grpc": ("gRPC", "RESOURCE_EXHAUSTED")}[kind]
            )
            futures = [pool.submit(client.predict, {"text": ["a"]}, "size") for _ in range(3)]
            batcher, batches = running.server.batcher, running.server.metrics.batch_rows
            wait_until(lambda: batches._sum.get() == 1 and batcher.waiting_rows == 1)
            wait_until(lambda: refused._value.get() >= 1)
            with pytest.raises(ServerError, match=mentions("respond", "0.2 s")):
                client.predict({"text": ["a"]}, "size", timeout=0.2)
        assert [future.result()["bytes"].tolist() for future in futures] == [[1], [1], [1]]


def test_a_request_that_is_too_large(kind: str, reversing_version: Path) -> None:
    with (
        running_server(reversing_version.parent, max_body_bytes=1000) as running,
        KINDS[kind](getattr(running, kind), NAME) as client,
    ):
        with pytest.raises(InputError, match=r"(413|RESOURCE_EXHAUSTED)\b.*(body|max)"):
            client.predict({"text": ["x" * 2000]})
        assert client.predict({"text": ["x" * 200]}, "size")["bytes"] == [200]


def test_a_deadline_of_grpc_that_has_passed_is_not_run(running: Running) -> None:
    with (
        GrpcClient(running.grpc, NAME) as client,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        client.metadata()
        with model_held():
            rows = running.metric("serving_batch_rows_sum")
            first = pool.submit(client.predict, {"text": ["a"]})
            wait_until(lambda: running.metric("serving_batch_rows_sum") == rows + 1)
            with pytest.raises(ServerError, match=mentions("0.2 s", "DEADLINE_EXCEEDED")):
                client.predict({"text": ["late"] * 5}, timeout=0.2)
            wait_until(lambda: running.metric("serving_waiting_rows") == 0)
        first.result()
        client.predict({"text": ["b"]})
        assert running.metric("serving_batch_rows_sum") == rows + 2


class SavedModelService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """A short implementation of TF Serving's service, with only its official messages."""

    def __init__(self, path: Path):
        self.model = tf.saved_model.load(str(path))
        self.requests: list[Any] = []

    def Predict(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        inputs = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
        outputs = self.model.signatures[request.model_spec.signature_name](
            **{name: tf.constant(array) for name, array in inputs.items()}
        )
        tensors = {name: tf.make_tensor_proto(tensor) for name, tensor in outputs.items()}
        return predict_pb2.PredictResponse(outputs=tensors)

    def GetModelMetadata(self, request: Any, context: Any) -> Any:
        if not self.requests:
            self.requests.append(request)
            context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        info = {"dtype": "DT_STRING", "tensor_shape": {"dim": [{"size": -1}]}}
        signature = {"inputs": {"text": info}, "outputs": {"bytes": {**info, "dtype": "DT_INT32"}}}
        map_ = get_model_metadata_pb2.SignatureDefMap(signature_def={"size": signature})
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.metadata["signature_def"].Pack(map_)
        return response


def test_the_wire_format_is_that_of_the_official_messages(reversing_version: Path) -> None:
    service = SavedModelService(reversing_version)
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with GrpcClient(f"127.0.0.1:{port}", NAME, 3) as client:
            assert client.predict({"text": ["ä", b"\xff"]}, "size")["bytes"].tolist() == [2, 1]
    finally:
        server.stop(None)
    metadata, request = service.requests
    assert list(metadata.metadata_field) == ["signature_def"]
    spec = {"name": NAME, "version": {"value": 3}}
    expected = predict_pb2.PredictRequest(
        model_spec={**spec, "signature_name": "size"},
        inputs={"text": {
            "dtype": "DT_STRING", "tensor_shape": {"dim": [{"size": 2}]},
            "string_val": ["ä".encode(), b"\xff"],
        }},
    )  # fmt: skip
    assert request == expected
    assert metadata.model_spec == type(metadata.model_spec)(**spec)


def test_both_services_are_of_tf_serving() -> None:
    services = prediction_service_pb2.DESCRIPTOR.services_by_name
    assert services["PredictionService"].full_name == "tensorflow.serving.PredictionService"
    assert hasattr(model_service_pb2_grpc, "ModelServiceStub")


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("localhost", mentions("localhost", "address")),
        ("ftp://localhost:1/x", mentions("ftp://localhost:1/x", "address")),
        ("localhost:http/x", mentions("localhost:http/x", "address")),
        ("localhost:99999/x", mentions("localhost:99999/x", "address")),
        ("\x00:1/x", mentions("address")),
        ("grpc://localhost:8500", mentions("grpc://localhost:8500", "model")),
    ],
)
def test_addresses_that_are_none(address: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        connect(address)


def test_addresses(running: Running) -> None:
    for address in (
        running.rest, f"http://{running.rest}/", f"{running.rest}/{NAME}",
        f"grpc://{running.grpc}/{NAME}", f"{running.rest}/{NAME}/", f"GRPC://{running.grpc}/{NAME}",
        f"http://{running.rest}/v1/models/{NAME}",
    ):  # fmt: skip
        with connect(address) as client:
            assert isinstance(client, GrpcClient if "grpc" in address.lower() else RestClient)
            assert client.model == NAME
            assert client.translate(["ab"])[0][0].text == "ba"


@pytest.mark.parametrize(
    ("status", "text", "sentence"),
    [
        (500, "<html>proxy", mentions("500", "<html>proxy")),
        (200, "<html>proxy", mentions("200", "<html>proxy")),
        (200, "[" * 9999, mentions("200", "[[")),
        (200, '{"other": 1}', mentions("200", '{"other": 1}')),
        (200, '{"metadata": 1}', mentions("metadata", "TF Serving")),
        (
            200,
            '{"metadata": {"signature_def": {"signature_def": {"x": []}}}}',
            mentions("TF Serving"),
        ),
    ],
)
def test_an_answer_that_is_not_of_tf_serving(
    monkeypatch: pytest.MonkeyPatch, status: int, text: str, sentence: str
) -> None:
    client = RestClient("localhost:1", NAME)
    monkeypatch.setattr(client, "_http", httpx.Client(
        base_url="http://localhost:1",
        transport=httpx.MockTransport(lambda request: httpx.Response(status, text=text)),
    ))  # fmt: skip
    with pytest.raises(ServerError, match=mentions("localhost:1") + sentence):
        client.metadata()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([2**32 + 2, 1], mentions("number", "4294967298", "fit")),
        ([-(2**31) - 1, 1], mentions("fit", "int32")),
    ],
)
def test_numbers_that_do_not_fit_are_not_sent(values: list[int], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        input_array("number", values, np.int32)
    assert input_array("number", [2**31 - 1, -(2**31)], np.int32).tolist() == [
        2**31 - 1, -(2**31),
    ]  # fmt: skip
    assert input_array("number", [1e300, 0.1], np.float32).dtype == np.float32


def test_lines_of_any_kind(client: Client) -> None:
    assert [each[0].text for each in client.translate(line for line in ("ab", "cd"))] == [
        "ba",
        "dc",
    ]
    assert client.translate([b"ab"])[0][0].text == "ba"  # type: ignore[list-item]
    assert client.translate([]) == []
    for wrong, sentence in [
        ("Hello", mentions("'Hello'", "lines")),
        (["\ud800"], mentions("surrogates not allowed")),
        ([None], mentions("None", "text")),
    ]:
        with pytest.raises(InputError, match=sentence):
            client.translate(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options", [{"timeout": 0}, {"max_batch_size": 0}, {"connections": 0}, {"max_batch_size": -1}]
)
def test_unusable_combinations_of_options(options: dict[str, Any]) -> None:
    with pytest.raises(
        InputError, match=mentions("0", "1", "timeout", "max_batch_size", "connections")
    ):
        connect("localhost:1/x", **options)


@contextlib.contextmanager
def server_that_says(*parts: bytes, pause: float = 0.0) -> Iterator[int]:
    """The port of a server that sends these parts on each connection, with pauses."""

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            with connection, contextlib.suppress(OSError):
                connection.recv(2**16)
                for part in parts:
                    connection.sendall(part)
                    time.sleep(pause)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=[listener], daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_the_rest_deadline_covers_the_whole_answer() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    with server_that_says(head, *[b" "] * 40, pause=0.05) as port:
        started = time.monotonic()
        with (
            RestClient(f"127.0.0.1:{port}", NAME) as client,
            pytest.raises(ServerError, match=mentions("0.5 s", "incomplete")),
        ):
            client.metadata(0.5)
    # No read has waited longer than 0.05 s. The complete answer would have taken 50 s.
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n{}\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
        b"SSH-2.0-OpenSSH\r\n",
        b"",
    ],
    ids=["not gzip", "cut off", "not HTTP", "nothing"],
)
def test_an_answer_that_is_not_of_http(head: bytes) -> None:
    with (
        server_that_says(head) as port,
        RestClient(f"127.0.0.1:{port}", NAME) as client,
        pytest.raises(ServerError, match=mentions(f"127.0.0.1:{port}", "0.3 s")),
    ):
        client.metadata(0.3)


def test_rest_works_without_tensorflow() -> None:
    code = (
        "import sys; from keras_transformer.extensions.serving.client import RestClient; "
        "RestClient('localhost:1', 'x').close(); "
        "print(sorted({'tensorflow', 'grpc'} & {*sys.modules}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"
