"""The paper's Tables 2 and 3: rows as data, trained and scored by one runner, with one report.

Table 3 (section 6.2) applies to any base: a row is the paper's change, applied to this base.

* Sizes (layers, d_model, d_ff, heads, d_k, d_v, steps) change in the proportion of the paper.
  `A_h4` has half of the heads of the paper's base, and therefore half of the heads of any base.
  Results are rounded (halves up), and at least 1.
* d_k and d_v follow from h · d_k and h · d_v, so that rounded heads keep the amount of computation
  of the paper's row. Rows A keep the amount of base.
* Rates and kinds (dropout, label smoothing, positions) are the same as in the paper's row.

Table 2 compares the Transformer with two other architectures of the same size.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.config import Config, ModelConfig
from keras_transformer.console import warn
from keras_transformer.data.token_store import TokenStore
from keras_transformer.data.workers import Workers
from keras_transformer.errors import DivergedError, InputError
from keras_transformer.evaluation import metrics
from keras_transformer.evaluation.test_sets import EvaluationSet
from keras_transformer.extensions.paper import experiment, report
from keras_transformer.extensions.paper.presets import TABLE_3
from keras_transformer.presets import preset, resolve_config
from keras_transformer.runs.atomic import write_text
from keras_transformer.text.vocabulary import Vocabulary
from keras_transformer.tf_import import load_tensorflow

log = logging.getLogger(__name__)

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

# Settings of Table 3 for any base. Checkpoints are not averaged (section 6.2), so few are kept.
_TABLE_3 = {"training.keep_checkpoints": 2, "training.keep_best": 0}
# Settings for two cores instead of eight GPUs. A row takes about ten minutes, and base reaches 30
# BLEU on Multi30k. The schedule and its factor are from the paper. Warm-up is longer than the
# paper's 4 %: with 120 steps instead of 600, the peak learning rate would be 2.2 times as high.
_TINY = {
    "training.batch_tokens": 2048,
    "training.max_steps": 3000,
    "training.warmup_steps": 600,
    "training.checkpoint_steps": 300,
}
# Settings of all rows of Table 2. XLA takes longer to compile the batch shapes than these short
# runs gain by it.
_TABLE_2: dict[str, Any] = {
    "training.batch_tokens": 2048,
    "training.schedule": "linear",
    "training.learning_rate": 0.001,
    "training.warmup_steps": 300,
    "training.clip_norm": 1.0,
    "training.mixed_precision": "float32",
    "training.jit_compile": "false",
    "training.keep_checkpoints": 1,
    "training.keep_best": 1,
    "training.max_steps": 3000,
    "training.checkpoint_steps": 300,
    "training.bleu_steps": 300,
    "training.best_metric": "bleu",
}
# About 9 million parameters, as the defaults of the other architectures have with a vocabulary of
# 4,000.
_TRANSFORMER = {
    "model.num_encoder_layers": 4,
    "model.num_decoder_layers": 4,
    "model.d_model": 256,
    "model.d_ff": 1152,
    "model.num_heads": 4,
    "model.embedding_dropout": 0.3,
    "model.residual_dropout": 0.3,
    "model.norm_position": "pre",
}


class TableRow(NamedTuple):
    """A row of a table."""

    name: str  # also of its directory; the part before a `_` is the group
    title: str  # difference from the base, as in "h × 1/2, d_k × 2", or a name for the chart
    settings: Mapping[str, Any]  # changes to the preset
    published: Mapping[str, float | None]  # `bleu`, in Table 3 also `perplexity` and `millions`
    architecture: str = "transformer"
    config: Config | None = None  # includes the sizes of the vocabulary; only Table 3 has it
    same_as: str | None = None  # the name of an earlier row with this configuration


def table2(settings: Mapping[str, Any]) -> list[TableRow]:
    """Returns the architectures of Table 2.

    The published BLEU is from German to English, of the notebooks of bentrevett/pytorch-seq2seq,
    with greedy search and torchtext's BLEU. The models have 9, 37 and 20 million parameters.
    """
    return [
        TableRow(name, title, {**_TABLE_2, **own, **settings}, {"bleu": bleu}, name)
        for name, title, own, bleu in (
            ("transformer", "Transformer", _TRANSFORMER, 36.5),
            ("convolutional", "ConvS2S", {}, 34.1),
            ("gru", "GRU with attention", {}, 28.1),
        )
    ]


def table3(preset_base: str, settings: Mapping[str, Any], vocabulary: Vocabulary) -> list[TableRow]:
    """Returns the paper's Table 3 on a base, which is the first row."""
    initial = preset(preset_base)
    budget = _TINY if preset_base == "tiny" else {}
    base = resolve_config(initial, {**_TABLE_3, **budget, **settings}, vocabulary)
    for name in ("ema_decay", "early_stopping"):
        if value := getattr(base.training, name):
            raise InputError(
                f"training.{name} is {value}, but it must be 0: Table 3 compares the weights of "
                "the last step, without averaging."
            )
    rows: list[TableRow] = []
    for name, published in TABLE_3.items():
        try:
            config = scaled(name, base)
        except InputError as error:
            raise InputError(f"{preset_base} cannot be the base of row {name}: {error}") from None
        # If these were not set, they would be d_model / h.
        own = {field: _get(config, field) for field in ("model.key_dim", "model.value_dim")}
        changes = {**differences(initial, config), **own}
        same = next((row.name for row in rows if row.config == config), None)
        rows.append(TableRow(name, rule(name), changes, published, config=config, same_as=same))
    return rows


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


def columns(config: Config) -> dict[str, str]:
    """Returns the values of the columns. Different values of a column are joined, as in "4/2"."""
    return {
        column: "/".join(dict.fromkeys(str(_get(config, field)) for field in fields))
        for column, fields in COLUMNS.items()
    }


def differences(before: Config, after: Config) -> dict[str, Any]:
    """Returns the fields of `after` that differ from `before`, as settings."""
    old = before.settings()
    return {name: value for name, value in after.settings().items() if value != old[name]}


def _changed(name: str) -> list[tuple[str, str]]:
    """Returns the columns and fields in which a row of the paper differs from base."""
    return [
        (column, field)
        for column, fields in COLUMNS.items()
        for field in fields
        if _get(preset(name), field) != _get(preset("base"), field)
    ]


def _ratio(name: str, field: str) -> Fraction:
    """Returns the size of a field in a row of the paper, relative to the paper's base."""
    return Fraction(_get(preset(name), field), _get(preset("base"), field))


def _nearest(size: Fraction) -> int:
    return max(1, math.floor(size + Fraction(1, 2)))


def _get(config: Config, field: str) -> Any:
    section, _, name = field.partition(".")
    return getattr(getattr(config, section), name)


def chosen_rows(rows: Sequence[TableRow], names: Sequence[str] | None) -> list[TableRow]:
    """Returns the rows with these names or groups, and base, in the order of the table."""
    groups = {row.name.partition("_")[0] for row in rows}
    for name in names or ():
        if name not in groups | {row.name for row in rows}:
            raise InputError(
                f"The table lacks the row {name!r}. Choose a group ({', '.join(sorted(groups))}) "
                f"or a row ({', '.join(row.name for row in rows)})."
            )
    wanted = {*(names or groups), "base"}
    return [row for row in rows if {row.name, row.name.partition("_")[0]} & wanted]


def run_table2(
    data_dir: str | Path,
    work_dir: str | Path,
    test: EvaluationSet,
    *,
    settings: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
    tokenize: str | None = None,
    max_minutes: float | None = None,
) -> tuple[str, dict[str, Any]]:
    """Trains the architectures of Table 2, and scores their best weights on a test set."""
    settings, data_dir = settings or {}, Path(data_dir)
    Config().updated({k: v for k, v in settings.items() if not k.startswith("model.")})
    rows = table2(settings)
    stores = [TokenStore(data_dir / part).fingerprint for part in ("train", "valid")]
    content = json.dumps([stores, [test.sources, test.references], tokenize], sort_keys=True)
    models = {
        row.name: {"architecture": row.architecture, "settings": row.settings} for row in rows
    }
    data_and_test = hashlib.sha256(content.encode()).hexdigest()
    identity = {"data and test": data_and_test, "models": models}
    job: dict[str, Any] = {"data_dir": data_dir, "preset": None, "weights": "best", "test": test}
    job["scoring"] = {"tokenize": tokenize}
    return _run(rows, names, Path(work_dir), identity, job, max_minutes)


def run_table3(  # noqa: PLR0913  each is a flag of the command
    data_dir: str | Path,
    work_dir: str | Path,
    *,
    preset_base: str = "tiny",
    settings: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
    tokenize: str | None = None,
    lowercase: bool = False,
    max_minutes: float | None = None,
    workers: Workers = 1,
) -> tuple[str, dict[str, Any]]:
    """Trains the rows of Table 3, and scores their last weights on the validation set."""
    data_dir, vocabulary = Path(data_dir), Vocabulary.load(data_dir)
    stores = {part: TokenStore(data_dir / part) for part in ("train", "valid")}
    rows = table3(preset_base, settings or {}, vocabulary)
    base, references = rows[0].config or Config(), stores["valid"].target.text()
    tokenize = tokenize or metrics.choose_tokenizer(references)
    scoring = {"tokenize": tokenize, "lowercase": lowercase}
    identity = {
        "preset_base": preset_base,
        # Defaults are left out, so that a new field of the configuration changes nothing.
        "base": differences(Config(), base),
        "rows": {row.name: differences(base, row.config or base) for row in rows},
        "data": {
            "vocabulary": vocabulary.fingerprint,
            **{part: store.fingerprint for part, store in stores.items()},
        },
        "bleu": scoring,
    }
    test = EvaluationSet([references], stores["valid"].source.text())
    job: dict[str, Any] = {"data_dir": data_dir.absolute(), "preset": preset_base}
    job |= {"weights": "last", "test": test, "scoring": scoring}
    return _run(rows, names, Path(work_dir), identity, job, max_minutes, workers)


def _run(
    rows: Sequence[TableRow],
    names: Sequence[str] | None,
    work_dir: Path,
    identity: Mapping[str, Any],
    job: Mapping[str, Any],
    max_minutes: float | None,
    workers: Workers = 1,
) -> tuple[str, dict[str, Any]]:
    """Trains rows one after the other, each in a process, and shows all results after each.

    The same call resumes after an interruption, even in the middle of a row. A row that diverges is
    a result, except for base. A script that calls this function needs the line
    `if __name__ == "__main__":`.
    """
    chosen = chosen_rows(rows, names)
    metrics.evaluate(["a"], ["a"], **job["scoring"])  # refuses an unknown tokenizer
    table = experiment.Experiment(work_dir, identity, max_minutes=max_minutes, in_processes=True)
    table.start()
    experiment.write_lines(work_dir / "reference", job["test"].references[0])

    def results() -> tuple[str, dict[str, Any]]:
        """Writes the results of this call and of earlier ones."""
        records = table.records()
        found = {row.name: records.get(row.same_as or row.name, {}) for row in rows}
        shown = [row for row in rows if row in chosen or row.name in records]
        found = {row.name: found[row.name] for row in shown}
        text = markdown(shown, found)
        write_text(work_dir / report.TABLE, text)
        draw(shown, found, work_dir / report.CHART)
        finished = all(record.get("finished") for record in found.values())
        return text, {"finished": finished, "rows": found}

    wanted = {row.same_as or row.name for row in chosen}  # equal rows are trained once
    jobs = [
        experiment.Row(row.name, train_row, (row, job), row.title or "the base")
        for row in rows
        if row.name in wanted
    ]
    table.run_all(jobs, lambda: log.info("\n%s", results()[0]), workers)
    text, found = results()
    if not found["finished"]:
        log.info("Not finished. The same command resumes.")
    return text, found


def train_row(
    directory: Path, max_minutes: float | None, row: TableRow, job: Mapping[str, Any]
) -> dict[str, Any]:
    """Trains or resumes a row, and scores its weights, in a process without TensorFlow."""
    load_tensorflow()  # the parent process must not hold the GPU
    from keras_transformer.extensions.paper import baselines  # noqa: F401  registers them
    from keras_transformer.inference import loading, scoring, translate
    from keras_transformer.inference.engine import KerasEngine
    from keras_transformer.models.encoder_decoder import get_architecture
    from keras_transformer.runs.run_directory import RunDirectory

    architecture = get_architecture(row.architecture)
    try:
        trained, run = experiment.train(
            directory, max_minutes, job["data_dir"], job["preset"], row.settings,
            architecture=architecture,
        )  # fmt: skip
    except DivergedError as error:
        if row.name == "base":
            raise
        warn(f"{row.name}: {error}")  # the other rows follow
        config = RunDirectory(directory / "run", architecture.run_config).config
        parameters = config.model.num_parameters()
        return {"finished": True, "diverged": str(error), "parameters": parameters}
    except InputError as error:
        raise InputError(f"{error} To leave out this row, name the others.") from error
    if not trained.finished:
        return {"finished": False, "steps": trained.step}
    run.select("best" if job["weights"] == "best" and run.best_checkpoints() else "last")
    translator = loading.load_translator(run)
    model = KerasEngine(translator, str(run.path))
    sources, references = job["test"].sources, job["test"].references[0]
    log.info("Translating %d sentences.", len(references))
    hypotheses = [best.text for best, *_ in translate.translate_lines(model, sources)]
    experiment.write_lines(directory / "translations", hypotheses)
    scores = metrics.evaluate(hypotheses, job["test"], **job["scoring"])
    pairs = scoring.score_pairs(scoring.Scorer(translator), sources, references)
    store = TokenStore(job["data_dir"] / "train")
    flop = training_flop(run.config.model, store.source.lengths, store.target.lengths)
    return {
        "finished": True,
        **experiment.costs(trained, run),
        "weights": run.selected,
        **scores.fields(),
        "perplexity": scoring.perplexity(pairs),
        "flop": flop / int(store.target.lengths.sum()) * trained.metrics["tokens"],
    }


def training_flop(config: Any, source: Any, target: Any) -> float:
    """Returns the FLOP of one epoch, from the tokens of each source and target, `[pairs]`.

    A multiplication counts as two, and a backward pass as two forward passes. Only matrix products
    of real tokens count. Good batching avoids padding, and other operations (softmax, tanh, layer
    norm, embedding lookups) are a small part.
    """
    source, target = np.asarray(source, np.int64), np.asarray(target, np.int64)
    if isinstance(config, ModelConfig):
        return 6.0 * _transformer_multiplications(config, source, target)
    return 6.0 * config.multiplications(source, target)


def _transformer_multiplications(c: ModelConfig, source: Any, target: Any) -> int:
    s, t, d = int(source.sum()), int(target.sum()), c.d_model
    keys, values = c.num_heads * (c.key_dim or 0), c.num_heads * (c.value_dim or 0)

    def attention(queries: int, memory: int, pairs: Any) -> int:
        weights = queries * d * keys + memory * d * (keys + values) + queries * values * d
        return weights + int(pairs.sum()) * (keys + values)

    # Each position of the target attends to itself and to earlier positions.
    causal = target * (target + 1) // 2
    encoder = attention(s, s, source * source) + 2 * s * d * c.d_ff
    own = 2 * t * d * d if c.decoder_self_attention == "ssru" else attention(t, t, causal)
    decoder = own + attention(t, s, source * target)
    decoder += 2 * t * d * c.decoder_sizes.d_ff
    layers = c.num_encoder_layers * encoder + c.num_decoder_layers * decoder
    return layers + t * d * c.target_vocab_size


def markdown(rows: Sequence[TableRow], records: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the results in Markdown, next to the published figures.

    Columns of settings are blank where they equal the first row, as in the paper.
    """
    base = rows[0]
    cells = []
    for row in rows:
        record, config = records[row.name], row.config
        parameters = config.model.num_parameters() if config else record.get("parameters", 0)
        shown = {"row": row.name, "change": row.title}
        if config and base.config:
            first = columns(base.config)
            shown |= {
                name: value if row is base or value != first[name] else ""
                for name, value in columns(config).items()
            }
        shown |= {
            "10⁶": f"{parameters / 1e6:.{2 if parameters < 1e7 else 0}f}",
            "minutes": _number(record.get("training_minutes"), ".1f"),
            "FLOP": _number(record.get("flop"), ".2e"),
            "PPL": "diverged" if "diverged" in record else _number(record.get("perplexity"), ".2f"),
            "BLEU": _number(record.get("bleu"), ".1f"),
            "published: PPL": _number(row.published.get("perplexity"), ".2f"),
            "published: BLEU": _number(row.published["bleu"], ".1f"),
            "published: 10⁶": _number(row.published.get("millions"), "d"),
        }
        sides = {"Δ": (record, records[base.name]), "published: Δ": (row.published, base.published)}
        for side, (own, of_base) in sides.items():
            for name, key, form in (("PPL", "perplexity", "+.2f"), ("BLEU", "bleu", "+.1f")):
                delta = _delta(own, of_base, key)
                shown[f"{side}{name}"] = "" if row is base else _number(delta, form)
        cells.append(shown)
    return report.table(cells, _notes(rows, records))


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def _delta(own: Mapping[str, Any], base: Mapping[str, Any], key: str) -> float | None:
    """Returns the difference of a figure from base, or None if one of both is not known."""
    known = own.get(key) is not None and base.get(key) is not None
    return round(own[key] - base[key], 4) + 0.0 if known else None


def _notes(rows: Sequence[TableRow], records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    notes = [
        "PPL: per token of this vocabulary, without label smoothing; 10⁶: parameters, in millions; "
        f"Δ: minus {rows[0].name}. Each row is one run, so a small difference may be chance. "
        "Published figures are of other data, tokens and sizes."
    ]
    notes += [f"Blank cells equal {rows[0].name}."] * (rows[0].config is not None)
    notes += sorted({record["signature"] for record in records.values() if "signature" in record})
    notes += [
        f"{row.name} equals {row.same_as} on this base, and is the same run."
        for row in rows
        if row.same_as
    ]
    for name, record in records.items():
        if "diverged" in record:
            notes.append(f"{name} diverged: {record['diverged']}")
        elif not record.get("finished"):
            notes.append(f"{name} is not finished.")
    return [*notes, *report.mixed_origins(records)]


def draw(rows: Sequence[TableRow], records: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draws BLEU minus BLEU of the first row, here and published, and the cost of training."""
    base = rows[0]
    names = [
        f"{row.name}, diverged" if "diverged" in records[row.name] else row.name for row in rows
    ]
    bleu = {
        "here": [_delta(records[row.name], records[base.name], "bleu") for row in rows],
        "published": [_delta(row.published, base.published, "bleu") for row in rows],
    }
    flop = {"here": [records[row.name].get("flop") for row in rows]}
    report.draw(path, names, {f"BLEU minus BLEU of {base.name}": bleu, "training FLOP": flop})
