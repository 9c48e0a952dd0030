"""What training, search and runs know of a model: the Transformer, or one compared with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import keras

from keras_transformer.config import EncoderDecoderConfig, RunConfig
from keras_transformer.errors import InputError


class Memory(NamedTuple):
    """What the encoder leaves for the decoder."""

    states: Any  # [B, S, d_model]
    mask: Any  # bool [B, S], True for real tokens
    # Once projected: every layer's keys and values (of other models whatever they need of it).
    cache: Any = None


class Decoded(NamedTuple):
    """What `Transformer.decode` returns."""

    logits: Any  # [B, T, target_vocab_size]
    cache: Any  # where one was given
    attention: list[dict[str, Any]]  # a layer's `self` [B, H, T, T or L], `cross` [B, H, T, S]


class EncoderDecoder(keras.Model):
    """What training, search and runs know of a model, whatever it is made of.

    Attributes:
        run_config: the configuration of its runs, which says what its architecture is called.
        cache_follows: whether `decode`'s cache is of hypotheses, as `[B, beams, ...]`, and has to
            follow them when they change places. Otherwise it is of places that do not move.
        config: its shape.
        source_embedding, target_embedding: layers with the weights `embeddings`.

    Call arguments:
        inputs: `{"source_ids": int [B, S], "target_ids": int [B, T]}`, padded
            with `config.pad_id`; the target begins with the start id.
        training: whether dropout is on.

    Returns:
        Logits `[B, T, target_vocab_size]` in the compute dtype.
    """

    run_config: ClassVar[type[RunConfig]]
    cache_follows: ClassVar[bool] = False
    config: EncoderDecoderConfig
    source_embedding: Any
    target_embedding: Any

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> Any:
        return self.logits(self.features(inputs, training=training))

    def compute_output_shape(self, input_shape: Mapping[str, Any]) -> Any:
        return (*input_shape["target_ids"], self.config.target_vocab_size)

    def export(self, *args: Any, input_signature: Any = None, **kwargs: Any) -> None:
        """Keras's export, of the logits of given targets, for batches and lengths of any size.

        A translator, which searches and takes text, is what `keras_transformer.export` makes.

        Args:
            *args, **kwargs: as of `keras.Model.export`.
            input_signature: likewise; by default that of `call`, int32 `[None, None]`.
        """
        ids = {
            name: keras.InputSpec("int32", (None, None), name=name)
            for name in ("source_ids", "target_ids")
        }
        super().export(*args, input_signature=input_signature or [ids], **kwargs)

    @property
    def max_positions(self) -> int | None:
        """Places of a sequence that it knows, or None where they have no end."""
        return None

    @property
    def has_attention_at_hand(self) -> bool:
        """Whether `target_features` takes `return_attention_scores`, at no cost."""
        return False

    def features(self, inputs: Mapping[str, Any], training: bool | None = None) -> Any:
        """The decoder's output `[B, T, d_model]`, from which `logits` makes logits."""
        memory = self.encode(inputs["source_ids"], training=training)
        return self.target_features(inputs["target_ids"], memory, training)

    def encode(self, source_ids: Any, training: bool | None = None) -> Memory:
        """Encodes int `[B, S]`, padded with `config.pad_id`."""
        raise NotImplementedError

    def project_memory(self, memory: Memory) -> Memory:
        """Adds what the decoder makes of the memory, where it will ask many times."""
        raise NotImplementedError

    def target_features(self, target_ids: Any, memory: Memory, training: bool | None = None) -> Any:
        """`features` of int `[B, T]`, after a source that is encoded already."""
        raise NotImplementedError

    def logits(self, features: Any, parts: int = 1) -> Any:
        """`[..., d_model]` to `[..., target_vocab_size]`, in so many `parts` if it likes."""
        raise NotImplementedError

    def output_weights(self) -> tuple[keras.Variable, keras.Variable | None]:
        """The weights of `logits`: the kernel `[V, d_model]` (untied: `[d_model, V]`), the bias."""
        raise NotImplementedError

    def init_cache(self, batch_size: Any, length: Any, beams: int = 1) -> Any:
        """The cache of `batch_size` sentences before the first of `length` positions (0: grows).

        At each position there will be `beams` alternatives.
        """
        raise NotImplementedError

    def decode(
        self,
        target_ids: Any,
        memory: Memory,
        cache: Any = None,
        position: Any = 0,
        attention_mask: Any = None,
        grow: bool = False,
        training: bool | None = None,
    ) -> Decoded:
        """Decodes one position of a target with a cache; arguments as `Transformer.decode`'s."""
        raise NotImplementedError

    def _make_embedding(self, name: str, vocab_size: int) -> Any:
        """Returns a layer of int `[...]` to `[..., d_model]`, with the weights `embeddings`."""
        raise NotImplementedError

    def _add_embeddings(self) -> None:
        """Makes the embeddings of both sides: one layer where they are tied."""
        c = self.config
        if c.tie_embeddings == "all":
            self.embedding = self._make_embedding("embedding", c.target_vocab_size)
            self.source_embedding = self.target_embedding = self.embedding
        else:
            self.source_embedding = self._make_embedding("source_embedding", c.source_vocab_size)
            self.target_embedding = self._make_embedding("target_embedding", c.target_vocab_size)

    def weights_by_path(self) -> dict[str, keras.Variable]:
        """Every weight by its path below the model, as in `encoder/layer_0/…/qkv_kernel`."""
        # Inside another model all paths begin with the same names more.
        first = self.source_embedding
        above = len(first.embeddings.path) - len(f"{first.name}/embeddings")
        return {v.path[above:]: v for v in self.weights}

    def assign_weights(self, arrays: Mapping[str, Any]) -> None:
        """Sets all weights from arrays addressed as by `weights_by_path`.

        Raises:
            InputError: where a weight is missing, not this model's, or of another shape.
        """
        own = self.weights_by_path()
        different = sorted(own.keys() ^ arrays.keys())
        if different:
            raise InputError(
                f"the weights are of another model: {different[0]} is in only one of the two"
            )
        for path, variable in own.items():
            if tuple(variable.shape) != tuple(arrays[path].shape):
                raise InputError(
                    f"the weights are of another model: {path} is {tuple(arrays[path].shape)}; "
                    f"expected {tuple(variable.shape)}"
                )
            variable.assign(arrays[path])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "config": dataclasses.asdict(self.config)}
