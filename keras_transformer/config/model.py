"""The sizes and variants of a model, and its special token ids."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple, Self

from keras_transformer.config.schema import (
    Count,
    PositiveFloat,
    PositiveInt,
    Rate,
    Settings,
    setting,
)
from keras_transformer.errors import require


@dataclasses.dataclass(frozen=True)
class TokenIds(Settings):
    """The ids of the special tokens. Data and runs take them from the vocabulary."""

    section = "model"

    pad_id: int = setting(0, "id of the padding")
    unknown_id: int = setting(1, "id of the unknown token")
    start_id: int = setting(2, "id of the start token, the first input of the decoder")
    end_id: int = setting(3, "id of the end token")


@dataclasses.dataclass(frozen=True)
class OtherToolkits(Settings):
    """Variants that are not in the paper. They only express models of other toolkits."""

    section = "model"

    sinusoid_layout: Literal["interleaved", "halves"] = setting(
        "interleaved", "order of sines and cosines; halves: all sines first"
    )
    sinusoid_frequencies: Literal["paper", "tensor2tensor"] = setting(
        "paper", "10000^(-2i/d), or 10000^(-i/(d/2 - 1)) as in tensor2tensor, Marian and fairseq"
    )
    first_position: Count = setting(0, "number of the first sinusoid: OpenNMT-tf 1, fairseq 2")
    mask_source_end: bool = setting(False, "never attend to the source's end token: OpenNMT-tf")
    forced_language: bool = setting(
        False, "the first source token is not read, but begins the target: M2M-100, NLLB, mBART"
    )
    embedding_norm: bool = setting(False, "normalize the sum of embeddings and positions")
    scale_embeddings: bool = setting(True, "multiply embeddings by the square root of d_model")
    decoder_d_ff: PositiveInt | None = setting(None, "d_ff of the decoder, if it differs")
    decoder_num_heads: PositiveInt | None = setting(
        None, "heads of the decoder, if they differ; their total width is the same"
    )
    attention_bias: bool = setting(False, "biases in the projections of the attention")
    output_bias: bool = setting(False, "a bias for the logits")
    final_norm: bool | None = setting(None, "a layer norm after each stack; none: only if pre-norm")
    layer_norm_epsilon: PositiveFloat = setting(1e-6, "epsilon of all layer norms")


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConfig(Settings):
    """The fields that every architecture has: batches, the loss and the search use them."""

    section = "model"

    source_vocab_size: PositiveInt = setting(37_000, "number of source tokens")
    target_vocab_size: PositiveInt = setting(37_000, "number of target tokens")
    d_model: PositiveInt = setting(512, "width of the embeddings")
    tie_embeddings: Literal["all", "target", "none"] = setting(
        "all", "embeddings that are one matrix with the output layer (section 3.4)"
    )
    guided_alignment: Literal["none", "read", "next"] = setting(
        "none",
        "alignments come from the head that auxiliary_loss_weight trains; it aligns the token that "
        "a step reads, or the next one, as in parsers",
    )
    token_ids: TokenIds = TokenIds()

    def __post_init__(self) -> None:
        given: Any = self.guided_alignment
        if isinstance(given, bool):  # older runs say whether a head was taught the next token
            object.__setattr__(self, "guided_alignment", "next" if given else "none")
        super().__post_init__()
        vocabulary = min(self.source_vocab_size, self.target_vocab_size)
        ids = [*self.token_ids.as_dict().values()]
        require(
            all(0 <= i < vocabulary for i in ids) and len(set(ids)) == len(ids),
            f"model.pad_id, unknown_id, start_id and end_id are {ids}. Use four different ids "
            f"below {vocabulary}.",
        )
        require(
            self.tie_embeddings != "all" or self.source_vocab_size == self.target_vocab_size,
            f"model.tie_embeddings is all, but the vocabularies have {self.source_vocab_size} and "
            f"{self.target_vocab_size} tokens. Tying all embeddings needs one joint vocabulary; "
            "otherwise set model.tie_embeddings to target.",
        )

    @property
    def pad_id(self) -> int:
        """The id of the padding."""
        return self.token_ids.pad_id

    def num_parameters(self) -> int:
        """Returns the number of trainable weights."""
        raise NotImplementedError

    def _embedding_parameters(self) -> int:
        """Returns the number of weights of the embeddings and the pre-softmax product."""
        tables = {
            "all": self.target_vocab_size,
            "target": self.source_vocab_size + self.target_vocab_size,
            "none": self.source_vocab_size + 2 * self.target_vocab_size,
        }[self.tie_embeddings]
        return tables * self.d_model


class StackSizes(NamedTuple):
    """The sizes of the encoder or of the decoder."""

    num_layers: int
    num_heads: int
    key_dim: int
    value_dim: int
    d_ff: int


@dataclasses.dataclass(frozen=True)
class ModelConfig(EncoderDecoderConfig):
    """Sizes and variants of the Transformer (paper, section 3). The defaults are the paper's base.

    `docs/settings.md` describes all fields.
    """

    num_encoder_layers: PositiveInt = setting(6, "layers of the encoder")
    num_decoder_layers: PositiveInt = setting(6, "layers of the decoder")
    d_ff: PositiveInt = setting(2048, "width of the feed-forward networks")
    num_heads: PositiveInt = setting(8, "attention heads")
    key_dim: PositiveInt | None = setting(None, "d_k of the paper; none: d_model / num_heads")
    value_dim: PositiveInt | None = setting(None, "d_v of the paper; none: d_model / num_heads")
    positions: Literal["sinusoidal", "learned"] = setting("sinusoidal", "position encoding")
    max_positions: PositiveInt = setting(1024, "number of learned positions")
    attention_window: PositiveInt | None = setting(
        None, "r of restricted self-attention (section 4): tokens attend to the r around them"
    )
    decoder_self_attention: Literal["attention", "ssru"] = setting(
        "attention", "ssru: a recurrent unit, whose decode steps have a constant cost"
    )
    norm_position: Literal["post", "pre"] = setting("post", "layer norms after or before sublayers")
    activation: Literal["relu", "gelu", "silu"] = setting("relu", "between the linear maps")
    embedding_dropout: Rate = setting(0.1, "dropout of embeddings plus positions (section 5.4)")
    residual_dropout: Rate = setting(0.1, "dropout of each sublayer's output (section 5.4)")
    attention_dropout: Rate = setting(0.0, "dropout of attention weights")
    activation_dropout: Rate = setting(0.0, "dropout inside the feed-forward networks")
    other_toolkits: OtherToolkits = OtherToolkits()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key_dim is None or self.value_dim is None:
            require(
                self.d_model % self.num_heads == 0,
                f"model.d_model is {self.d_model}, which is not a multiple of model.num_heads "
                f"({self.num_heads}). Set model.key_dim and model.value_dim.",
            )
        other = self.other_toolkits
        for name in ("key_dim", "value_dim"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, self.d_model // self.num_heads)
            width, heads = self.num_heads * getattr(self, name), other.decoder_num_heads or 1
            require(
                width % heads == 0,
                f"model.decoder_num_heads is {heads}, but model.num_heads * model.{name} is "
                f"{width}. Choose a divisor of it.",
            )
        require(
            self.positions == "learned" or self.d_model % 2 == 0,
            f"model.d_model is {self.d_model}, but sinusoidal positions need an even number.",
        )

    def replace(self, **changes: Any) -> Self:
        # key_dim and value_dim follow a change of d_model or num_heads if they had the default.
        if changes.keys() & {"d_model", "num_heads"}:
            default = self.d_model // self.num_heads
            for name in ("key_dim", "value_dim"):
                if getattr(self, name) == default:
                    changes.setdefault(name, None)
        return super().replace(**changes)

    @property
    def encoder_sizes(self) -> StackSizes:
        """The sizes of the encoder."""
        assert self.key_dim is not None and self.value_dim is not None
        return StackSizes(
            self.num_encoder_layers, self.num_heads, self.key_dim, self.value_dim, self.d_ff
        )

    @property
    def decoder_sizes(self) -> StackSizes:
        """The sizes of the decoder."""
        _, heads, key_dim, value_dim, d_ff = self.encoder_sizes
        decoder_heads = self.other_toolkits.decoder_num_heads or heads
        return StackSizes(
            self.num_decoder_layers,
            decoder_heads,
            heads * key_dim // decoder_heads,
            heads * value_dim // decoder_heads,
            self.other_toolkits.decoder_d_ff or d_ff,
        )

    @property
    def has_final_norm(self) -> bool:
        """True if a layer norm follows each stack."""
        chosen = self.other_toolkits.final_norm
        return self.norm_position == "pre" if chosen is None else chosen

    def num_parameters(self) -> int:
        d, norm, other = self.d_model, 2 * self.d_model, self.other_toolkits

        def layer(sizes: StackSizes, attentions: int, ssrus: int) -> int:
            _, h, dk, dv, d_ff = sizes
            attention = h * (d * (2 * dk + dv) + dv * d)
            biases = h * (2 * dk + dv) + d if other.attention_bias else 0
            ssru = 2 * d * d + d
            feed_forward = 2 * d * d_ff + d_ff + d
            sublayers = attentions * (attention + biases) + ssrus * ssru + feed_forward
            return sublayers + (attentions + ssrus + 1) * norm

        ssrus = 1 if self.decoder_self_attention == "ssru" else 0

        return (
            self._embedding_parameters()
            + (2 * self.max_positions * d if self.positions == "learned" else 0)
            + self.num_encoder_layers * layer(self.encoder_sizes, 1, 0)
            + self.num_decoder_layers * layer(self.decoder_sizes, 2 - ssrus, ssrus)
            + 2 * norm * (other.embedding_norm + self.has_final_norm)
            + (self.target_vocab_size if other.output_bias else 0)
        )
