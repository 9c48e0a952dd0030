"""The environment variable `TF_CONFIG`: which machines train together, and which one this is."""

from __future__ import annotations

import json

from keras_transformer.errors import InputError

_EXPECTED = (
    'expected {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
)


def read_tf_config(text: str) -> tuple[list[str], int]:
    """Returns `host:port` of every worker, the chief's first, and which of them this process is.

    Raises:
        InputError: where `text`, the value of `TF_CONFIG`, does not say so.
    """

    def require(condition: object, what: str) -> None:
        if not condition:
            raise InputError(f"TF_CONFIG {what}; {_EXPECTED}")

    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"TF_CONFIG is no JSON: {text[:80]!r}; {_EXPECTED}") from None
    require(isinstance(config, dict), f"is {text[:80]!r}")
    cluster, task = config.get("cluster"), config.get("task")
    require(isinstance(cluster, dict) and cluster.get("worker"), f'has the "cluster" {cluster!r}')
    require(isinstance(task, dict), f'has the "task" {task!r}')
    for job, addresses in cluster.items():
        require(job in ("chief", "worker"), f"lists {job!r} in its cluster, not chief and workers")
        require(isinstance(addresses, list), f"has the {job} list {addresses!r}")
        for address in addresses:
            require(_is_address(address), f"lists the {job} {address!r}, not a host:port")
    chiefs = cluster.get("chief", [])
    require(len(chiefs) <= 1, f"lists {len(chiefs)} chiefs")
    workers = chiefs + cluster["worker"]
    for address in workers:
        require(workers.count(address) == 1, f"lists {address} twice")
    job, index = task.get("type"), task.get("index")
    require(job in ("chief", "worker"), f"has the task type {job!r}, not worker or chief")
    places = len(cluster.get(job, []))
    require(
        type(index) is int and 0 <= index < places,
        f"has the task index {index!r}, and lists {places} of type {job}",
    )
    return workers, index + (len(chiefs) if job == "worker" else 0)


def _is_address(address: object) -> bool:
    if not isinstance(address, str):
        return False
    host, _, port = address.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port[:6]) < 1 << 16
