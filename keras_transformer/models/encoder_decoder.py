"""The protocol of encoder-decoder models, and the registry of their architectures.

Training, search, scoring and run directories use only the methods of `EncoderDecoder`.
`Transformer` implements them; other architectures subclass it and register themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import keras
from keras import ops

from keras_transformer.config import EncoderDecoderConfig, RunConfig
from keras_transformer.errors import InputError
from keras_transformer.layers.state import DecodeState


class Memory(NamedTuple):
    """The encoder's output for the decoder.

    Attributes:
        states: `[B, S, d_model]`.
        mask: bool `[B, S]`, True for real tokens.
        cache: result of `project_memory`, such as the keys and values of each decoder layer, or
            None.
    """

    states: Any
    mask: Any
    cache: Any = None


class Decoded(NamedTuple):
    """The result of `EncoderDecoder.decode`.

    Attributes:
        features: `[B, T, d_model]`, from which `logits` computes logits.
        attention: a dict of weights for each layer: `cross` `[B, H, T, S]`, and for a Transformer
            `self` `[B, H, T, T or L]`, which is None if it was not computed. The list is None
            for a model that does not return its attention.
    """

    features: Any
    attention: list[dict[str, Any]] | None = None


class EncoderDecoder(keras.Model):
    """The base class of models that map source ids and target ids to logits.

    A subclass implements `encode`, `project_memory`, `init_cache`, `decode`, `logits`,
    `output_weights` and `_make_embedding`, sets the attributes below, and is decorated with
    `register_architecture`. `decode` runs the decoder: over whole targets in training and scoring,
    and over one position with a `DecodeState` in search.

    Attributes:
        run_config: class of the configuration of its runs, which has the architecture's name.
        config: sizes and variants of the model.
        source_embedding, target_embedding: layers with the weights `embeddings`.
        max_positions: the number of positions the model knows; None if it has no limit.
        can_return_attention: True if `decode` can return all weights at no extra cost.

    Call arguments:
        inputs: `{"source_ids": int [B, S], "target_ids": int [B, T]}`, padded
            with `config.pad_id`; targets begin with the start id.
        training: whether dropout is on.

    Returns:
        Logits `[B, T, target_vocab_size]` in the compute dtype.
    """

    run_config: ClassVar[type[RunConfig]]
    config: EncoderDecoderConfig
    source_embedding: Any
    target_embedding: Any
    max_positions: int | None = None
    can_return_attention: bool = False

    def encode(self, source_ids: Any, training: bool | None = None) -> Memory:
        """Encodes int `[B, S]`, padded with `config.pad_id`."""
        raise NotImplementedError

    def project_memory(self, memory: Memory) -> Memory:
        """Adds everything that the decoder computes only from the memory, once for all steps."""
        raise NotImplementedError

    def init_cache(self, batch_size: Any, length: Any, beams: int = 1) -> Any:
        """Returns the empty layers of a `DecodeState`.

        Args:
            batch_size: number of sentences.
            length: number of positions; 0 for a cache that grows.
            beams: alternatives (hypotheses) of a sentence at each position.
        """
        raise NotImplementedError

    def reorder_cache(self, cache: Any, parents: Any) -> Any:
        """Returns the layers of a state for hypotheses that continue `parents`, int `[B, beams]`.

        By default they stay: they have an entry for each position and hypothesis, and a mask says
        which of them a hypothesis may see. A model with one entry for each hypothesis,
        `[B, beams, ...]`, reorders them.
        """
        del parents
        return cache

    def decode(
        self,
        target_ids: Any,
        memory: Memory,
        state: DecodeState | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Decoded:
        """Decodes a whole target, or one position of it with a state.

        Args:
            target_ids: int `[B, T]`. With a state, T alternatives (beams) at its position.
            memory: from `encode` or `project_memory`.
            state: the position, and the layers from `init_cache` or from the step before. This
                step is written to it.
            return_attention_scores: compute the weights of all layers, even where restricted
                attention would avoid it.
            training: whether dropout is on.
        """
        raise NotImplementedError

    def logits(self, features: Any) -> Any:
        """Maps `[..., d_model]` to `[..., target_vocab_size]` (paper, section 3.4)."""
        raise NotImplementedError

    def output_weights(self) -> tuple[keras.Variable, keras.Variable | None]:
        """Returns the weights of `logits`: kernel `[V, d_model]` (untied: `[d_model, V]`), bias."""
        raise NotImplementedError

    def output_rows(self, ids: Any) -> tuple[Any, Any]:
        """Returns the rows of the output matrix, and the biases, of target tokens int32 `[C]`.

        They are `[C, d_model]`, and `[C]` or None, both in the compute dtype.
        """
        kernel, bias = self.output_weights()
        if self.config.tie_embeddings == "none":
            rows = ops.transpose(ops.take(kernel, ids, axis=1))
        else:
            rows = ops.take(kernel, ids, axis=0)
        biases = None if bias is None else ops.cast(ops.take(bias, ids), self.compute_dtype)
        return ops.cast(rows, self.compute_dtype), biases

    def _make_embedding(self, name: str, vocab_size: int) -> Any:
        """Returns a layer that maps int `[...]` to `[..., d_model]`, with weights `embeddings`."""
        raise NotImplementedError

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> Any:
        return self.logits(self.features(inputs, training=training))

    def features(self, inputs: Any, training: bool | None = None) -> Any:
        """Returns the decoder's output `[B, T, d_model]`, from which `logits` computes logits."""
        is_dict = isinstance(inputs, Mapping)
        if not is_dict or not {"source_ids", "target_ids"} <= inputs.keys():
            keys = f"the keys {', '.join(inputs)}" if is_dict else "no keys"
            raise InputError(
                f"The inputs are a {type(inputs).__name__} with {keys}. Give a dict with "
                "source_ids [B, S] and target_ids [B, T]."
            )
        memory = self.encode(inputs["source_ids"], training=training)
        return self.decode(inputs["target_ids"], memory, training=training).features

    def compute_output_shape(self, input_shape: Mapping[str, Any]) -> Any:
        return (*input_shape["target_ids"], self.config.target_vocab_size)

    def make_train_function(self, force: bool = False) -> Any:
        # Keras would compile the sum over the replicas, which XLA does not support.
        strategy = getattr(self, "distribute_strategy", None)
        if strategy is not None and strategy.num_replicas_in_sync > 1 and self.jit_compile:  # type: ignore[has-type]
            warnings.warn(
                "fit runs without XLA, because Keras supports XLA on one replica only. "
                "keras_transformer.train compiles each replica.",
                stacklevel=3,
            )
            self.jit_compile = False
        return super().make_train_function(force)

    def _add_embeddings(self) -> None:
        """Adds the embeddings of both sides: one shared layer if they are tied."""
        c = self.config
        if c.tie_embeddings == "all":
            self.embedding = self._make_embedding("embedding", c.target_vocab_size)
            self.source_embedding = self.target_embedding = self.embedding
        else:
            self.source_embedding = self._make_embedding("source_embedding", c.source_vocab_size)
            self.target_embedding = self._make_embedding("target_embedding", c.target_vocab_size)

    def weights_by_path(self) -> dict[str, keras.Variable]:
        """Returns every weight by its path in the model, as in `encoder/layer_0/…/qkv_kernel`."""
        # Inside another model, all paths have a longer common prefix.
        first = self.source_embedding
        prefix = len(first.embeddings.path) - len(f"{first.name}/embeddings")
        return {weight.path[prefix:]: weight for weight in self.weights}

    def assign_weights(self, arrays: Mapping[str, Any]) -> None:
        """Sets all weights from arrays with the keys of `weights_by_path`."""
        variables = self.weights_by_path()
        for path in sorted(variables.keys() ^ arrays.keys()):
            only = "the model has" if path in variables else "the weights have"
            raise InputError(f"The weights belong to another model: only {only} {path}.")
        for path, variable in variables.items():
            shape, needed = tuple(arrays[path].shape), tuple(variable.shape)
            if shape != needed:
                raise InputError(
                    f"The weights belong to another model: {path} has the shape {shape}, but this "
                    f"model needs {needed}."
                )
            variable.assign(arrays[path])

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "config": self.config.as_dict(),
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
        }


_Model = TypeVar("_Model", bound=type[EncoderDecoder])
_ARCHITECTURES: dict[str, type[EncoderDecoder]] = {}


def register_architecture(model_class: _Model) -> _Model:
    """Registers a model class under the architecture name of its `run_config`, as a decorator."""
    _ARCHITECTURES[model_class.run_config.architecture] = model_class
    return model_class


def get_architecture(name: str) -> type[EncoderDecoder]:
    """Returns the model class that is registered under a name."""
    if name not in _ARCHITECTURES:
        raise InputError(
            f"The architecture {name!r} is not registered, only {', '.join(_ARCHITECTURES)}. "
            "Import the module that defines it."
        )
    return _ARCHITECTURES[name]
