"""The configuration of a model, its training and its decoding.

`Config` joins three frozen dataclasses: `ModelConfig`, `TrainingConfig` and `DecodingConfig`.
`presets.py` has named configurations. Other architectures subclass `EncoderDecoderConfig` and
`RunConfig`. This module does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from keras_transformer.errors import InputError
from keras_transformer.schema import Bounds, check_scalar

# With a larger α the longest outputs always win. Up to 7,000 tokens, length^10 fits into a float32.
MAX_LENGTH_PENALTY = 10.0

Tying = Literal["all", "target", "none"]
LengthPenaltyFormula = Literal["gnmt", "power"]
Schedule = Literal["noam", "inverse_sqrt", "linear", "cosine", "constant"]
# These depend on max_steps, so a run that resumes may not change it.
SCHEDULES_OVER_MAX_STEPS = ("linear", "cosine")

PositiveInt = Annotated[int, Bounds(above=0)]
PositiveFloat = Annotated[float, Bounds(above=0)]
NonNegativeInt = Annotated[int, Bounds(least=0)]
NonNegativeFloat = Annotated[float, Bounds(least=0)]
Rate = Annotated[float, Bounds(least=0, below=1)]
Seed = Annotated[int, Bounds(least=0, below=2**31)]

# Search settings and positions become int32 tensors. Search settings are also multiplied with each
# other.
_MOST = 2**20
SearchSize = Annotated[int, Bounds(least=1, most=_MOST)]
SearchCount = Annotated[int, Bounds(least=0, most=_MOST)]
Position = Annotated[int, Bounds(least=0, most=_MOST)]
SearchWeight = Annotated[float, Bounds(least=0, most=_MOST)]
SourceBytes = Annotated[int, Bounds(least=4, most=_MOST)]  # one UTF-8 character has up to 4
LengthPenalty = Annotated[float, Bounds(least=0, most=MAX_LENGTH_PENALTY)]
RepetitionPenalty = Annotated[float, Bounds(least=1, most=_MOST)]
TopP = Annotated[float, Bounds(above=0, most=1)]

# Fields of config.json that had another name in earlier versions: old name → new name.
_RENAMED_FIELDS = {
    "model.relu_dropout": "model.activation_dropout",
    "training.accumulate_steps": "training.num_microbatches",
    "training.guided_alignment": "training.auxiliary_loss_weight",
}
# Fields of earlier versions, each with the only value that this version supports.
_REMOVED_FIELDS = {"training.r_drop": 0.0}


def setting(default: Any, help: str, *, may_change: bool = False, flag: bool = False) -> Any:
    """Declares a setting, with its default.

    Args:
        default: the default value.
        may_change: whether a run that resumes may change it. It may change limits and intervals,
            and how a step is computed: earlier steps stay, and later ones differ only by rounding.
            num_microbatches also changes dropout masks, but a run must be able to move to a machine
            with less memory.
    """
    metadata = {"help": help, "may_change": may_change, "flag": flag}
    return dataclasses.field(default=default, metadata=metadata)


def flag_fields() -> dict[str, dataclasses.Field[Any]]:
    """Returns the settings that have a flag, by full names such as `training.max_steps`."""
    return {
        f"{section}.{field.name}": field
        for section, settings in (("training", TrainingConfig), ("decoding", DecodingConfig))
        for field in dataclasses.fields(settings)
        if field.metadata.get("flag")
    }


def require(condition: bool, message: str) -> None:
    """Raises an `InputError` with `message` unless `condition`."""
    if not condition:
        raise InputError(message)


def _check_fields(config: Any, section: str) -> None:
    """Checks every field against its type. Strings, as from `--set`, are converted to that type."""
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        place = f"{section}.{field.name}"
        value = check_scalar(place, hints[field.name], getattr(config, field.name), convert=True)
        object.__setattr__(config, field.name, value)


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConfig:
    """The fields that every architecture has: batches, the loss and the search use them.

    Attributes:
        source_vocab_size, target_vocab_size: numbers of tokens.
        d_model: width of the embeddings.
        tie_embeddings: "all" shares one matrix between source embeddings, target embeddings and
            the pre-softmax product (paper, section 3.4), "target" only between the last two.
        pad_id, unknown_id, start_id, end_id: ids of the special tokens.
    """

    source_vocab_size: PositiveInt = 37_000
    target_vocab_size: PositiveInt = 37_000
    d_model: PositiveInt = 512
    tie_embeddings: Tying = "all"
    pad_id: int = 0
    unknown_id: int = 1
    start_id: int = 2
    end_id: int = 3

    def __post_init__(self) -> None:
        _check_fields(self, "model")
        vocabulary = min(self.source_vocab_size, self.target_vocab_size)
        special = [self.pad_id, self.unknown_id, self.start_id, self.end_id]
        require(
            all(0 <= i < vocabulary for i in special) and len(set(special)) == 4,
            f"model.pad_id, unknown_id, start_id and end_id are {special}. Use four different ids "
            f"below {vocabulary}.",
        )
        require(
            self.tie_embeddings != "all" or self.source_vocab_size == self.target_vocab_size,
            f"model.tie_embeddings is all, but the vocabularies have {self.source_vocab_size} and "
            f"{self.target_vocab_size} tokens. Tying all embeddings needs one joint vocabulary; "
            "otherwise set model.tie_embeddings to target.",
        )

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

    Attributes:
        key_dim, value_dim: d_k and d_v of the paper; `d_model / num_heads` if None.
        decoder_d_ff, decoder_num_heads: sizes of the decoder; `d_ff` and `num_heads` if None. The
            heads of the decoder have the same total width as those of the encoder.
        sinusoid_frequencies: "paper" for 10000^(-2i/d), or "tensor2tensor" for
            10000^(-i/(d/2 - 1)), as in the authors' code, Marian, fairseq and OpenNMT-tf.
        first_position: number of the first position for the sinusoids. OpenNMT-tf counts from 1
            and fairseq from 2.
        embedding_norm: normalize the sum of embeddings and positions.
        final_norm: add a layer norm after each stack; None for only after pre-norm stacks.
        mask_source_end: attend to the end token of the source as little as to padding, as in models
            of OpenNMT-tf, whose sources have no end token.
        attention_window: r of restricted self-attention (section 4): each position attends to the
            r positions around it.
        embedding_dropout, residual_dropout: the dropout of the paper (section 5.4).
        attention_dropout, activation_dropout: dropout of attention weights and inside the
            feed-forward network, which the paper does not use.
    """

    num_encoder_layers: PositiveInt = 6
    num_decoder_layers: PositiveInt = 6
    d_ff: PositiveInt = 2048
    num_heads: PositiveInt = 8
    key_dim: PositiveInt | None = None
    value_dim: PositiveInt | None = None
    decoder_d_ff: PositiveInt | None = None
    decoder_num_heads: PositiveInt | None = None
    scale_embeddings: bool = True
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    sinusoid_layout: Literal["interleaved", "halves"] = "interleaved"
    sinusoid_frequencies: Literal["paper", "tensor2tensor"] = "paper"
    first_position: Position = 0
    max_positions: PositiveInt = 1024
    embedding_norm: bool = False
    mask_source_end: bool = False
    attention_window: PositiveInt | None = None
    norm_position: Literal["post", "pre"] = "post"
    final_norm: bool | None = None
    layer_norm_epsilon: PositiveFloat = 1e-6
    activation: Literal["relu", "gelu", "silu"] = "relu"
    attention_bias: bool = False
    output_bias: bool = False
    embedding_dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    activation_dropout: Rate = 0.0
    residual_dropout: Rate = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key_dim is None or self.value_dim is None:
            require(
                self.d_model % self.num_heads == 0,
                f"model.d_model is {self.d_model}, which is not a multiple of model.num_heads "
                f"({self.num_heads}). Set model.key_dim and model.value_dim.",
            )
            for name in ("key_dim", "value_dim"):
                if getattr(self, name) is None:
                    object.__setattr__(self, name, self.d_model // self.num_heads)
        for name in ("key_dim", "value_dim"):
            width, heads = self.num_heads * getattr(self, name), self.decoder_num_heads or 1
            require(
                width % heads == 0,
                f"model.decoder_num_heads is {heads}, but model.num_heads * model.{name} is "
                f"{width}. Choose a divisor of it.",
            )
        require(
            self.positions == "learned" or self.d_model % 2 == 0,
            f"model.d_model is {self.d_model}, but sinusoidal positions need an even number.",
        )
        require(
            self.positions == "sinusoidal" or self.first_position == 0,
            f"model.first_position is {self.first_position}, but model.positions is learned. The "
            "first learned vector is always that of the first position: set it to 0.",
        )

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
        decoder_heads = self.decoder_num_heads or heads
        return StackSizes(
            self.num_decoder_layers,
            decoder_heads,
            heads * key_dim // decoder_heads,
            heads * value_dim // decoder_heads,
            self.decoder_d_ff or d_ff,
        )

    @property
    def has_final_norm(self) -> bool:
        """True if a layer norm follows each stack."""
        return self.norm_position == "pre" if self.final_norm is None else self.final_norm

    def num_parameters(self) -> int:
        d, norm = self.d_model, 2 * self.d_model

        def layer(sizes: StackSizes, attentions: int) -> int:
            _, h, dk, dv, d_ff = sizes
            attention = h * (d * (2 * dk + dv) + dv * d)
            biases = h * (2 * dk + dv) + d if self.attention_bias else 0
            feed_forward = 2 * d * d_ff + d_ff + d
            return attentions * (attention + biases + norm) + feed_forward + norm

        encoder = self.num_encoder_layers * layer(self.encoder_sizes, attentions=1)
        decoder = self.num_decoder_layers * layer(self.decoder_sizes, attentions=2)
        other_norms = 2 * norm * (self.embedding_norm + self.has_final_norm)
        positions = 2 * self.max_positions * d if self.positions == "learned" else 0
        output_bias = self.target_vocab_size if self.output_bias else 0
        return (
            encoder + decoder + other_norms + self._embedding_parameters() + positions + output_bias
        )


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Settings of training (paper, section 5). The defaults are the paper's for the base model."""

    max_steps: PositiveInt = setting(
        100_000, "total number of training steps", may_change=True, flag=True
    )
    batch_tokens: PositiveInt = setting(
        25_000, "target tokens of a global batch, including padding", flag=True
    )
    batch_shapes: PositiveInt = setting(
        16, "largest number of batch shapes; XLA compiles each, fewer need more padding"
    )
    subword_alpha: PositiveFloat | None = setting(
        None,
        "sample new segmentations in each epoch, as in 0.2 (Kudo, 2018); none: use the best",
        flag=True,
    )
    num_microbatches: PositiveInt = setting(
        1, "split batches into parts to save memory", may_change=True, flag=True
    )
    label_smoothing: Rate = setting(0.1, "share of the probability that goes to all other tokens")
    auxiliary_loss_weight: NonNegativeFloat = setting(
        0.0, "factor of a task's auxiliary loss, such as guided alignment"
    )
    optimizer: Literal["adam", "adamw"] = setting("adam", "adam|adamw", flag=True)
    schedule: Schedule = setting(
        "noam", "learning rate by step: noam|inverse_sqrt|linear|cosine|constant", flag=True
    )
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
        0.0, "weight decay of adamw, except for biases and layer norms", flag=True
    )
    clip_norm: NonNegativeFloat = setting(
        0.0, "maximum global norm of the gradients; 0: no limit", flag=True
    )
    freeze: str = setting("", "weights not to train, as in 'embedding/*,encoder/*'", flag=True)
    ema_decay: Rate = setting(
        0.0, "decay of the moving average of weights, as in 0.999; 0: none", flag=True
    )
    mixed_precision: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "auto|float32|bfloat16|float16; auto: the fastest", flag=True
    )
    jit_compile: Literal["auto", "true", "false"] = setting(
        "auto", "auto|true|false: compile the step with XLA", may_change=True, flag=True
    )
    deterministic: bool = setting(
        False, "bit-identical results; slower on a GPU", may_change=True, flag=True
    )
    seed: Seed = setting(1, "seed of all random numbers", flag=True)
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
        "loss", "loss|bleu: validation metric of the best checkpoints", may_change=True, flag=True
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
    bleu_tokenize: str | None = setting(
        None, "sacreBLEU's tokenizer; none: chosen by language or script", may_change=True
    )
    max_skipped_steps: PositiveInt = setting(
        20, "fail after N steps in a row without finite gradients", may_change=True
    )
    log_steps: PositiveInt = setting(50, "steps between lines of the log", may_change=True)

    def __post_init__(self) -> None:
        if str(self.schedule) == "paper":  # the name of this schedule in version 0.1.0
            object.__setattr__(self, "schedule", "noam")
        _check_fields(self, "training")
        require(
            self.schedule not in ("noam", "inverse_sqrt") or self.warmup_steps > 0,
            f"training.warmup_steps is 0, but the schedule {self.schedule} needs at least 1.",
        )
        require(
            self.optimizer == "adamw" or self.weight_decay == 0,
            f"training.weight_decay is {self.weight_decay}, but training.optimizer is adam. Choose "
            "adamw, or a weight decay of 0.",
        )
        require(
            self.best_metric == "loss" or self.bleu_steps > 0,
            "training.best_metric is bleu, but training.bleu_steps is 0. Set training.bleu_steps "
            "to the number of steps between two BLEU scores.",
        )


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """How translations are searched for (paper, section 6.1).

    Lengths are numbers of tokens, including the end token.

    Attributes:
        beam_size: number of hypotheses; 1 is greedy search.
        length_penalty, coverage_penalty: α and β of GNMT (Wu et al., 2016, arXiv:1609.08144,
            equation 14).
        length_penalty_formula: log-probabilities are divided by ((5 + length) / 6)^α ("gnmt"), or
            by length^α ("power"), as in Marian, fairseq and Hugging Face's transformers.
        n_best: number of results for each sentence.
        early_stopping: end the search of a sentence when it has `beam_size` complete outputs, as
            `early_stopping=True` of transformers, fairseq and CTranslate2 do. Otherwise it ends
            when no open hypothesis can enter the results.
        min_length, max_length: limits of the output. It also has at most `max_extra_tokens` more
            tokens than its input, or `min_length` if that is larger.
        max_source_tokens, max_source_bytes: longer inputs are truncated, which the results report.
        repetition_penalty: factor of the log-probabilities of tokens that the output already has
            (Keskar et al., 2019, arXiv:1909.05858).
        no_repeat_ngram: size of n-grams that no output repeats, 0 for no limit.
        banned: phrases that no output contains, separated by "|". They are matched as tokens: the
            same letters in other tokens are possible, and longer words with this beginning are not.
        allow_unknown: let outputs contain the unknown token, which is written as " ⁇ ".
        replace_unknown: allow the unknown token, and write the source token with the highest
            attention (the mean over the heads of the last layer) in its place.
        diversity_penalty: γ of Li et al. (2016, arXiv:1611.08562): the r-th best continuation of a
            hypothesis counts γ r less, so that the results differ more.
        sample: draw `n_best` outputs at random instead of searching; `beam_size` is not used.
        temperature: of sampling; 0 is greedy search.
        top_k: sample from the k most likely tokens, 0 for all.
        top_p: sample from the fewest tokens whose probabilities add up to at least this.
        seed: seed of sampling.
    """

    beam_size: SearchSize = setting(4, "number of open hypotheses; 1: greedy search", flag=True)
    length_penalty: LengthPenalty = setting(0.6, "exponent alpha of the length penalty", flag=True)
    length_penalty_formula: LengthPenaltyFormula = "gnmt"
    coverage_penalty: SearchWeight = 0.0
    n_best: SearchSize = setting(1, "translations of each sentence, best first", flag=True)
    early_stopping: bool = False
    min_length: SearchCount = 0
    max_length: SearchSize | None = None
    max_extra_tokens: SearchSize = 50
    max_source_tokens: SearchSize = 1024
    max_source_bytes: SourceBytes = 16_384
    repetition_penalty: RepetitionPenalty = 1.0
    no_repeat_ngram: SearchCount = 0
    banned: str = ""
    allow_unknown: bool = False
    replace_unknown: bool = False
    diversity_penalty: SearchWeight = 0.0
    sample: bool = setting(False, "sample translations instead of searching", flag=True)
    temperature: SearchWeight = 1.0
    top_k: SearchCount = 0
    top_p: TopP = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_fields(self, "decoding")
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
        for name, neutral in {"temperature": 1.0, "top_k": 0, "top_p": 1.0}.items():
            require(
                self.sample or getattr(self, name) == neutral,
                f"decoding.{name} is {getattr(self, name)}, but sampling is off. Set "
                "decoding.sample to true.",
            )
        require(
            self.beam_size > 1 or not self.diversity_penalty,
            f"decoding.diversity_penalty is {self.diversity_penalty}, but decoding.beam_size is 1. "
            "Only a larger beam can be diverse.",
        )
        for name in ("coverage_penalty", "diversity_penalty", "early_stopping"):
            require(
                not (self.sample and getattr(self, name)),
                f"decoding.{name} is {getattr(self, name)}, but decoding.sample is true. This "
                "option applies only to beam search: remove one of the two.",
            )


# Default for `config.json` files that were written before they named an architecture.
_TRANSFORMER = "transformer"

_RUN_CONFIGS: dict[str, type[RunConfig]] = {}


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The configuration of a run. Its fields are named like `training.max_steps`.

    Subclasses are registered by their architecture, so that `RunConfig.from_json` finds them.

    Attributes:
        architecture: name of the model architecture that `model` configures.
    """

    architecture: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "architecture" in vars(cls):
            _RUN_CONFIGS[cls.architecture] = cls

    model: EncoderDecoderConfig = dataclasses.field(default_factory=EncoderDecoderConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    decoding: DecodingConfig = dataclasses.field(default_factory=DecodingConfig)

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with changed fields, named like `model__d_model`."""
        return self.updated({key.replace("__", "."): value for key, value in changes.items()})

    def updated(self, settings: Mapping[str, Any]) -> Self:
        """Returns a copy with changed fields, such as `{"training.label_smoothing": 0.2}`."""
        changes: dict[str, dict[str, Any]] = {"model": {}, "training": {}, "decoding": {}}
        for key, value in settings.items():
            section, _, name = key.partition(".")
            require(
                section in changes and bool(name),
                f"{key!r} is not a setting. Settings are named model.NAME, training.NAME or "
                "decoding.NAME.",
            )
            names = [field.name for field in dataclasses.fields(getattr(self, section))]
            require(
                name in names,
                f"{key!r} is not a setting. The fields of {section} are {', '.join(names)}.",
            )
            changes[section][name] = value
        return type(self)(
            **{s: dataclasses.replace(getattr(self, s), **changes[s]) for s in changes}
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns the configuration as nested dictionaries, with the name of the architecture."""
        return {"architecture": self.architecture, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        """Returns the JSON that `from_json` reads."""
        return json.dumps(self.as_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, place: str = "the configuration") -> Self:
        """Reads a configuration that `to_json` wrote.

        `RunConfig.from_json` reads all architectures; a subclass reads only its own.

        Args:
            place: name of the source for errors, such as a path.
        """
        settings = {}
        try:
            sections = dict(json.loads(text))
            architecture = sections.pop("architecture", _TRANSFORMER)
            for section, fields in sections.items():
                settings.update({f"{section}.{name}": value for name, value in fields.items()})
        except json.JSONDecodeError as error:
            raise InputError(f"{place} is not JSON: {error}") from None
        except (AttributeError, TypeError, ValueError):
            raise InputError(
                f"{place} is not a configuration. It must be an object with model, training and "
                "decoding."
            ) from None
        expected = getattr(cls, "architecture", architecture)
        require(
            architecture == expected,
            f"{place} has the architecture {architecture!r}, but this command needs {expected!r}.",
        )
        config_type = _RUN_CONFIGS.get(str(architecture))
        if config_type is None:
            raise InputError(
                f"{place} has the architecture {architecture!r}, which is not registered. Import "
                "the module that defines it."
            )
        settings = {_RENAMED_FIELDS.get(name, name): value for name, value in settings.items()}
        for name, neutral in _REMOVED_FIELDS.items():
            value = settings.pop(name, neutral)
            require(
                value == neutral,
                f"{place} sets {name} to {value!r}, which this version no longer supports. "
                "Use the version that the run was trained with.",
            )
        try:
            config: Self = config_type().updated(settings)  # type: ignore[assignment]
            return config
        except InputError as error:
            raise InputError(f"{place}: {error}") from None


@dataclasses.dataclass(frozen=True)
class Config(RunConfig):
    """The configuration of a run of the Transformer.

    Example:
    >>> Config().replace(model__d_model=256).model.key_dim
    32
    """

    architecture: ClassVar[str] = _TRANSFORMER

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)

    def updated(self, settings: Mapping[str, Any]) -> Self:
        # key_dim and value_dim follow a change of d_model or num_heads if they had the default.
        default = self.model.d_model // self.model.num_heads
        derived = {
            f"model.{name}": None
            for name in ("key_dim", "value_dim")
            if settings.keys() & {"model.d_model", "model.num_heads"}
            and getattr(self.model, name) == default
        }
        return super().updated({**derived, **settings})
