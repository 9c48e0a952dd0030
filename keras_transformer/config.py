"""Every number that describes a model, its training and its decoding.

Three frozen dataclasses, `ModelConfig`, `TrainingConfig` and `DecodingConfig`,
joined in `Config`; `presets.py` names some. Models of another architecture have a
subclass of `EncoderDecoderConfig`, and their runs one of `RunConfig`. Nothing here
knows TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from keras_transformer.errors import InputError

Tying = Literal["all", "target", "none"]
Positions = Literal["sinusoidal", "learned"]
SinusoidLayout = Literal["interleaved", "halves"]
NormPosition = Literal["post", "pre"]
Activation = Literal["relu", "gelu", "silu"]
Schedule = Literal["paper", "inverse_sqrt", "linear", "cosine", "constant"]
Precision = Literal["auto", "float32", "bfloat16", "float16"]
Switch = Literal["auto", "true", "false"]
Optimizer = Literal["adam", "adamw"]
BestMetric = Literal["loss", "bleu"]


def require(condition: bool, message: str) -> None:
    """Raises an `InputError` with `message` unless `condition`."""
    if not condition:
        raise InputError(message)


def _check_fields(config: Any, section: str) -> None:
    """Checks the type, the choices and the finiteness of every field."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        checked = _coerce(f"{section}.{field.name}", hints[field.name], value)
        object.__setattr__(config, field.name, checked)


def _coerce(place: str, hint: Any, value: Any) -> Any:
    """Returns `value` as the type `hint`; strings are parsed (`--set` hands over strings)."""
    if isinstance(hint, types.UnionType):  # X | None
        if value is None or value == "none":
            return None
        (hint,) = [arm for arm in typing.get_args(hint) if arm is not type(None)]
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        require(value in choices, f"{place} is {value!r}; expected one of {', '.join(choices)}")
        return value
    if hint is bool:
        if value in (True, False, "true", "false"):
            return value in (True, "true")
        raise InputError(f"{place} is {value!r}; expected true or false")
    if hint is str:
        require(isinstance(value, str), f"{place} is {value!r}; expected text")
        return value
    try:
        if hint is int:
            number = int(value) if isinstance(value, str) else value
            if isinstance(number, bool) or int(number) != number:
                raise ValueError
            return int(number)
        number = math.nan if isinstance(value, bool) else float(value)
        if not math.isfinite(number):
            raise ValueError
        return number
    except (TypeError, ValueError, OverflowError):
        kind = "a whole number" if hint is int else "a finite number"
        raise InputError(f"{place} is {value!r}; expected {kind}") from None


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConfig:
    """What batches, loss and search have to know of any model.

    `d_model` is the width of its embeddings. `tie_embeddings` is "all" for one matrix
    for source, target and the pre-softmax product (paper, section 3.4), "target" for
    the last two only.
    """

    source_vocab_size: int = 37_000
    target_vocab_size: int = 37_000
    d_model: int = 512
    tie_embeddings: Tying = "all"
    pad_id: int = 0
    unknown_id: int = 1
    start_id: int = 2
    end_id: int = 3

    def __post_init__(self) -> None:
        _check_fields(self, "model")
        self._require_positive("source_vocab_size", "target_vocab_size", "d_model")
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

    def _require_positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            require(value > 0, f"model.{name} is {value}; expected more than 0")

    def _require_rates(self, *names: str) -> None:
        for name in names:
            rate = getattr(self, name)
            require(0 <= rate < 1, f"model.{name} is {rate}; expected 0 <= rate < 1")

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

    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_ff: int = 2048
    num_heads: int = 8
    key_dim: int | None = None
    value_dim: int | None = None
    scale_embeddings: bool = True
    positions: Positions = "sinusoidal"
    sinusoid_layout: SinusoidLayout = "interleaved"
    max_positions: int = 1024
    attention_window: int | None = None
    norm_position: NormPosition = "post"
    layer_norm_epsilon: float = 1e-6
    activation: Activation = "relu"
    attention_bias: bool = False
    output_bias: bool = False
    embedding_dropout: float = 0.1
    attention_dropout: float = 0.0
    relu_dropout: float = 0.0
    residual_dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key_dim is None or self.value_dim is None:
            require(
                self.num_heads > 0,
                f"model.num_heads is {self.num_heads}; expected more than 0",
            )
            require(
                self.d_model % self.num_heads == 0,
                f"model.d_model is {self.d_model}, not a multiple of model.num_heads "
                f"({self.num_heads}); set model.key_dim and model.value_dim",
            )
            for name in ("key_dim", "value_dim"):
                if getattr(self, name) is None:
                    object.__setattr__(self, name, self.d_model // self.num_heads)
        self._require_positive(
            *(
                "num_encoder_layers num_decoder_layers d_ff num_heads key_dim value_dim "
                "max_positions layer_norm_epsilon"
            ).split()
        )
        if self.attention_window is not None:
            require(
                self.attention_window > 0,
                f"model.attention_window is {self.attention_window}; expected more than 0, or none",
            )
        self._require_rates(
            "embedding_dropout", "attention_dropout", "relu_dropout", "residual_dropout"
        )
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

    `r_drop` is α of R-Drop (Liang et al., 2021): every sentence goes through the model
    twice, which costs twice the time, and the two distributions that dropout makes of
    each target token are drawn together; the authors take 5. 0 has one pass.

    `guided_alignment` is the weight of a loss by which one head learns to attend to the source
    word that comes next (Chen et al., 2016). It needs data of trees, whose tags tell which word
    each stands for. 0 has none.
    """

    max_steps: int = 100_000
    batch_tokens: int = 25_000
    subword_alpha: float | None = None
    accumulate_steps: int = 1
    label_smoothing: float = 0.1
    r_drop: float = 0.0
    guided_alignment: float = 0.0
    optimizer: Optimizer = "adam"
    schedule: Schedule = "paper"
    learning_rate: float = 1.0
    warmup_steps: int = 4_000
    beta_1: float = 0.9
    beta_2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    freeze: str = ""
    ema_decay: float = 0.0
    mixed_precision: Precision = "auto"
    jit_compile: Switch = "auto"
    deterministic: bool = False
    seed: int = 1
    checkpoint_steps: int = 1_000
    keep_checkpoints: int = 5
    keep_best: int = 1
    best_metric: BestMetric = "loss"
    early_stopping: int = 0
    bleu_steps: int = 0
    bleu_sentences: int = 0
    max_skipped_steps: int = 20
    log_steps: int = 50

    def __post_init__(self) -> None:
        _check_fields(self, "training")
        for name in (
            "max_steps batch_tokens accumulate_steps learning_rate epsilon checkpoint_steps "
            "keep_checkpoints max_skipped_steps log_steps"
        ).split():
            value = getattr(self, name)
            require(value > 0, f"training.{name} is {value}; expected more than 0")
        for name in ("label_smoothing", "beta_1", "beta_2", "ema_decay"):
            value = getattr(self, name)
            require(0 <= value < 1, f"training.{name} is {value}; expected 0 <= value < 1")
        for name in (
            "r_drop guided_alignment clip_norm warmup_steps weight_decay seed keep_best "
            "early_stopping bleu_steps bleu_sentences"
        ).split():
            value = getattr(self, name)
            require(value >= 0, f"training.{name} is {value}; expected 0 or more")
        require(
            self.subword_alpha is None or self.subword_alpha > 0,
            f"training.subword_alpha is {self.subword_alpha}; expected more than 0, or none",
        )
        require(self.seed < 2**31, f"training.seed is {self.seed}; expected less than {2**31}")
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


# Above, the longest outputs always win; and (5 + length) / 6 to this power is a float32.
MAX_LENGTH_PENALTY = 10.0


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

    beam_size: int = 4
    length_penalty: float = 0.6
    coverage_penalty: float = 0.0
    n_best: int = 1
    min_length: int = 0
    max_length: int | None = None
    max_extra_tokens: int = 50
    max_source_tokens: int = 1024
    max_source_bytes: int = 16_384
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    banned: str = ""
    diversity_penalty: float = 0.0
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_fields(self, "decoding")
        for name, least in {
            "beam_size": 1, "n_best": 1, "max_extra_tokens": 1, "max_source_tokens": 1,
            "max_source_bytes": 4, "min_length": 0, "length_penalty": 0, "coverage_penalty": 0,
            "repetition_penalty": 1, "no_repeat_ngram": 0, "diversity_penalty": 0,
            "temperature": 0, "top_k": 0,
        }.items():  # fmt: skip
            value = getattr(self, name)
            require(value >= least, f"decoding.{name} is {value}; expected at least {least}")
            require(value <= 2**20, f"decoding.{name} is {value}; expected at most {2**20:,}")
        require(
            self.length_penalty <= MAX_LENGTH_PENALTY,
            f"decoding.length_penalty is {self.length_penalty}; expected at most "
            f"{MAX_LENGTH_PENALTY:g}",
        )
        require(
            self.max_length is None or self.max_length <= 2**20,
            f"decoding.max_length is {self.max_length}; expected at most {2**20:,}, or none",
        )
        require(
            self.max_length is None or self.max_length >= max(self.min_length, 1),
            f"decoding.max_length is {self.max_length}; expected at least "
            + (f"decoding.min_length ({self.min_length})" if self.min_length > 1 else "1"),
        )
        require(0 < self.top_p <= 1, f"decoding.top_p is {self.top_p}; expected above 0, at most 1")
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
