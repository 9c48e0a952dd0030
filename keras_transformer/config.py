"""Every number that describes a model, its training and its decoding.

Three frozen dataclasses, `ModelConfig`, `TrainingConfig` and `DecodingConfig`,
joined in `Config`; `presets.py` names some. Models of another architecture have a
subclass of `EncoderDecoderConfig`, and their runs one of `RunConfig`. Nothing here
knows TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from keras_transformer.errors import InputError
from keras_transformer.schema import Bounds, check_scalar

# Above, the longest outputs always win; and (5 + length) / 6 to this power is a float32.
MAX_LENGTH_PENALTY = 10.0

Tying = Literal["all", "target", "none"]
Positions = Literal["sinusoidal", "learned"]
SinusoidLayout = Literal["interleaved", "halves"]
NormPosition = Literal["post", "pre"]
Activation = Literal["relu", "gelu", "silu"]
Schedule = Literal["paper", "inverse_sqrt", "linear", "cosine", "constant"]
# These fall towards the last step, so a run that resumes may not change max_steps.
SCHEDULES_OVER_MAX_STEPS = ("linear", "cosine")
Precision = Literal["auto", "float32", "bfloat16", "float16"]
Switch = Literal["auto", "true", "false"]
Optimizer = Literal["adam", "adamw"]
BestMetric = Literal["loss", "bleu"]

PositiveInt = Annotated[int, Bounds(above=0)]
PositiveFloat = Annotated[float, Bounds(above=0)]
NonNegativeInt = Annotated[int, Bounds(least=0)]
NonNegativeFloat = Annotated[float, Bounds(least=0)]
Rate = Annotated[float, Bounds(least=0, below=1)]
Seed = Annotated[int, Bounds(least=0, below=2**31)]

# The settings of the search become int32 tensors, and are multiplied with each other.
_MOST = 2**20
SearchSize = Annotated[int, Bounds(least=1, most=_MOST)]
SearchCount = Annotated[int, Bounds(least=0, most=_MOST)]
SearchWeight = Annotated[float, Bounds(least=0, most=_MOST)]
SourceBytes = Annotated[int, Bounds(least=4, most=_MOST)]  # one UTF-8 character has up to 4
LengthPenalty = Annotated[float, Bounds(least=0, most=MAX_LENGTH_PENALTY)]
RepetitionPenalty = Annotated[float, Bounds(least=1, most=_MOST)]
TopP = Annotated[float, Bounds(above=0, most=1)]

# Fields that earlier versions wrote into config.json, with the only value that means what a run
# without them is.
_RETIRED = {"training.r_drop": 0.0}


def require(condition: bool, message: str) -> None:
    """Raises an `InputError` with `message` unless `condition`."""
    if not condition:
        raise InputError(message)


def _check_fields(config: Any, section: str) -> None:
    """Checks every field by its type, and converts texts, which `--set` gives, to that type."""
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        place = f"{section}.{field.name}"
        value = check_scalar(place, hints[field.name], getattr(config, field.name), convert=True)
        object.__setattr__(config, field.name, value)


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConfig:
    """What batches, loss and search have to know of any model.

    `d_model` is the width of its embeddings. `tie_embeddings` is "all" for one matrix
    for source, target and the pre-softmax product (paper, section 3.4), "target" for
    the last two only.
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
            f"model.pad_id, unknown_id, start_id, end_id are {special}; "
            f"expected four different ids below {vocabulary}",
        )
        require(
            self.tie_embeddings != "all" or self.source_vocab_size == self.target_vocab_size,
            "model.tie_embeddings is all, but the vocabularies have "
            f"{self.source_vocab_size} and {self.target_vocab_size} pieces; expected one size",
        )

    def num_parameters(self) -> int:
        """Number of trainable weights of the model that this configuration describes."""
        raise NotImplementedError

    def _embedding_parameters(self) -> int:
        """Of them those of the embeddings and the pre-softmax product."""
        tables = {
            "all": self.target_vocab_size,
            "target": self.source_vocab_size + self.target_vocab_size,
            "none": self.source_vocab_size + 2 * self.target_vocab_size,
        }[self.tie_embeddings]
        return tables * self.d_model


@dataclasses.dataclass(frozen=True)
class ModelConfig(EncoderDecoderConfig):
    """Shape of the Transformer (paper, section 3); the defaults are the paper's base.

    `key_dim` and `value_dim` are the paper's d_k and d_v; None means
    `d_model / num_heads`. `attention_window` is the r of restricted self-attention
    (section 4): each position sees the r positions around it. The four dropout
    rates are independent; the paper uses `embedding_dropout` and
    `residual_dropout` (section 5.4).
    """

    num_encoder_layers: PositiveInt = 6
    num_decoder_layers: PositiveInt = 6
    d_ff: PositiveInt = 2048
    num_heads: PositiveInt = 8
    key_dim: PositiveInt | None = None
    value_dim: PositiveInt | None = None
    scale_embeddings: bool = True
    positions: Positions = "sinusoidal"
    sinusoid_layout: SinusoidLayout = "interleaved"
    max_positions: PositiveInt = 1024
    attention_window: PositiveInt | None = None
    norm_position: NormPosition = "post"
    layer_norm_epsilon: PositiveFloat = 1e-6
    activation: Activation = "relu"
    attention_bias: bool = False
    output_bias: bool = False
    embedding_dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    relu_dropout: Rate = 0.0
    residual_dropout: Rate = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key_dim is None or self.value_dim is None:
            require(
                self.d_model % self.num_heads == 0,
                f"model.d_model is {self.d_model}, not a multiple of model.num_heads "
                f"({self.num_heads}); set model.key_dim and model.value_dim",
            )
            for name in ("key_dim", "value_dim"):
                if getattr(self, name) is None:
                    object.__setattr__(self, name, self.d_model // self.num_heads)
        require(
            self.positions == "learned" or self.d_model % 2 == 0,
            f"model.d_model is {self.d_model}; sinusoidal positions need an even number",
        )

    def num_parameters(self) -> int:
        d, h, dk, dv = self.d_model, self.num_heads, self.key_dim or 0, self.value_dim or 0
        bias = int(self.attention_bias)
        attention = d * h * (2 * dk + dv) + h * dv * d + bias * (h * (2 * dk + dv) + d)
        feed_forward = 2 * d * self.d_ff + self.d_ff + d
        norm = 2 * d
        encoder = self.num_encoder_layers * (attention + feed_forward + 2 * norm)
        decoder = self.num_decoder_layers * (2 * attention + feed_forward + 3 * norm)
        final_norms = 2 * norm if self.norm_position == "pre" else 0
        positions = 2 * self.max_positions * d if self.positions == "learned" else 0
        output_bias = self.target_vocab_size if self.output_bias else 0
        return (
            encoder + decoder + final_norms + self._embedding_parameters() + positions + output_bias
        )


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How the model is trained (paper, section 5); the defaults are the paper's base.

    The update of a step is a function of the global batch:

    * `batch_tokens` counts its target positions, padding included.
      `accumulate_steps` computes it in so many parts, one after the other, for
      a device that cannot hold more; the update is the same but for dropout's masks.
    * `learning_rate` is a factor of the paper's schedule (equation 3) and the
      peak of every other one. `clip_norm` 0 does not clip. `weight_decay` is
      AdamW's, of every weight but biases and layer norms.
    * `freeze` names weights that stay as they are, by patterns of their paths
      with commas between them, as in "embedding/*,encoder/*".
    * `ema_decay` is that of the exponential moving average of the weights, which
      is then what is validated and exported; 0 keeps none.

    Around the steps:

    * Every `checkpoint_steps` the model is validated and a checkpoint written;
      the last `keep_checkpoints` stay, and the best `keep_best` by `best_metric`.
    * Every `bleu_steps` the first `bleu_sentences` of the validation set (0: all)
      are translated for their BLEU; 0 never does.
    * Training ends early after `early_stopping` validations in a row without a
      better `best_metric` (0: never), and fails after `max_skipped_steps` steps
      in a row whose gradients were not finite.
    * `deterministic` takes only operations that give the same bits every time.

    With a `subword_alpha` every epoch has segmentations of its own, drawn in proportion
    to their probabilities to the power of it (Kudo 2018; unigram vocabularies alone).

    `guided_alignment` is the weight of a loss by which one head learns to attend to the source
    word that comes next (Chen et al., 2016). It needs data that tells which word each target
    token stands for, as that of parsers. 0 has none.
    """

    max_steps: PositiveInt = 100_000
    batch_tokens: PositiveInt = 25_000
    subword_alpha: PositiveFloat | None = None
    accumulate_steps: PositiveInt = 1
    label_smoothing: Rate = 0.1
    guided_alignment: NonNegativeFloat = 0.0
    optimizer: Optimizer = "adam"
    schedule: Schedule = "paper"
    learning_rate: PositiveFloat = 1.0
    warmup_steps: NonNegativeInt = 4_000
    beta_1: Rate = 0.9
    beta_2: Rate = 0.98
    epsilon: PositiveFloat = 1e-9
    weight_decay: NonNegativeFloat = 0.0
    clip_norm: NonNegativeFloat = 0.0
    freeze: str = ""
    ema_decay: Rate = 0.0
    mixed_precision: Precision = "auto"
    jit_compile: Switch = "auto"
    deterministic: bool = False
    seed: Seed = 1
    checkpoint_steps: PositiveInt = 1_000
    keep_checkpoints: PositiveInt = 5
    keep_best: NonNegativeInt = 1
    best_metric: BestMetric = "loss"
    early_stopping: NonNegativeInt = 0
    bleu_steps: NonNegativeInt = 0
    bleu_sentences: NonNegativeInt = 0
    max_skipped_steps: PositiveInt = 20
    log_steps: PositiveInt = 50

    def __post_init__(self) -> None:
        _check_fields(self, "training")
        require(
            self.schedule not in ("paper", "inverse_sqrt") or self.warmup_steps > 0,
            f"training.warmup_steps is 0; expected 1 or more for the schedule {self.schedule}",
        )
        require(
            self.optimizer == "adamw" or self.weight_decay == 0,
            f"training.weight_decay is {self.weight_decay}, but training.optimizer is adam; "
            "expected adamw, or a decay of 0",
        )
        require(
            self.best_metric == "loss" or self.bleu_steps > 0,
            "training.best_metric is bleu, but training.bleu_steps is 0; "
            "expected the number of steps between two BLEU scores",
        )


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """How translations are searched for (paper, section 6.1).

    Lengths are in tokens, the end token included.

    * `beam_size` 1 is greedy search. `n_best` results are returned for each sentence.
    * `length_penalty` is α of GNMT (Wu et al., 2016, equation 14), `coverage_penalty` its β.
    * An output has at least `min_length` tokens, and at most its input's length plus
      `max_extra_tokens` (or `min_length`, where that is more), and at most `max_length`
      where there is one.
    * Input beyond `max_source_tokens`, or beyond `max_source_bytes` of UTF-8, is cut, and
      whoever decodes is told.
    * `repetition_penalty` multiplies the log-probability of tokens that the output has
      already (Keskar et al., 2019); no n-gram of `no_repeat_ngram` tokens comes twice; no
      phrase of `banned`, separated by "|", comes in the pieces that the tokenizer gives
      it (the same letters in other pieces may, and so may not a longer word that begins with them).
    * `diversity_penalty` is γ of Li et al. (2016): the r-th best continuation of one
      hypothesis counts γ r less when hypotheses are chosen, so that results differ more.
    * `sample` draws `n_best` outputs in place of searching (`beam_size` does not matter),
      from the distribution at `temperature` (0 is greedy search), of the `top_k` likeliest
      tokens (0: all) and, of these, the fewest whose probability reaches `top_p`. `seed`
      decides what is drawn.
    """

    beam_size: SearchSize = 4
    length_penalty: LengthPenalty = 0.6
    coverage_penalty: SearchWeight = 0.0
    n_best: SearchSize = 1
    min_length: SearchCount = 0
    max_length: SearchSize | None = None
    max_extra_tokens: SearchSize = 50
    max_source_tokens: SearchSize = 1024
    max_source_bytes: SourceBytes = 16_384
    repetition_penalty: RepetitionPenalty = 1.0
    no_repeat_ngram: SearchCount = 0
    banned: str = ""
    diversity_penalty: SearchWeight = 0.0
    sample: bool = False
    temperature: SearchWeight = 1.0
    top_k: SearchCount = 0
    top_p: TopP = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_fields(self, "decoding")
        require(
            self.max_length is None or self.max_length >= self.min_length,
            f"decoding.max_length is {self.max_length}; expected at least decoding.min_length "
            f"({self.min_length})",
        )
        require(
            self.sample or self.n_best <= self.beam_size,
            f"decoding.n_best is {self.n_best}; expected at most decoding.beam_size "
            f"({self.beam_size})",
        )
        for name, neutral in {"temperature": 1.0, "top_k": 0, "top_p": 1.0}.items():
            require(
                self.sample or getattr(self, name) == neutral,
                f"decoding.{name} is {getattr(self, name)}, and nothing is drawn; expected "
                "decoding.sample=true",
            )
        require(
            self.beam_size > 1 or not self.diversity_penalty,
            f"decoding.diversity_penalty is {self.diversity_penalty}, and decoding.beam_size is 1; "
            "expected a beam of hypotheses that can differ",
        )
        for name in ("coverage_penalty", "diversity_penalty"):
            require(
                not (self.sample and getattr(self, name)),
                f"decoding.{name} is {getattr(self, name)}, and decoding.sample is true; expected "
                "one of them, since it is a search that it guides",
            )


# Default for `config.json` files that were written before they named an architecture.
_TRANSFORMER = "transformer"

_RUN_CONFIGS: dict[str, type[RunConfig]] = {}


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The three configurations of a run, addressed as `model.`, `training.` and `decoding.`.

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
        """Returns a copy with fields changed, addressed as `model__d_model=128`-style keywords.

        >>> Config().replace(model__d_model=128, decoding__beam_size=1).decoding.beam_size
        1
        """
        return self.updated({key.replace("__", "."): value for key, value in changes.items()})

    def updated(self, settings: Mapping[str, Any]) -> Self:
        """Returns a copy with `{"training.label_smoothing": 0.2}`-style settings applied.

        Raises:
            InputError: for an unknown section or field, or a value that does not fit.
        """
        changes: dict[str, dict[str, Any]] = {"model": {}, "training": {}, "decoding": {}}
        for key, value in settings.items():
            section, _, name = key.partition(".")
            require(
                section in changes and bool(name),
                f"{key!r} is no setting; expected model.NAME, training.NAME or decoding.NAME",
            )
            names = [field.name for field in dataclasses.fields(getattr(self, section))]
            require(
                name in names,
                f"{key!r} is no setting; the fields of {section} are {', '.join(names)}",
            )
            changes[section][name] = value
        return type(self)(
            **{s: dataclasses.replace(getattr(self, s), **changes[s]) for s in changes}
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns what `to_json` writes."""
        return {"architecture": self.architecture, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, place: str = "the configuration") -> Self:
        """Reads a configuration that `to_json` wrote.

        `RunConfig.from_json` returns an object of the class of the architecture; a subclass reads
        its own architecture only.

        Args:
            text: JSON.
            place: name of the source for errors, such as a path.

        Raises:
            InputError: for invalid JSON or settings, an architecture that is not registered, or
                another one than that of the subclass.
        """
        try:
            sections = json.loads(text)
        except ValueError as error:
            raise InputError(f"{place} is no JSON: {error}") from None
        settings = {}
        try:
            architecture = dict(sections).pop("architecture", _TRANSFORMER)
            for section, fields in sections.items():
                if section != "architecture":
                    settings.update({f"{section}.{name}": value for name, value in fields.items()})
        except (AttributeError, TypeError, ValueError):
            raise InputError(
                f"{place} is no configuration; expected an object of model, training, decoding"
            ) from None
        expected = getattr(cls, "architecture", architecture)
        require(
            architecture == expected,
            f"{place} is of the architecture {architecture!r}; expected {expected!r}",
        )
        config_type = _RUN_CONFIGS.get(str(architecture))
        if config_type is None:
            raise InputError(
                f"{place} has the architecture {architecture!r}, which is not registered. Import "
                "the module that defines it first; for the baselines of the paper this is "
                "keras_transformer.paper.baselines.architectures"
            )
        for name, neutral in _RETIRED.items():
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
    """The three configurations of a Transformer's run."""

    architecture: ClassVar[str] = _TRANSFORMER

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)

    def updated(self, settings: Mapping[str, Any]) -> Self:
        # d_model / h follows a change of either.
        derived = self.model.d_model // self.model.num_heads
        followers = {
            f"model.{name}": None
            for name in ("key_dim", "value_dim")
            if settings.keys() & {"model.d_model", "model.num_heads"}
            and getattr(self.model, name) == derived
        }
        return super().updated({**followers, **settings})
