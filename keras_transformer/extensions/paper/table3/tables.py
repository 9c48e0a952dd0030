"""The paper's Table 3 as data: rows that differ from a base, and the paper's figures.

Table 3 (section 6.2) applies to any base: a row is the paper's change, applied to this base. `rule`
describes the change, and `columns` its result.

* Sizes (layers, d_model, d_ff, heads, d_k, d_v, steps) change in the proportion of the paper.
  `A_h4` has half of the heads of the paper's base, and therefore half of the heads of any base.
  Results are rounded (halves up), and at least 1.
* d_k and d_v follow from h · d_k and h · d_v, so that rounded heads keep the amount of computation
  of the paper's row. Rows A keep the amount of base.
* Rates and kinds (dropout, label smoothing, positions) are the same as in the paper's row.

Rows have the names of `presets.py`, after the paper's sizes, on any base. Equal rows are trained
once: `same_as` names the first of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.extensions.paper.presets import TABLE_3, Published
from keras_transformer.presets import preset, resolve_config
from keras_transformer.text.vocabulary import Vocabulary

# The columns of Table 3: the fields of each.
COLUMNS: dict[str, tuple[str, ...]] = {
    "N": ("model.num_encoder_layers", "model.num_decoder_layers"),
    "d_model": ("model.d_model",),
    "d_ff": ("model.d_ff",),
    "h": ("model.num_heads",),
    "d_k": ("model.key_dim",),
    "d_v": ("model.value_dim",),
    "P_drop": ("model.embedding_dropout", "model.residual_dropout"),
    "eps_ls": ("training.label_smoothing",),
    "positions": ("model.positions",),
    "steps": ("training.max_steps",),
}
_SIZES = {"N", "d_model", "d_ff", "h", "d_k", "d_v", "steps"}

# Checkpoints are not averaged (section 6.2), so few are kept.
_NOT_AVERAGED = {"training.keep_checkpoints": 2, "training.keep_best": 0}

# Settings for two cores instead of eight GPUs. A row takes about ten minutes, and base reaches 30
# BLEU on Multi30k. The schedule and its factor are from the paper. Warm-up is longer than the
# paper's 4 %: with 120 steps instead of 600, the peak learning rate would be 2.2 times as high.
_BUDGETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "training.batch_tokens": 2048,
        "training.max_steps": 3000,
        "training.warmup_steps": 600,
        "training.checkpoint_steps": 300,
    }
}


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        name: letters, digits, `_` and `.`. The part before a `_` is the group.
        config: the configuration, with the sizes of the vocabulary.
        original: the configuration in the paper.
        rule: difference from base, as in "h × 1/2, d_k × 2, d_v × 2"; empty for base.
        paper: the figures of the paper.
        same_as: the name of an earlier row with this configuration, or None.
    """

    name: str
    config: Config
    original: Config
    rule: str
    paper: Published
    same_as: str | None = None


class Table(NamedTuple):
    """Table 3 on a base. The base is the first row."""

    preset_base: str
    rows: tuple[Row, ...]

    @property
    def base(self) -> Row:
        return self.rows[0]

    def chosen(self, names: Sequence[str] | None = None) -> list[Row]:
        """Returns base and the chosen rows, in the order of the table."""
        groups = {row.name.partition("_")[0] for row in self.rows}
        for name in names or ():
            if name not in groups | {row.name for row in self.rows}:
                raise InputError(
                    f"Table 3 lacks the row {name!r}. Choose a group "
                    f"({', '.join(sorted(groups))}) or a row "
                    f"({', '.join(row.name for row in self.rows)})."
                )
        wanted = {*(names or ()), self.base.name}
        return [
            row
            for row in self.rows
            if not names or row.name in wanted or row.name.partition("_")[0] in wanted
        ]

    def settings(self, row: Row) -> dict[str, Any]:
        """Returns the settings that turn the preset into the row, for `training_run.train`."""
        own = row.config.settings()
        # If these were not set, they would be d_model / h.
        dims = {name: own[name] for name in ("model.key_dim", "model.value_dim")}
        return {**differences(preset(self.preset_base), row.config), **dims}


def table3(preset_base: str, settings: Mapping[str, Any], vocabulary: Vocabulary) -> Table:
    """Returns the paper's Table 3 on a base."""
    defaults = {**_NOT_AVERAGED, **_BUDGETS.get(preset_base, {})}
    base = resolve_config(preset(preset_base), {**defaults, **settings}, vocabulary)
    for name in ("ema_decay", "early_stopping"):
        if value := getattr(base.training, name):
            raise InputError(
                f"training.{name} is {value}, but it must be 0: Table 3 compares the weights of "
                "the last step, without averaging."
            )
    rows: list[Row] = []
    for name, published in TABLE_3.items():
        try:
            config = scaled(name, base)
        except InputError as error:
            raise InputError(f"{preset_base} cannot be the base of row {name}: {error}") from None
        same = next((row.name for row in rows if row.config == config), None)
        rows.append(Row(name, config, preset(name), rule(name), published, same))
    return Table(preset_base, tuple(rows))


def scaled(name: str, base: Config) -> Config:
    """Returns a row of the paper's Table 3 on another base. The module describes the rules."""
    changes: dict[str, Any] = {}
    for column, field in _changed(name):
        if column in _SIZES:
            changes[field] = _nearest(_ratio(name, field) * _get(base, field))
        else:
            changes[field] = _get(preset(name), field)
    heads = changes.get("model.num_heads", base.model.num_heads)
    for field in ("model.key_dim", "model.value_dim"):
        ratio = _ratio(name, "model.num_heads") * _ratio(name, field)
        changes[field] = _nearest(ratio * base.model.num_heads * _get(base, field) / heads)
    return base.updated(changes)


def rule(name: str) -> str:
    """Describes the difference of a row of the paper's Table 3 from base, with ratios of sizes."""
    parts = {
        column: f"{column} × {_ratio(name, field)}"
        if column in _SIZES
        else f"{column} {_get(preset(name), field)}"
        for column, field in _changed(name)
    }
    return ", ".join(parts.values())


def columns(config: Config) -> dict[str, int | float | str]:
    """Returns the values of the columns. If a column has several fields, different values are
    joined as in "4/2".
    """
    values: dict[str, int | float | str] = {}
    for column, of_column in COLUMNS.items():
        found = list(dict.fromkeys(_get(config, field) for field in of_column))
        values[column] = found[0] if len(found) == 1 else "/".join(map(str, found))
    return values


def differences(before: Config, after: Config) -> dict[str, Any]:
    """Returns the fields of `after` that differ from `before`."""
    old = before.settings()
    return {name: value for name, value in after.settings().items() if value != old[name]}


def _changed(name: str) -> list[tuple[str, str]]:
    """Returns the columns and fields in which a row of the paper differs from base."""
    return [
        (column, field)
        for column, of_column in COLUMNS.items()
        for field in of_column
        if _get(preset(name), field) != _get(preset("base"), field)
    ]


def _ratio(name: str, field: str) -> Fraction:
    """Returns the size of a field in the bases of the paper."""
    return Fraction(_get(preset(name), field), _get(preset("base"), field))


def _nearest(size: Fraction) -> int:
    return max(1, math.floor(size + Fraction(1, 2)))


def _get(config: Config, field: str) -> Any:
    section, _, name = field.partition(".")
    return getattr(getattr(config, section), name)
