"""Configuration files of TF Serving 2.20.0, from its sources: the package tensorflow-serving-api
has neither the messages of its text files nor the flags of its binary.
"""

import json
import re
from typing import Any

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

# BatchingParameters in tensorflow_serving/servables/tensorflow/session_bundle_config.proto, without
# its lists. Their values are wrapped.
NUMBERS = """max_batch_size batch_timeout_micros max_enqueued_batches num_batch_threads
    max_execution_batch_size"""
SWITCHES = "pad_variable_length_inputs enable_large_batch_splitting"
BATCHING = dict.fromkeys(NUMBERS.split(), int) | dict.fromkeys(SWITCHES.split(), bool)
BATCHING |= {"thread_pool_name": str}


def read_batching_parameters(text: str) -> dict[str, Any]:
    """Reads a file of lines such as `max_batch_size { value: 32 }`."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            parts = re.fullmatch(r"(\w+) \{ value: (.+) \}", line)
            assert parts, line
            found[parts[1]] = json.loads(parts[2])
            assert type(found[parts[1]]) is BATCHING[parts[1]], line
    return found
