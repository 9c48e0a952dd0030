"""The paper's Table 3 as data: rows that each differ from one base, and the paper's figures.

The paper's Table 3 (section 6.2) can be had on any base: a row is then the paper's change, applied
to that base. `rule` of a row says the change, `columns` what comes of it.

* Sizes (layers, d_model, d_ff, heads, d_k, d_v, steps) change by the paper's ratio: `A_h4`, whose
  4 heads are half of the paper's base, has half of the heads of any base. Whole numbers are the
  nearest ones, halves rounded up, and at least 1.
* h · d_k and h · d_v are what d_k and d_v are made of, so that rounded heads leave the amount of
  computation as the paper's row has it: that of base in rows A.
* Rates and kinds (dropout, label smoothing, positions) are those of the paper's row.

Rows are called as in `presets.py`, by the paper's sizes, whatever they are on another base. Rows
that have come out equal are trained once: `same_as` names the first of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.presets import TABLE_3, Published, preset, resolve_config
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

# Nothing is averaged (section 6.2), so few checkpoints are needed.
_NOT_AVERAGED = {"training.keep_checkpoints": 2, "training.keep_best": 0}

# For two cores in place of eight GPUs: some ten minutes a row, in which base reaches 30 BLEU on
# Multi30k. The schedule is the paper's, factor included; 4 % of warm-up, which the paper has, would
# be 120 steps, and the learning rate at their end 2.2 times as high as after 600.
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
        name: letters, digits, `_` and `.`; what stands before a `_` is its group.
        config: the configuration, that of the vocabulary included.
        original: the paper's configuration.
        rule: how either differs from its base, as in "h × 1/2, d_k × 2, d_v × 2"; empty for base.
        paper: what the paper has found.
        same_as: the name of an earlier row with this configuration, or None.
    """

    name: str
    config: Config
    original: Config
    rule: str
    paper: Published
    same_as: str | None = None


class Table(NamedTuple):
    """Table 3 on a base, which is its first row."""

    preset_base: str
    rows: tuple[Row, ...]

    @property
    def base(self) -> Row:
        return self.rows[0]

    def chosen(self, names: Sequence[str]) -> list[Row]:
        """Returns base and the rows that are named, singly or by group, in the table's order.

        All, where none are named.

        Raises:
            InputError: for a name that no row and no group has.
        """
        groups = {row.name.partition("_")[0] for row in self.rows}
        for name in names:
            if name not in groups | {row.name for row in self.rows}:
                raise InputError(
                    f"Table 3 has no row {name!r}; expected a group of "
                    f"{', '.join(sorted(groups))}, or one of "
                    f"{', '.join(row.name for row in self.rows)}"
                )
        wanted = {*names, self.base.name}
        return [
            row
            for row in self.rows
            if not names or row.name in wanted or row.name.partition("_")[0] in wanted
        ]

    def settings(self, row: Row) -> dict[str, Any]:
        """Returns what makes the row of the preset, as `training_run.train` takes them."""
        own = fields(row.config)
        # These would follow d_model / h where they are not given.
        dims = {name: own[name] for name in ("model.key_dim", "model.value_dim")}
        return {**differences(preset(self.preset_base), row.config), **dims}


def table3(preset_base: str, settings: Mapping[str, Any], vocabulary: Vocabulary) -> Table:
    """Returns the paper's Table 3 on a base.

    Args:
        preset_base: the base's name in `presets.py`; "base" is the paper's own.
        settings: what differs from it, in all rows.
        vocabulary: of the text that is trained on.

    Raises:
        InputError: for settings that do not fit, or that rows cannot be compared with, or a base
            that a row cannot be made of.
    """
    defaults = {**_NOT_AVERAGED, **_BUDGETS.get(preset_base, {})}
    base = resolve_config(preset(preset_base), {**defaults, **settings}, vocabulary)
    for name in ("ema_decay", "early_stopping"):
        if value := getattr(base.training, name):
            raise InputError(
                f"training.{name} is {value}; expected 0: rows of Table 3 are compared by the "
                "weights of their last step, not averaged"
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
    """Returns a row of the paper's Table 3 on another base, as the module says.

    Args:
        name: of the row, a preset; "base" itself changes nothing.
        base: what stands for the paper's base.

    Raises:
        InputError: where no model can be of the sizes that come out.
    """
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
    """Says how a row of the paper's Table 3 differs from its base, sizes in ratios."""
    parts = {
        column: f"{column} × {_ratio(name, field)}"
        if column in _SIZES
        else f"{column} {_get(preset(name), field)}"
        for column, field in _changed(name)
    }
    return ", ".join(parts.values())


def columns(config: Config) -> dict[str, int | float | str]:
    """Returns the values of the table's columns; where the fields of one differ, as in "4/2"."""
    values: dict[str, int | float | str] = {}
    for column, of_column in COLUMNS.items():
        found = list(dict.fromkeys(_get(config, field) for field in of_column))
        values[column] = found[0] if len(found) == 1 else "/".join(map(str, found))
    return values


def fields(config: Config) -> dict[str, Any]:
    """Returns all fields of a configuration, addressed as `Config.updated` takes them."""
    return {
        f"{section}.{name}": value
        for section, values in dataclasses.asdict(config).items()
        for name, value in values.items()
    }


def differences(before: Config, after: Config) -> dict[str, Any]:
    """Returns the fields of `after` that `before` has otherwise."""
    old = fields(before)
    return {name: value for name, value in fields(after).items() if value != old[name]}


def _changed(name: str) -> list[tuple[str, str]]:
    """The columns and fields in which a row of the paper differs from its base."""
    return [
        (column, field)
        for column, of_column in COLUMNS.items()
        for field in of_column
        if _get(preset(name), field) != _get(preset("base"), field)
    ]


def _ratio(name: str, field: str) -> Fraction:
    """A row's size in the paper's bases."""
    return Fraction(_get(preset(name), field), _get(preset("base"), field))


def _nearest(size: Fraction) -> int:
    return max(1, math.floor(size + Fraction(1, 2)))


def _get(config: Config, field: str) -> Any:
    section, _, name = field.partition(".")
    return getattr(getattr(config, section), name)
