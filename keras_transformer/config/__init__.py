"""The configuration of a model, its training and its decoding.

`Config` joins three frozen dataclasses: `ModelConfig`, `TrainingConfig` and `DecodingConfig`. Each
setting is declared once, by `setting` or `flag`: flags, checks, the table in `docs/settings.md` and
the settings that a resumed run may change follow from it. `presets.py` has named configurations.
Other architectures subclass `EncoderDecoderConfig` and `RunConfig`. This module does not import
TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from keras_transformer.config.model import EncoderDecoderConfig as EncoderDecoderConfig
from keras_transformer.config.model import ModelConfig as ModelConfig
from keras_transformer.config.schema import (
    MOST,
    Count,
    Limits,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Rate,
    Settings,
    Size,
    Weight,
    flag,
    setting,
)
from keras_transformer.errors import InputError, check_names, require

# With a larger α the longest outputs always win. Up to 7,000 tokens, length^10 fits into a float32.
MAX_LENGTH_PENALTY = 10.0

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
    "decoding.allow_unknown": (False,),
    "decoding.replace_unknown": (False,),
    "decoding.coverage_penalty": (0.0,),
    "decoding.diversity_penalty": (0.0,),
}


@dataclasses.dataclass(frozen=True)
class TrainingConfig(Settings):
    """Settings of training (paper, section 5). The defaults are the paper's for the base model.

    `docs/settings.md` describes all fields.
    """

    section = "training"

    max_steps: PositiveInt = flag(100_000, "total number of steps", may_change=True)
    batch_tokens: PositiveInt = flag(25_000, "target tokens of a global batch, including padding")
    batch_shapes: PositiveInt = setting(
        16, "largest number of batch shapes; XLA compiles each, fewer need more padding"
    )
    subword_alpha: PositiveFloat | None = flag(
        None, "new segmentations in each epoch, as in 0.2 (Kudo, 2018); none: the best"
    )
    num_microbatches: PositiveInt = flag(1, "split batches to save memory", may_change=True)
    label_smoothing: Rate = setting(0.1, "share of the probability that goes to all other tokens")
    auxiliary_loss_weight: NonNegativeFloat = setting(
        0.0, "factor of the loss that trains one attention head to align words, as in 0.1; 0: none"
    )
    schedule: Schedule = flag("noam", "learning rate by step")
    learning_rate: PositiveFloat = flag(1.0, "factor of the schedule noam, peak of the others")
    warmup_steps: NonNegativeInt = flag(4_000, "steps until the peak of the learning rate")
    beta_1: Rate = setting(0.9, "decay of Adam's mean of gradients")
    beta_2: Rate = setting(0.98, "decay of Adam's mean of squared gradients")
    epsilon: PositiveFloat = setting(1e-9, "Adam's smallest denominator")
    weight_decay: NonNegativeFloat = flag(0.0, "AdamW's weight decay of matrices; 0: Adam")
    clip_norm: NonNegativeFloat = flag(0.0, "maximum global norm of the gradients; 0: no limit")
    freeze: str = flag("", "weights not to train, as in 'embedding/*,encoder/*'")
    ema_decay: Rate = flag(0.0, "decay of the moving average of weights, as in 0.999; 0: none")
    mixed_precision: Literal["auto", "float32", "bfloat16", "float16"] = flag(
        "auto", "precision of products; auto: the fastest"
    )
    jit_compile: Literal["auto", "true", "false"] = flag(
        "auto", "compile with XLA", may_change=True
    )
    deterministic: bool = flag(False, "bit-identical results; may be slower", may_change=True)
    seed: Annotated[int, Limits(least=0, below=2**31)] = flag(1, "seed of all random numbers")
    checkpoint_steps: PositiveInt = flag(
        1_000, "steps between checkpoints, which are validated", may_change=True
    )
    keep_checkpoints: PositiveInt = flag(5, "number of last checkpoints to keep", may_change=True)
    keep_best: NonNegativeInt = flag(1, "number of best checkpoints to keep", may_change=True)
    best_metric: Literal["loss", "bleu"] = flag(
        "loss", "validation metric of the best checkpoints", may_change=True
    )
    early_stopping: NonNegativeInt = flag(
        0, "stop after N validations without improvement; 0: never", may_change=True
    )
    bleu_steps: NonNegativeInt = flag(0, "steps between BLEU scores; 0: never", may_change=True)
    bleu_sentences: NonNegativeInt = flag(0, "validation pairs for BLEU; 0: all", may_change=True)
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

    beam_size: Size = flag(4, "number of open hypotheses; 1: greedy search")
    length_penalty: Annotated[float, Limits(least=0, most=MAX_LENGTH_PENALTY)] = flag(
        0.6, "exponent alpha of the length penalty"
    )
    length_penalty_formula: LengthPenaltyFormula = setting(
        "gnmt", "scores are log-probabilities / ((5 + length) / 6)^alpha, or / length^alpha"
    )
    n_best: Size = flag(1, "translations of each sentence, best first")
    early_stopping: Literal[False, True, "marian"] = setting(
        False, "stop at beam_size complete outputs; marian: each one also narrows the beam"
    )
    min_length: Count = setting(0, "minimum length of the output")
    max_length: Size | None = setting(None, "maximum length of the output")
    max_extra_tokens: Annotated[int, Limits(least=-100, most=MOST)] | None = setting(
        None, "maximum length beyond that of the input; -2: twice the input more; none: 50 or less"
    )
    max_source_tokens: Size = setting(
        1024, "longer inputs are truncated, as are inputs with 16 times as many bytes"
    )
    repetition_penalty: Annotated[float, Limits(least=1, most=MOST)] = setting(
        1.0, "factor of the log-probabilities of repeated tokens (Keskar et al., arXiv:1909.05858)"
    )
    no_repeat_ngram: Count = setting(0, "size of n-grams that no output repeats; 0: no limit")
    banned: str = setting("", "phrases that no output contains, as tokens, as in 'um|oh dear'")
    unknown: Literal["forbid", "allow", "replace"] = setting(
        "forbid", "unknown tokens in outputs; replace: by the source token with most attention"
    )
    sample: bool = flag(False, "sample translations instead of searching")
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
        only_sampling = {"temperature", "top_k", "top_p"}
        without_effect = {"early_stopping"} if self.sample else only_sampling
        for name in sorted(without_effect):
            require(
                getattr(self, name) == self.declarations()[name].default,
                f"decoding.{name} is {getattr(self, name)}, which has no effect with "
                f"decoding.sample={str(self.sample).lower()}. Change one of them.",
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

    def updated(self, settings: Mapping[str, Any] = MappingProxyType({}), **named: Any) -> Self:
        """Returns a copy with changed settings.

        They are named like `{"training.label_smoothing": 0.2}`, or as `training__label_smoothing`.
        """
        settings = {**settings, **{key.replace("__", "."): v for key, v in named.items()}}
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
        sections = {name: settings.as_dict() for name, settings in vars(self).items()}
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
            name: value
            for section, values in sections.items()
            for key, value in dict(values).items()
            if value not in _REMOVED_FIELDS.get(name := f"{section}.{key}", ())
        }
        kinds = {kind.architecture: kind for kind in cls.__subclasses__() or [cls]}
        if (kind := kinds.get(str(architecture))) is None:
            raise InputError(
                f"{label} has the architecture {architecture!r}, but this program reads only "
                f"{', '.join(kinds)}."
            )
        for name in settings.keys() - kind.declarations().keys():
            raise InputError(
                f"{label} has the setting {name}, which this version does not know. Use the "
                "version that wrote it, or train again."
            )
        try:
            return kind().updated(settings)
        except InputError as error:
            raise InputError(f"{label}: {error}") from None


@dataclasses.dataclass(frozen=True)
class Config(RunConfig):
    """The configuration of a run of the Transformer.

    Example:
    >>> Config().updated(model__d_model=256).model.key_dim
    32
    """

    architecture: ClassVar[str] = "transformer"

    model: ModelConfig = ModelConfig()
