"""The gRPC client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.extensions.serving.client.base import (
    Client,
    NotNowError,
    ServerError,
)


class GrpcClient(Client):
    """A client that uses gRPC without encryption; `address` is HOST:PORT."""

    def __init__(self, address: str, model: str, version: int | None = None, **options: Any):
        import grpc
        from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc

        super().__init__(address, model, version, **options)
        any_size = [(f"grpc.max_{what}_message_length", -1) for what in ("send", "receive")]
        self._channel = grpc.insecure_channel(address, any_size)
        self._prediction = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._model = model_service_pb2_grpc.ModelServiceStub(self._channel)

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def _predict(
        self, inputs: dict[str, np.ndarray], signature: str, timeout: float
    ) -> dict[str, np.ndarray]:
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        self._fill(request.model_spec)
        request.model_spec.signature_name = signature
        for name, array in inputs.items():
            dtype = tf.string if array.dtype == object else None
            request.inputs[name].CopyFrom(tf.make_tensor_proto(array, dtype))
        response = self._request(self._prediction.Predict, request, timeout)
        return {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}

    def _metadata(self, timeout: float) -> Any:
        from google.protobuf import json_format
        from tensorflow_serving.apis import get_model_metadata_pb2

        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        self._fill(request.model_spec)
        response = self._request(self._prediction.GetModelMetadata, request, timeout)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        fields = json_format.MessageToDict(signatures, preserving_proto_field_name=True)
        return {"signature_def": fields}

    def _states(self, timeout: float) -> list[str]:
        from tensorflow_serving.apis import get_model_status_pb2

        request = get_model_status_pb2.GetModelStatusRequest()
        self._fill(request.model_spec)
        response = self._request(self._model.GetModelStatus, request, timeout)
        state = get_model_status_pb2.ModelVersionStatus.State
        return [state.Name(version.state) for version in response.model_version_status]

    def _fill(self, spec: Any) -> None:
        spec.name = self.model
        if self.version is not None:
            spec.version.value = self.version

    def _request(self, method: Callable[..., Any], request: Any, timeout: float) -> Any:
        """Calls a method and returns its answer."""
        import grpc

        try:
            return method(request, timeout=timeout)
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            sentence = f"{self.address} answers {code.name}: {details}"
            too_large = "larger than max" in details  # a retry does not help
            again = (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                grpc.StatusCode.DEADLINE_EXCEEDED,
            )
            if code in again and not too_large:
                raise NotNowError(sentence) from error
            ours = (
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.NOT_FOUND,
                grpc.StatusCode.FAILED_PRECONDITION,
                grpc.StatusCode.OUT_OF_RANGE,
                grpc.StatusCode.UNIMPLEMENTED,
            )
            raise (InputError if too_large or code in ours else ServerError)(sentence) from error
