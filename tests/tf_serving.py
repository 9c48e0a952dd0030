"""Configuration files of TF Serving 2.20.0, from its sources: the package tensorflow-serving-api
has neither the messages of its text files nor the flags of its binary.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2

VERSION = "2.20.0"

# tensorflow_serving/model_servers/main.cc
FLAGS = frozenset(
    """
    port rest_api_port rest_api_num_threads rest_api_timeout_in_ms enable_batching
    batching_parameters_file enable_per_model_batching_parameters model_config_file
    model_config_file_poll_wait_seconds allow_version_labels_for_unavailable_models
    file_system_poll_wait_seconds monitoring_config_file tensorflow_intra_op_parallelism
    tensorflow_inter_op_parallelism enable_grpc_healthcheck_service grpc_channel_arguments
    grpc_max_threads num_load_threads num_unload_threads max_num_load_retries
    load_retry_interval_micros enable_model_warmup per_process_gpu_memory_fraction
    """.split()
)

_Field = descriptor_pb2.FieldDescriptorProto
_INT64, _BOOL, _STRING = ".google.protobuf.Int64Value", ".google.protobuf.BoolValue", (
    ".google.protobuf.StringValue"
)  # fmt: skip


def _messages() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="tests/tf_serving.proto",
        package="tests.tf_serving",
        syntax="proto3",
        dependency=[wrappers_pb2.DESCRIPTOR.name],
    )

    def add(message: Any, name: str, number: int, kind: Any, repeated: bool = False) -> None:
        field = message.field.add(name=name, number=number)
        field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
        if isinstance(kind, str):
            field.type, field.type_name = _Field.TYPE_MESSAGE, kind
        else:
            field.type = kind

    # tensorflow_serving/servables/tensorflow/session_bundle_config.proto
    batching = file.message_type.add(name="BatchingParameters")
    add(batching, "max_batch_size", 1, _INT64)
    add(batching, "batch_timeout_micros", 2, _INT64)
    add(batching, "max_enqueued_batches", 3, _INT64)
    add(batching, "num_batch_threads", 4, _INT64)
    add(batching, "thread_pool_name", 5, _STRING)
    add(batching, "allowed_batch_sizes", 6, _Field.TYPE_INT64, repeated=True)
    add(batching, "pad_variable_length_inputs", 7, _Field.TYPE_BOOL)
    add(batching, "enable_large_batch_splitting", 8, _BOOL)
    add(batching, "max_execution_batch_size", 9, _INT64)
    # tensorflow_serving/config/monitoring_config.proto
    prometheus = file.message_type.add(name="PrometheusConfig")
    add(prometheus, "enable", 1, _Field.TYPE_BOOL)
    add(prometheus, "path", 2, _Field.TYPE_STRING)
    monitoring = file.message_type.add(name="MonitoringConfig")
    add(monitoring, "prometheus_config", 1, ".tests.tf_serving.PrometheusConfig")

    pool = descriptor_pool.Default()
    pool.Add(file)
    return pool


_POOL = _messages()
BatchingParameters, MonitoringConfig = (
    message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"tests.tf_serving.{name}"))
    for name in ("BatchingParameters", "MonitoringConfig")
)
