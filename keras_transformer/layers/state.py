"""The state of a decoder between decode steps: the keys and values, or cells, of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_transformer.layers.attention import scaled_dot_product_attention
from keras_transformer.layers.masks import both, position_mask


class DecodeState:
    """The keys and values of a decoder's layers, while it decodes one position after another.

    The T queries of a step are alternatives (beams) at one position. A step writes T entries to
    each layer: it appends them, or with `grows=False` writes them at `position` * T. A layer with
    an `SSRU` has one cell for each query, which the step replaces.

    A `Decoder` numbers its layers. In your own list of `DecoderLayer`s, set
    `layer.self_attention.layer_index`, or give each layer a state with one layer.

    Args:
        layers: the keys and values of each layer, from `init_cache` or from the step before.
        position: int scalar, the position of the queries.
        visible: bool `[B, T, L]`, True for the entries in the history of a query, with those of
            this step. Without it all written entries are visible, which is correct for T = 1.
        grows: append the entries.

    Example:
    >>> from keras_transformer.layers import Decoder
    >>> decoder, target = Decoder(num_layers=1, num_heads=2, d_ff=16), ops.ones((1, 1, 8))
    >>> decoder.build(target.shape)
    >>> state = DecodeState(decoder.init_cache(batch_size=1, length=5), position=0)
    >>> output, _ = decoder.transform(target, state=state)
    >>> state = DecodeState(state.layers, position=1)
    """

    # How queries attend to the results of `write`.
    attend = staticmethod(scaled_dot_product_attention)

    def __init__(
        self, layers: Sequence[Any], position: Any, visible: Any = None, grows: bool = False
    ):
        self.layers: Any = list(layers)
        self.position = position
        self.visible = visible
        self._grows = grows

    def index(self, layer: Any) -> int:
        """Returns the index of an attention layer or a recurrent unit in `layers`."""
        if layer.layer_index is None and len(self.layers) > 1:
            raise ValueError(f"The state has several layers. Set {layer.name}.layer_index.")
        return layer.layer_index or 0

    def write(self, layer: int, key: Any, value: Any) -> tuple[Any, Any]:
        """Writes the entries of this step to a layer, and returns all its keys and values."""
        old, self._num_queries = self.layers[layer], key.shape[2]
        new = {"key": self._add(old["key"], key), "value": self._add(old["value"], value)}
        self.layers[layer] = new
        return new["key"], new["value"]

    def _add(self, written: Any, new: Any) -> Any:
        # Appending is faster with TensorFlow's CPU kernels: an update also copies all entries, and
        # attention would include entries that are not written yet.
        if self._grows:
            return ops.concatenate([written, new], axis=2)
        return ops.slice_update(written, (0, 0, self.position * new.shape[2], 0), new)

    def mask(self, window: int | None = None) -> Any:
        """Returns the entries that queries may attend to, broadcastable to bool `[B, T, L]`."""
        if window is None and (self.visible is not None or self._grows):
            return self.visible
        num_entries = ops.shape(self.layers[0]["key"])[2]
        positions = ops.arange(num_entries) // self._num_queries
        last = positions[-1] if self._grows else self.position
        # Entries after `position` have not been written yet.
        near = position_mask(ops.reshape(last, (1,)), positions, not self._grows, window)
        return both(ops.expand_dims(near, 0), self.visible)
