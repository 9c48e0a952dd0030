"""The replicas of a `tf.distribute` strategy, which see different rows of a batch."""

from __future__ import annotations

import sys
from typing import Any

import keras


def _context() -> Any:
    """Returns the context of this replica, or None if there is only one replica."""
    if keras.backend.backend() != "tensorflow":
        return None
    distribute = sys.modules["tensorflow"].distribute  # Keras has imported it
    if distribute.get_strategy().num_replicas_in_sync == 1:
        return None
    return distribute.get_replica_context()


def sum_over_replicas(value: Any) -> Any:
    """Returns the sum of a tensor over all replicas; `value` itself if there is only one.

    Example:
    >>> float(sum_over_replicas(keras.ops.array(2.0)))
    2.0
    """
    context = _context()
    return value if context is None else context.all_reduce("SUM", value)


def replica_id() -> Any:
    """Returns the number of this replica, an int scalar; 0 if there is only one.

    Example:
    >>> replica_id()
    0
    """
    context = _context()
    return 0 if context is None else context.replica_id_in_sync_group


def num_replicas() -> int:
    """Returns the number of replicas that share a batch.

    Example:
    >>> num_replicas()
    1
    """
    context = _context()
    return 1 if context is None else int(context.num_replicas_in_sync)
