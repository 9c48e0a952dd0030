"""The REST API has the formats, status codes and messages of TF Serving."""

import concurrent.futures
import contextlib
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest

from keras_transformer.extensions.serving import command, server
from tests.extensions.serving.running_server import Running, model_held, running_server, wait_until
from tests.messages import mentions, tells

PREDICT = {"instances": ["abc"]}


def told(answer: httpx.Response) -> str:
    """Returns the error, which is the only field of the answer."""
    (error,) = answer.json().values()
    assert list(answer.json()) == ["error"]
    return str(error)


def test_row_and_column_format(running: Running) -> None:
    answer = running.predict({"instances": [{"text": "für"}]})
    assert answer.headers["content-type"] == "application/json"
    row = {"scores": [-0.1, -2.5], "translations": ["rüf", "für"]}
    assert answer.json() == {"predictions": [row]}
    assert running.predict({"inputs": ["abc"]}, "/versions/1").json() == {
        "outputs": {"scores": [[-0.1, -2.5]], "translations": [["cba", "abc"]]}
    }
    one = {"signature_name": "size", "instances": [{"b64": "/w=="}, "für"]}
    assert running.predict(one).json() == {"predictions": [1, 4]}
    assert running.predict({"signature_name": "size", "inputs": {"text": ["a"]}}).json() == {
        "outputs": [1]
    }


def test_cors_allows_only_the_named_origins(reversing_version: Path, running: Running) -> None:
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    assert not running.http.options(f"{running.model}:predict", headers=preflight).is_success
    origins = ("https://a.example", "http://localhost:3000")
    with running_server(reversing_version.parent, cors_origins=origins) as allowing:
        path = f"{allowing.model}:predict"
        for origin, allowed in ((origins[0], True), ("https://b.example", False)):
            headers = {**preflight, "Origin": origin}
            assert allowing.http.options(path, headers=headers).is_success == allowed
            defect = mock.patch.object(server, "read_inputs", side_effect=RuntimeError)
            for body, fault, status in (
                (PREDICT, contextlib.nullcontext(), 200),
                ({}, contextlib.nullcontext(), 400),
                (PREDICT, defect, 500),
            ):
                with fault:
                    answer = allowing.http.post(path, json=body, headers={"Origin": origin})
                assert answer.status_code == status
                told_origin = answer.headers.get("access-control-allow-origin")
                assert told_origin == (origin if allowed else None)


def test_status_and_metadata(running: Running) -> None:
    available = {"version": "1", "state": "AVAILABLE"}
    status = {**available, "status": {"error_code": "OK", "error_message": ""}}
    for path in (running.model, f"{running.model}/versions/1"):
        assert running.http.get(path).json() == {"model_version_status": [status]}
    metadata = running.http.get(f"{running.model}/metadata").json()
    assert metadata["model_spec"] == {"name": "reversing", "signature_name": "", "version": "1"}
    signature = metadata["metadata"]["signature_def"]["signature_def"]["join"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    ids = signature["inputs"]["ids"]
    sizes = [{"size": "-1", "name": ""}, {"size": "-1", "name": ""}]
    assert ids["dtype"] == "DT_INT32"
    assert ids["tensor_shape"] == {"dim": sizes, "unknown_rank": False}


def test_an_answer_that_would_be_too_large_is_refused(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A row of serving_default has two texts, whose pointers count, and two float32.
    monkeypatch.setattr(server, "_MAX_ANSWER_BYTES", 3 * (2 * 8 + 2 * 4) + 1)
    assert running.predict({"instances": ["a"] * 3}).status_code == 200
    answer = running.predict({"instances": ["a"] * 4})
    assert answer.status_code == 400
    facts = ("4 rows", "96 bytes", "translations", "at most 3", "serving_default")
    assert tells(told(answer), *facts)
    monkeypatch.setattr(server, "_MAX_ANSWER_BYTES", 1)  # a single row is always answered
    joined = {"signature_name": "join", "inputs": {"ids": [[1, 2]], "lengths": [2]}}
    assert running.predict(joined).json() == {"outputs": {"text": ["1 2"], "ids": [[1, 2]]}}


def test_health_and_metrics(running: Running) -> None:
    assert running.http.get("/healthz").json() == {"status": "serving", "model": "reversing"}
    names = ("serving_requests_total", "serving_batch_rows_sum", "serving_request_seconds_count")
    before = [running.metric(name) for name in names]
    running.predict({"instances": ["a", "b"]})
    running.predict({"instances": []})
    running.http.options(f"{running.model}:predict")  # is no prediction
    assert [running.metric(n) - b for n, b in zip(names, before, strict=True)] == [2, 2, 2]
    assert running.metric("serving_waiting_rows") == 0


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"inputs": []}, mentions("0 rows", "1", "100")),
        ({"signature_name": "no", **PREDICT}, 'Serving signature key "no" not found'),
        ({"signature_name": "no_poison", "instances": ["poison"]}, mentions("there is poison")),
        ({"signature_name": "x" * 5_000_000, **PREDICT}, "^.{900,1000}$"),
    ],
    ids=["empty", "signature", "model", "long name"],
)
def test_invalid_input_gives_a_one_line_error(running: Running, body: Any, sentence: str) -> None:
    answer = running.predict(body)
    assert answer.status_code == 400
    assert re.search(sentence, told(answer))
    assert running.predict(PREDICT).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "sentence"),
    [
        ("POST", "/v1/models/other:predict", 404, mentions("Servable not found", "Latest(other)")),
        ("POST", "/v1/models/reversing/versions/7:predict", 404, "Servable not found for request"),
        ("POST", "/v1/models/reversing/labels/new:predict", 404, "Not Found: POST /v1/mod"),
        ("PUT", "/v1/models/reversing:predict", 405, "Method Not Allowed: PUT /v1/models/reversin"),
        ("GET", "/v1/models/other", 404, "Could not find any versions of model other"),
        ("GET", "/v1/models/reversing/versions/7", 404, "Could not find version 7 of model"),
    ],
)
def test_missing_paths(
    running: Running, method: str, path: str, status: int, sentence: str
) -> None:
    answer = running.http.request(method, path, json=PREDICT if method == "POST" else None)
    assert answer.status_code == status, answer.text
    assert re.search(sentence, told(answer))


@pytest.mark.parametrize("length", [{}, {"Content-Length": str(40 * 2**20)}])
def test_a_body_that_is_too_large_is_refused(running: Running, length: dict[str, str]) -> None:
    def megabytes() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 2**20

    answer = running.http.post(f"{running.model}:predict", content=megabytes(), headers=length)
    assert answer.status_code == 413
    assert tells(told(answer), "41,943,040", "16,777,216")
    assert running.predict(PREDICT).status_code == 200


def test_an_invalid_request_does_not_affect_others(running: Running) -> None:
    def body(*texts: Any) -> dict[str, Any]:
        return {"signature_name": "no_poison", "instances": list(texts)}

    # Inputs that do not match the signature are refused before the queue.
    bodies = [body("first"), body("a"), body("poison"), body(["b"]), body("bb", "c")]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        with model_held():
            rows = running.metric("serving_batch_rows_sum")
            futures = [pool.submit(running.predict, bodies[0])]
            wait_until(lambda: running.metric("serving_batch_rows_sum") > rows)
            futures += [pool.submit(running.predict, body) for body in bodies[1:]]
            wait_until(lambda: running.metric("serving_waiting_rows") == 4)
        answers = [future.result() for future in futures]
    assert [answer.status_code for answer in answers] == [200, 200, 400, 400, 200]
    assert [answers[i].json()["predictions"] for i in (1, 4)] == [[1], [2, 1]]


@pytest.mark.parametrize("given", ["Root=1-a/b:c", "a b", "x" * 129, ""])
def test_a_defect_is_in_the_log_with_the_id_that_its_client_gets(
    running: Running, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    caplog.handler.addFilter(command._add_request_id)
    with mock.patch.object(server, "read_inputs", side_effect=RuntimeError("a defect")):
        running.http.headers["X-Request-Id"] = given
        answer = running.predict(PREDICT)
    del running.http.headers["X-Request-Id"]
    assert answer.status_code == 500 and tells(told(answer), "internal", "log")
    number = answer.headers["x-request-id"]
    assert number == given if "=" in given else re.fullmatch("[0-9a-f]{32}", number)
    wait_until(lambda: len(caplog.records) == 2)  # the stack trace, and the status
    assert {record.request for record in caplog.records} == {f"request {number}: "}
    others = [running.predict(PREDICT), running.http.get("/no"), running.http.get("/healthz")]
    assert [other.status_code for other in others] == [200, 404, 200]
    assert len({other.headers["x-request-id"] for other in others} - {number}) == 3


def test_a_request_whose_client_has_gone_is_not_run(running: Running) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool, model_held():
        rows = running.metric("serving_batch_rows_sum")
        first = pool.submit(running.predict, PREDICT)
        wait_until(lambda: running.metric("serving_batch_rows_sum") == rows + 1)
        with socket.create_connection(("127.0.0.1", running.port)) as client:
            body = json.dumps({"instances": ["x"] * 5}).encode()
            head = f"POST {running.model}:predict HTTP/1.1\r\nHost: localhost\r\n"
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: running.metric("serving_waiting_rows") == 5)
        wait_until(lambda: running.metric("serving_waiting_rows") == 0)
    assert first.result().status_code == 200
    assert running.predict(PREDICT).status_code == 200
    assert running.metric("serving_batch_rows_sum") == rows + 2
