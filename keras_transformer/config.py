"""The configuration of a model, its training and its decoding.

`Config` joins three frozen dataclasses: `ModelConfig`, `TrainingConfig` and `DecodingConfig`. Each
setting is declared once, by `setting`: flags, checks, the table in `docs/settings.md` and the
settings that a resumed run may change follow from it. `presets.py` has named configurations. Other
architectures subclass `EncoderDecoderConfig` and `RunConfig`. This module does not import
TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from keras_transformer.errors import InputError, check_names
from keras_transformer.schema import Limits, Settings, setting

# With a larger α the longest outputs always win. Up to 7,000 tokens, length^10 fits into a float32.
MAX_LENGTH_PENALTY = 10.0
# Search settings and positions become int32 tensors. Search settings are also multiplied with each
# other.
_MOST = 2**20

PositiveInt = Annotated[int, Limits(above=0)]
PositiveFloat = Annotated[float, Limits(above=0)]
NonNegativeInt = Annotated[int, Limits(least=0)]
NonNegativeFloat = Annotated[float, Limits(least=0)]
Rate = Annotated[float, Limits(least=0, below=1)]
Size = Annotated[int, Limits(least=1, most=_MOST)]
Count = Annotated[int, Limits(least=0, most=_MOST)]
Weight = Annotated[float, Limits(least=0, most=_MOST)]

Tying = Literal["all", "target", "none"]
LengthPenaltyFormula = Literal["gnmt", "power"]
Schedule = Literal["noam", "inverse_sqrt", "linear", "cosine", "constant"]
# These depend on max_steps, so a run that resumes may not change it.
SCHEDULES_OVER_MAX_STEPS = ("linear", "cosine")

# Fields of config.json that this version lacks, and their values that change nothing.
_REMOVED_FIELDS: dict[str, tuple[Any, ...]] = {
    "training.r_drop": (0.0,),
    "training.optimizer": ("adam", "adamw"),
    "training.bleu_tokenize": (None,),
    "training.max_skipped_steps": (20,),
    "decoding.max_source_bytes": (16_384,),
}
# Fields that became a value of decoding.unknown. If both are true, the last one counts.
_OLD_UNKNOWN = {"decoding.allow_unknown": "allow", "decoding.replace_unknown": "replace"}


def require(condition: bool, message: str) -> None:
    """Raises an `InputError` with `message` unless `condition`."""
    if not condition:
        raise InputError(message)


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
    tie_embeddings: Tying = setting(
        "all", "embeddings that are one matrix with the output layer (section 3.4)"
    )
    token_ids: TokenIds = TokenIds()

    def __post_init__(self) -> None:
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

        def layer(sizes: StackSizes, attentions: int) -> int:
            _, h, dk, dv, d_ff = sizes
            attention = h * (d * (2 * dk + dv) + dv * d)
            biases = h * (2 * dk + dv) + d if other.attention_bias else 0
            feed_forward = 2 * d * d_ff + d_ff + d
            return attentions * (attention + biases + norm) + feed_forward + norm

        return (
            self._embedding_parameters()
            + (2 * self.max_positions * d if self.positions == "learned" else 0)
            + self.num_encoder_layers * layer(self.encoder_sizes, attentions=1)
            + self.num_decoder_layers * layer(self.decoder_sizes, attentions=2)
            + 2 * norm * (other.embedding_norm + self.has_final_norm)
            + (self.target_vocab_size if other.output_bias else 0)
        )


@dataclasses.dataclass(frozen=True)
class TrainingConfig(Settings):
    """Settings of training (paper, section 5). The defaults are the paper's for the base model.

    `docs/settings.md` describes all fields.
    """

    section = "training"

    max_steps: PositiveInt = setting(100_000, "total number of steps", may_change=True, flag=True)
    batch_tokens: PositiveInt = setting(
        25_000, "target tokens of a global batch, including padding", flag=True
    )
    batch_shapes: PositiveInt = setting(
        16, "largest number of batch shapes; XLA compiles each, fewer need more padding"
    )
    subword_alpha: PositiveFloat | None = setting(
        None, "new segmentations in each epoch, as in 0.2 (Kudo, 2018); none: the best", flag=True
    )
    num_microbatches: PositiveInt = setting(
        1, "split batches into parts to save memory", may_change=True, flag=True
    )
    label_smoothing: Rate = setting(0.1, "share of the probability that goes to all other tokens")
    auxiliary_loss_weight: NonNegativeFloat = setting(
        0.0, "factor of a task's auxiliary loss, such as guided alignment"
    )
    schedule: Schedule = setting("noam", "learning rate by step", flag=True)
    learning_rate: PositiveFloat = setting(
        1.0, "factor of the schedule noam, peak of the others", flag=True
    )
    warmup_steps: NonNegativeInt = setting(
        4_000, "steps until the peak of the learning rate", flag=True
    )
    beta_1: Rate = setting(0.9, "decay of Adam's mean of gradients")
    beta_2: Rate = setting(0.98, "decay of Adam's mean of squared gradients")
    epsilon: PositiveFloat = setting(1e-9, "Adam's smallest denominator")
    weight_decay: NonNegativeFloat = setting(
        0.0, "AdamW's weight decay, except for biases and layer norms; 0: Adam", flag=True
    )
    clip_norm: NonNegativeFloat = setting(
        0.0, "maximum global norm of the gradients; 0: no limit", flag=True
    )
    freeze: str = setting("", "weights not to train, as in 'embedding/*,encoder/*'", flag=True)
    ema_decay: Rate = setting(
        0.0, "decay of the moving average of weights, as in 0.999; 0: none", flag=True
    )
    mixed_precision: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "precision of products; auto: the fastest", flag=True
    )
    jit_compile: Literal["auto", "true", "false"] = setting(
        "auto", "compile the step with XLA", may_change=True, flag=True
    )
    deterministic: bool = setting(
        False, "bit-identical results; slower on a GPU", may_change=True, flag=True
    )
    seed: Annotated[int, Limits(least=0, below=2**31)] = setting(
        1, "seed of all random numbers", flag=True
    )
    checkpoint_steps: PositiveInt = setting(
        1_000, "steps between checkpoints, which are validated", may_change=True, flag=True
    )
    keep_checkpoints: PositiveInt = setting(
        5, "number of last checkpoints to keep", may_change=True, flag=True
    )
    keep_best: NonNegativeInt = setting(
        1, "number of best checkpoints to keep", may_change=True, flag=True
    )
    best_metric: Literal["loss", "bleu"] = setting(
        "loss", "validation metric of the best checkpoints", may_change=True, flag=True
    )
    early_stopping: NonNegativeInt = setting(
        0, "stop after N validations without improvement; 0: never", may_change=True, flag=True
    )
    bleu_steps: NonNegativeInt = setting(
        0, "steps between computations of validation BLEU; 0: never", may_change=True, flag=True
    )
    bleu_sentences: NonNegativeInt = setting(
        0, "validation sentences for BLEU; 0: all", may_change=True, flag=True
    )
    log_steps: PositiveInt = setting(50, "steps between lines of the log", may_change=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.schedule not in ("noam", "inverse_sqrt") or self.warmup_steps > 0,
            f"training.warmup_steps is 0, but the schedule {self.schedule} needs at least 1.",
        )
        require(
            self.best_metric == "loss" or self.bleu_steps > 0,
            "training.best_metric is bleu, but training.bleu_steps is 0. Set training.bleu_steps "
            "to the number of steps between two BLEU scores.",
        )


@dataclasses.dataclass(frozen=True)
class DecodingConfig(Settings):
    """How translations are searched for (paper, section 6.1).

    Lengths are numbers of tokens, including the end token. `docs/settings.md` describes all fields.
    """

    section = "decoding"

    beam_size: Size = setting(4, "number of open hypotheses; 1: greedy search", flag=True)
    length_penalty: Annotated[float, Limits(least=0, most=MAX_LENGTH_PENALTY)] = setting(
        0.6, "exponent alpha of the length penalty", flag=True
    )
    length_penalty_formula: LengthPenaltyFormula = setting(
        "gnmt", "scores are log-probabilities / ((5 + length) / 6)^alpha, or / length^alpha"
    )
    coverage_penalty: Weight = setting(0.0, "beta of GNMT (Wu et al., 2016, arXiv:1609.08144)")
    n_best: Size = setting(1, "translations of each sentence, best first", flag=True)
    early_stopping: bool = setting(
        False, "stop at beam_size complete outputs, not when no open hypothesis can be better"
    )
    min_length: Count = setting(0, "minimum length of the output")
    max_length: Size | None = setting(None, "maximum length of the output")
    max_extra_tokens: Size = setting(50, "maximum length of the output beyond that of its input")
    max_source_tokens: Size = setting(
        1024, "longer inputs are truncated, as are inputs with 16 times as many bytes"
    )
    repetition_penalty: Annotated[float, Limits(least=1, most=_MOST)] = setting(
        1.0, "factor of the log-probabilities of repeated tokens (Keskar et al., arXiv:1909.05858)"
    )
    no_repeat_ngram: Count = setting(0, "size of n-grams that no output repeats; 0: no limit")
    banned: str = setting("", "phrases that no output contains, as tokens, as in 'um|oh dear'")
    unknown: Literal["forbid", "allow", "replace"] = setting(
        "forbid", "unknown tokens in outputs; replace: by the source token with most attention"
    )
    diversity_penalty: Weight = setting(
        0.0, "gamma of Li et al. (arXiv:1611.08562): larger, the n best differ more"
    )
    sample: bool = setting(False, "sample translations instead of searching", flag=True)
    temperature: Weight = setting(1.0, "temperature of sampling; 0: greedy search")
    top_k: Count = setting(0, "sample from the k most likely tokens; 0: all")
    top_p: Annotated[float, Limits(above=0, most=1)] = setting(
        1.0, "sample from the fewest tokens with this total probability"
    )
    seed: int = setting(0, "seed of sampling")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.max_length is None or self.max_length >= self.min_length,
            f"decoding.max_length is {self.max_length}, which is less than decoding.min_length "
            f"({self.min_length}).",
        )
        require(
            self.sample or self.n_best <= self.beam_size,
            f"decoding.n_best is {self.n_best}, which is more than decoding.beam_size "
            f"({self.beam_size}).",
        )
        require(
            self.beam_size > 1 or not self.diversity_penalty,
            f"decoding.diversity_penalty is {self.diversity_penalty}, but decoding.beam_size is 1. "
            "Only a larger beam can be diverse.",
        )
        only_search = {"coverage_penalty", "diversity_penalty", "early_stopping"}
        without_effect = only_search if self.sample else {"temperature", "top_k", "top_p"}
        for name, field in self.declarations().items():
            require(
                name not in without_effect or getattr(self, name) == field.default,
                f"decoding.{name} is {getattr(self, name)}, but decoding.sample is "
                f"{str(self.sample).lower()}. Change one of the two: this option applies only to "
                f"{'beam search' if self.sample else 'sampling'}.",
            )

    @property
    def max_source_bytes(self) -> int:
        """Longer inputs are truncated before they are tokenized, because that takes long."""
        return 16 * self.max_source_tokens


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The configuration of a run. Its settings are named like `training.max_steps`.

    Attributes:
        architecture: name of the model architecture that `model` configures.
    """

    architecture: ClassVar[str]

    model: EncoderDecoderConfig = EncoderDecoderConfig()
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()

    @classmethod
    def declarations(cls) -> dict[str, dataclasses.Field[Any]]:
        """Returns the fields of all settings by name."""
        return {
            f"{section}.{name}": field
            for section, settings in vars(cls()).items()
            for name, field in settings.declarations().items()
        }

    def settings(self) -> dict[str, Any]:
        """Returns the values of all settings by name."""
        return {
            f"{section}.{name}": value
            for section, settings in vars(self).items()
            for name, value in settings.as_dict().items()
        }

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with changed settings, named like `model__d_model`."""
        return self.updated({key.replace("__", "."): value for key, value in changes.items()})

    def updated(self, settings: Mapping[str, Any]) -> Self:
        """Returns a copy with changed settings, such as `{"training.label_smoothing": 0.2}`."""
        check_names(settings, [*self.declarations()], "a setting")
        changes: dict[str, dict[str, Any]] = {}
        for key, value in settings.items():
            section, _, name = key.partition(".")
            changes.setdefault(section, {})[name] = value
        sections = {name: getattr(self, name).replace(**own) for name, own in changes.items()}
        return dataclasses.replace(self, **sections)

    def forbidden_change(self, new: RunConfig) -> str | None:
        """Returns the first setting, with both values, that a resumed run may not change."""
        before, after = self.settings(), new.settings()
        for name, field in self.declarations().items():
            may_change = field.metadata["may_change"] or name.startswith("decoding.")
            if name == "training.max_steps" and self.training.schedule in SCHEDULES_OVER_MAX_STEPS:
                may_change = False
            if before[name] != after[name] and not may_change:
                return f"{name} {before[name]}, not {after[name]}"
        return None

    def as_dict(self) -> dict[str, Any]:
        """Returns the configuration as nested dictionaries, with the name of the architecture."""
        sections = {
            name: getattr(self, name).as_dict() for name in ("model", "training", "decoding")
        }
        return {"architecture": self.architecture, **sections}

    def to_json(self) -> str:
        """Returns the JSON that `from_json` reads."""
        return json.dumps(self.as_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, label: str = "the configuration") -> Self:
        """Reads a configuration that `to_json` wrote, with the file as `label` in errors.

        `RunConfig.from_json` reads all architectures; a subclass reads only its own.
        """
        sections = dict(json.loads(text))
        # Runs that do not name an architecture are older than the second one.
        architecture = sections.pop("architecture", "transformer")
        settings = {
            f"{section}.{name}": value
            for section, values in sections.items()
            for name, value in dict(values).items()
        }
        kinds = {kind.architecture: kind for kind in cls.__subclasses__() or [cls]}
        if (kind := kinds.get(str(architecture))) is None:
            raise InputError(
                f"{label} has the architecture {architecture!r}, but this program reads only "
                f"{', '.join(kinds)}."
            )
        for name, meaning in _OLD_UNKNOWN.items():
            if settings.pop(name, False):
                settings["decoding.unknown"] = meaning
        for name, neutral in _REMOVED_FIELDS.items():
            value = settings.pop(name, neutral[0])
            require(
                value in neutral,
                f"{label} sets {name} to {value!r}, but this version always works as with "
                f"{neutral[0]!r}. To accept this, remove the field from the file. Otherwise, use "
                "the version that wrote it.",
            )
        try:
            return kind().updated(settings)
        except InputError as error:
            raise InputError(f"{label}: {error}") from None


@dataclasses.dataclass(frozen=True)
class Config(RunConfig):
    """The configuration of a run of the Transformer.

    Example:
    >>> Config().replace(model__d_model=256).model.key_dim
    32
    """

    architecture: ClassVar[str] = "transformer"

    model: ModelConfig = ModelConfig()
