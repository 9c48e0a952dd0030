"""The loop of a search, from which sentences that have ended leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

State = TypeVar("State")


def search_loop(
    step: Callable[[State, Any], State],
    is_open: Callable[[State], tf.Tensor],
    results: Callable[[State], Any],
    keep: Callable[[State, Any, tf.Tensor], tuple[State, Any]],
    state: State,
    inputs: Any,
    shrink: bool = True,
    max_steps: int | None = None,
) -> Any:
    """Steps on until no sentence is open, and returns the results of all.

    When at most three quarters of the sentences are open, the batch shrinks to these: they
    end at very different lengths, and a step costs what all its rows cost. Each time costs
    a copy of the caches, about what a step takes.

    Args:
        step: `(state, inputs)` → the next state.
        is_open: state → bool `[batch]`.
        results: state → nested tensors `[batch, ...]`.
        keep: `(state, inputs, sentences)` → those of the sentences int32 `[few]`.
        state: the first; nested tensors `[batch, ...]` or scalars.
        inputs: nested tensors `[batch, ...]`, which the steps do not change.
        shrink: False where shapes must stay the same (XLA).
        max_steps: a bound that the graph holds to whatever the state says. No sentence may
            need so many steps.
    """

    def steps(state: State, inputs: Any, fewest: Any) -> State:
        """Steps while more than `fewest` sentences are open."""
        (state,) = tf.while_loop(
            lambda state: tf.reduce_sum(tf.cast(is_open(state), tf.int32)) > fewest,
            lambda state: (step(state, inputs),),
            (state,),
            maximum_iterations=max_steps,
        )
        return state

    if not shrink:
        return results(steps(state, inputs, 0))

    def shrunk(origin: tf.Tensor, state: State, inputs: Any, found: Any) -> tuple[Any, ...]:
        state = steps(state, inputs, 3 * tf.size(origin) // 4)
        places = tf.expand_dims(origin, 1)
        found = tf.nest.map_structure(
            lambda all_, these: tf.tensor_scatter_nd_update(all_, places, these),
            found,
            results(state),
        )
        still_open = tf.cast(tf.where(is_open(state))[:, 0], tf.int32)
        state, inputs = keep(state, inputs, still_open)
        return tf.gather(origin, still_open), state, inputs, found

    found = results(state)
    origin = tf.range(tf.shape(tf.nest.flatten(found)[0])[0])  # places in the whole batch
    first = (origin, state, inputs, found)
    *_, found = tf.while_loop(
        lambda origin, *_: tf.size(origin) > 0,
        shrunk,
        first,
        shape_invariants=tf.nest.map_structure(_of_any_batch, first),
        # Each but the first begins with open sentences alone, and takes a step or more.
        maximum_iterations=None if max_steps is None else max_steps + 1,
    )
    return found


def _of_any_batch(tensor: tf.Tensor) -> tf.TensorShape:
    return tf.TensorShape([None, *tensor.shape[1:]]) if tensor.shape.rank else tensor.shape
