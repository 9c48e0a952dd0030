"""The protocol of encoder-decoder models, and their architectures by name.

Training, search, scoring and run directories use only the methods of `EncoderDecoder`.
`Transformer` implements them; other architectures subclass `EncoderDecoder`, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Unpack

import keras

import keras_transformer as kt
from keras_transformer.config import EncoderDecoderConfig, RunConfig
from keras_transformer.errors import InputError
from keras_transformer.layers.base import num_replicas
from keras_transformer.layers.state import DecodeState

if TYPE_CHECKING:
    from keras_transformer.config.options import SearchOptions


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


def guided_head(attention: Sequence[Mapping[str, Any]]) -> Any:
    """Returns the attention of the head that guided alignment trains, `[B, T, S]`.

    It is the first one of the second-to-last layer (Garg et al., 2019).
    """
    return attention[max(0, len(attention) - 2)]["cross"][:, 0]


_ARCHITECTURES: dict[str, type[EncoderDecoder]] = {}


class EncoderDecoder(keras.Model):
    """The base class of models that map source ids and target ids to logits.

    A subclass implements `encode`, `project_memory`, `init_cache`, `decode`, `logits`,
    `output_weights` and `_make_embedding`, and sets the attributes below. A search with a shortlist
    also needs `output_rows`. `decode` runs the decoder: over whole targets in training and scoring,
    and over one position with a `DecodeState` in search.

    Attributes:
        run_config: class of the configuration of its runs. It has the name of the architecture,
            by which `get_architecture` finds the model.
        config: sizes and variants of the model.
        source_embedding, target_embedding: layers with the weights `embeddings`.
        max_positions: the number of positions the model knows; None if it has no limit.
        can_return_attention: True if `decode` can return all weights at no extra cost.
        cache_per_hypothesis: False if a state has an entry for each position and hypothesis, and
            a mask says which of them a hypothesis may see. True if it has one entry for each
            hypothesis, `[B, beams, ...]`, which the search reorders.

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
    cache_per_hypothesis: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "run_config" in vars(cls):
            _ARCHITECTURES[cls.run_config.architecture] = cls

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # Keras would compile the sum over the replicas, which XLA does not support.
        self.supports_jit = num_replicas() == 1

    def encode(self, source_ids: Any, training: bool | None = None) -> Memory:
        """Encodes int `[B, S]`, padded with `config.pad_id`.

        Keras records only the weights of calls of layers. So a functional model needs
        `Transformer.encoder_model` instead.
        """
        raise NotImplementedError

    def project_memory(self, memory: Memory) -> Memory:
        """Adds everything that the decoder computes only from the memory, once for all steps."""
        raise NotImplementedError

    def init_cache(self, batch_size: Any, length: Any, queries: int = 1) -> Any:
        """Returns the empty layers of a `DecodeState`.

        Args:
            batch_size: number of sentences.
            length: number of positions; 0 for a cache that grows.
            queries: alternatives (hypotheses) of a sentence at each position.
        """
        raise NotImplementedError

    def decode(
        self,
        target_ids: Any,
        memory: Memory,
        state: DecodeState | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> tuple[Any, list[dict[str, Any]] | None]:
        """Decodes a whole target, or one position of it with a state.

        Args:
            target_ids: int `[B, T]`. With a state, T alternatives (beams) at its position.
            memory: from `encode` or `project_memory`.
            state: the position, and the layers from `init_cache` or from the step before. This
                step is written to it.
            return_attention_scores: compute the weights of all layers, even where restricted
                attention would avoid it.
            training: whether dropout is on.

        Returns:
            Features `[B, T, d_model]`, from which `logits` computes logits. For each layer a dict
            of attention weights: `cross` `[B, H, T, S]`, and for a Transformer `self`
            `[B, H, T, T or L]`, which is None if it was not computed. The list is None for a model
            that does not return its attention.
        """
        raise NotImplementedError

    def logits(self, features: Any) -> Any:
        """Maps `[..., d_model]` to `[..., target_vocab_size]` (paper, section 3.4)."""
        raise NotImplementedError

    def output_weights(self) -> tuple[keras.Variable, keras.Variable | None]:
        """Returns the weights of `logits`: kernel `[V, d_model]` (untied: `[d_model, V]`), bias."""
        raise NotImplementedError

    def alignment(self, attention: Sequence[Mapping[str, Any]]) -> Any:
        """Returns the attention that alignments come from, `[B, T, S]`, of the weights of layers.

        It is that of the guided head, or the mean over the heads of the last layer.
        """
        if self.config.guided_alignment != "none":
            return guided_head(attention)
        return keras.ops.mean(attention[-1]["cross"], axis=1)

    def output_rows(self, ids: Any) -> tuple[Any, Any]:
        """Returns the rows of the output matrix, and the biases, of target tokens int32 `[C]`.

        They are `[C, d_model]`, and `[C]` or None, both in the compute dtype.
        """
        raise NotImplementedError

    def _make_embedding(self, name: str, vocab_size: int) -> Any:
        """Returns a layer that maps int `[...]` to `[..., d_model]`, with weights `embeddings`."""
        raise NotImplementedError

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> Any:
        memory = self.encode(inputs["source_ids"], training=training)
        features, _ = self.decode(inputs["target_ids"], memory, training=training)
        return self.logits(features)

    def generate(
        self, source_ids: Any, **decoding: Unpack[SearchOptions]
    ) -> kt.decoding.SearchResult:
        """Searches for the best outputs of sources, int `[B, S]`, as `kt.generate` describes."""
        # It is looked up here, because the search needs TensorFlow, and a model does not.
        return kt.generate(self, source_ids, **decoding)

    def compute_output_shape(self, input_shape: Mapping[str, Any]) -> Any:
        return (*input_shape["target_ids"], self.config.target_vocab_size)

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

    def quantize(self, mode: Any = None, config: Any = None, **kwargs: Any) -> None:
        raise InputError(
            f"Keras cannot quantize a {type(self).__name__}. Load its run in int8, with "
            "kt.load(run, precision='int8'), or export it with weights='int8'."
        )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "config": self.config.as_dict(),
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
        }


def get_architecture(name: str) -> type[EncoderDecoder]:
    """Returns the model class of an architecture."""
    if name not in _ARCHITECTURES:
        raise InputError(
            f"The architecture {name!r} is unknown. There are {', '.join(_ARCHITECTURES)}. "
            "Import the module that defines it."
        )
    return _ARCHITECTURES[name]
