"""TF Serving's gRPC services: PredictionService, ModelService, and gRPC's health."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from keras_transformer.extensions.serving.server.batching import RequestError
from keras_transformer.extensions.serving.server.protos import (
    get_model_metadata_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    tensor_of,
)
from keras_transformer.extensions.serving.server.tensors import read_tensors

if TYPE_CHECKING:
    from keras_transformer.extensions.serving.server.state import Server

_LOG = logging.getLogger(__name__)
_SERVICES = ("", "tensorflow.serving.PredictionService")


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Predict and GetModelMetadata; the methods for tf.Examples are UNIMPLEMENTED."""

    def __init__(self, server: Server, max_bytes: int):
        self._server = server
        self._max_bytes = max_bytes

    async def Predict(self, request: Any, context: Any) -> Any:
        """Answers a PredictRequest."""
        return await _answered(context, self._predict(request), self._server.metrics.count)

    async def GetModelMetadata(self, request: Any, context: Any) -> Any:
        """Answers a GetModelMetadataRequest. The field must be signature_def."""
        return await _answered(context, self._metadata(request))

    async def _predict(self, request: Any) -> Any:
        spec = request.model_spec
        with self._server.model.version(*_version(spec)) as version:
            inputs = await asyncio.to_thread(read_tensors, request.inputs, self._max_bytes)
            outputs = await self._server.predict(
                version, spec.signature_name, inputs, request.output_filter
            )
            response = predict_pb2.PredictResponse()
            response.model_spec.name = spec.name
            response.model_spec.signature_name = spec.signature_name or "serving_default"
            response.model_spec.version.value = version.number
        for name, array in outputs.items():
            response.outputs[name].CopyFrom(await asyncio.to_thread(tensor_of, array))
        return response

    async def _metadata(self, request: Any) -> Any:
        if list(request.metadata_field) != ["signature_def"]:
            raise RequestError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"metadata_field is {list(request.metadata_field)}. Only signature_def is "
                "supported.",
            )
        with self._server.model.version(*_version(request.model_spec)) as version:
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            response.model_spec.name = request.model_spec.name
            response.model_spec.version.value = version.number
            response.metadata["signature_def"].Pack(self._server.signatures(version))
        return response


class ModelService(model_service_pb2_grpc.ModelServiceServicer):
    """GetModelStatus."""

    def __init__(self, server: Server):
        self._server = server

    async def GetModelStatus(self, request: Any, context: Any) -> Any:
        """Answers a GetModelStatusRequest."""
        return await _answered(context, self._status(request))

    async def _status(self, request: Any) -> Any:
        name, number, _ = _version(request.model_spec)
        return self._server.model.status(name, number)


class GrpcApi:
    """The services of a server, at an address.

    Args:
        server: the state of the server.
        address: HOST:PORT; port 0 for any free port.
        max_bytes: maximum bytes of a message.

    Attributes:
        port: the port; 0 if the address is not available.
    """

    def __init__(self, server: Server, address: str, max_bytes: int):
        options = [("grpc.max_receive_message_length", max_bytes), ("grpc.so_reuseport", 0)]
        self._grpc = grpc.aio.server(options=options)
        self._health = health.aio.HealthServicer()
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            PredictionService(server, max_bytes), self._grpc
        )
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelService(server), self._grpc)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        try:
            self.port: int = self._grpc.add_insecure_port(address)
        except RuntimeError:
            self.port = 0

    async def start(self) -> None:
        """Starts to answer requests."""
        await self._grpc.start()
        for service in _SERVICES:
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, seconds: float) -> None:
        """Refuses new requests, and waits at most `seconds` for the others."""
        await self._health.enter_graceful_shutdown()
        await self._grpc.stop(grace=seconds)


def _version(spec: Any) -> tuple[str, int | None, str]:
    number = spec.version.value if spec.HasField("version") else None
    return spec.name, number, spec.version_label


async def _answered(
    context: Any,
    answer: Awaitable[Any],
    count: Callable[[str, str, float], None] = lambda *_: None,
) -> Any:
    """Returns the answer, or aborts the call with the status of the error."""
    start = time.perf_counter()
    result, code, sentence = None, grpc.StatusCode.CANCELLED, ""
    try:
        result, code = await answer, grpc.StatusCode.OK
    except RequestError as error:
        code, sentence = error.code, str(error)
    except Exception:
        code, sentence = grpc.StatusCode.INTERNAL, "The server has an internal error. See its log."
        _LOG.exception("A request has failed.")
    finally:
        count("gRPC", code.name, time.perf_counter() - start)
    if code != grpc.StatusCode.OK:
        await context.abort(code, sentence)
    return result
