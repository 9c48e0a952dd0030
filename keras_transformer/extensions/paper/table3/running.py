"""Trains the paper's Table 3 row by row, and shows it after each row.

experiment.json      rows, base and data
base/run/            the run of a row, with its report
base/results.json    its results and settings
base/translations    translations of the validation set
reference            references of the validation set
results.json         all requested or finished rows
table.md             the same as a table
chart.svg            the same as a chart
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.config import Config
from keras_transformer.console import duration, warn
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import DivergedError, InputError
from keras_transformer.evaluation import metrics
from keras_transformer.extensions.paper import experiment
from keras_transformer.extensions.paper.experiment import (
    RESULTS,
    Deadline,
    Trial,
    open_experiment,
    results_of,
    run_trials,
)
from keras_transformer.extensions.paper.report import CHART, TABLE
from keras_transformer.extensions.paper.results import write_lines, write_results
from keras_transformer.extensions.paper.table3 import printed
from keras_transformer.extensions.paper.table3.tables import (
    Row,
    Table,
    columns,
    differences,
    table3,
)
from keras_transformer.runs.atomic import write_text
from keras_transformer.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)


def run_table3(
    data_dir: str | Path,
    work_dir: str | Path,
    *,
    preset_base: str = "tiny",
    settings: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
    tokenize: str | None = None,
    lowercase: bool = False,
    max_minutes: float | None = None,
) -> dict[str, Any]:
    """Trains the rows of Table 3 one after the other, each in a separate process.

    The same call resumes after an interruption, even in the middle of a row. Other rows are added
    to the existing results. A row that diverges is a result, except for base. A script that calls
    this function needs the line `if __name__ == "__main__":`.
    """
    deadline = Deadline(max_minutes)
    data_dir, work_dir = Path(data_dir), Path(work_dir)
    vocabulary = Vocabulary.load(data_dir)
    stores = {part: TokenStore(data_dir / part) for part in ("train", "valid")}
    table = table3(preset_base, settings or {}, vocabulary)
    chosen = table.chosen(names)
    tokenize = tokenize or metrics.choose_tokenizer(stores["valid"].target_text())
    bleu = {"tokenize": tokenize, "lowercase": lowercase}
    metrics.evaluate(
        ["a"], ["a"], tokenize=tokenize, lowercase=lowercase
    )  # refuses an unknown tokenizer
    identity = {
        "preset_base": preset_base,
        # Defaults are left out, so that a new field of the configuration changes nothing.
        "base": differences(Config(), table.base.config),
        "rows": {row.name: differences(table.base.config, row.config) for row in table.rows},
        "data": {
            "vocabulary": vocabulary.fingerprint,
            **{part: store.fingerprint for part, store in stores.items()},
        },
        "bleu": bleu,
    }
    trials = {
        row.name: Trial(
            row.name,
            _train_row,
            (data_dir, preset_base, table.settings(row), bleu),
            title=row.rule or "the base",
            facts={"row": row.name},
            in_child=True,
        )
        for row in table.rows
        if row.same_as is None  # equal rows are trained once
    }

    def write() -> dict[str, Any]:
        """Writes the results of this call and of earlier ones."""
        found = _finished(results_of(trials.values(), work_dir), work_dir)
        shown = [row for row in table.rows if row in chosen or row.name in found]
        results = _assemble(table, shown, found)
        write_results(work_dir / RESULTS, results)
        write_text(work_dir / TABLE, printed.markdown(results))
        if len(results["rows"]) > 1:
            printed.draw(results, work_dir / CHART)
        return results

    with open_experiment(work_dir, identity):
        write_lines(work_dir / "reference", stores["valid"].target_text())
        results = write()
        wanted = {row.same_as or row.name for row in chosen}
        to_run = [trial for name, trial in trials.items() if name in wanted]

        def report(found: Mapping[str, Mapping[str, Any]]) -> None:
            log.info("\n%s", printed.markdown(write()))
            log.info(time_left([trial.name for trial in to_run], found))

        if not results["finished"]:
            run_trials(to_run, work_dir, deadline, report)
            results = write()
    if not results["finished"]:
        log.info("Not finished. The same command resumes.")
    return results


def time_left(names: Sequence[str], found: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a status line with the time that the remaining rows will take."""
    finished = [name for name in names if found.get(name, {}).get("finished")]
    minutes = [found[name]["minutes"] for name in finished if "minutes" in found[name]]
    line = f"{len(finished)} of {len(names)} rows are finished."
    if minutes and len(finished) < len(names):
        left = statistics.mean(minutes) * (len(names) - len(finished))
        line += f" About {duration(60 * left)} left."
    return line


def _train_row(
    directory: Path,
    max_minutes: float | None,
    data_dir: Path,
    preset_base: str,
    settings: Mapping[str, Any],
    bleu: Mapping[str, Any],
) -> dict[str, Any]:
    """Trains or resumes a row, and scores its last weights on the validation set.

    It is the function of a `Trial`, in a process without TensorFlow.
    """
    is_base = directory.name == "base"
    try:
        trained, run = experiment.train(
            directory, max_minutes, data_dir, settings, preset_name=preset_base
        )
    except DivergedError as error:
        if is_base:
            raise
        # A diverged row is a result, too. The other rows follow.
        warn(f"{directory.name}: {error}")
        return {"finished": True, "diverged": str(error)}
    except InputError as error:
        if is_base:
            raise
        raise InputError(f"{error} To leave out this row, use --rows.") from error
    if not trained.finished:
        return {"finished": False, "steps": trained.step}
    from keras_transformer.inference import loading, translate

    store = TokenStore(data_dir / "valid")
    model = loading.load_model(run.path)
    scored = translate.evaluate(model, store.source_text(), store.target_text(), **bleu)
    log.info(scored.summary())
    write_lines(directory / "translations", scored.hypotheses)
    return {
        "finished": True,
        **experiment.costs(trained, run),
        "perplexity": round(trained.metrics["val_perplexity"], 4),
        "bleu": round(scored.scores.bleu, 2),
        "signature": scored.scores.signature,
        "minutes": round((trained.metrics["training_seconds"] + scored.seconds) / 60, 1),
        "precision": trained.precision,
    }


def _finished(found: Mapping[str, dict[str, Any]], work_dir: Path) -> dict[str, dict[str, Any]]:
    """Returns the results of finished rows. Refuses those without a field of the table."""
    finished = {name: row for name, row in found.items() if row.get("finished")}
    needed = {"perplexity", "bleu", "minutes", "signature", "precision"}
    for name, row in finished.items():
        if "diverged" not in row and not needed <= row.keys():
            raise InputError(
                f"{work_dir / name / RESULTS} lacks {', '.join(sorted(needed - row.keys()))}, so "
                "it is not the result of a finished row. Delete or repair it."
            )
    return finished


def _assemble(
    table: Table, shown: Sequence[Row], found: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns the results of a table.

    `rows` has an entry for each row by name. `columns`, `rule`, `same_as` and `parameters` describe
    it. `perplexity`, `bleu` and their `difference` from base are None until they are known. `paper`
    has the same figures and `columns` of the paper. `run` has all results of the row. A row that
    has diverged has the reason as `diverged`, and no figures.
    """
    base = found.get(table.base.name)
    rows = {}
    for row in shown:
        own = found.get(row.same_as or row.name)
        rows[row.name] = {
            "columns": columns(row.config),
            "rule": row.rule,
            "same_as": row.same_as,
            "parameters": row.config.model.num_parameters(),
            **_figures(own, base),
            "paper": {
                **_figures(row.paper._asdict(), table.base.paper._asdict()),
                "millions": row.paper.millions,
                "columns": columns(row.original),
            },
            "run": own,
        }
    decoding = table.base.config.decoding
    return {
        "table": "table3",
        "title": "Table 3",
        "preset_base": table.preset_base,
        "beam_size": decoding.beam_size,
        "length_penalty": decoding.length_penalty,
        "finished": all(row["run"] for row in rows.values()),
        "rows": rows,
    }


def _figures(
    row: Mapping[str, Any] | None, base: Mapping[str, Any] | None
) -> dict[str, float | None | dict[str, float | None]]:
    """Returns perplexity and BLEU of a row, and their differences from base."""
    own, of_base = (
        {name: (found or {}).get(name) for name in ("perplexity", "bleu")} for found in (row, base)
    )
    difference = {
        name: None if value is None or of_base[name] is None else round(value - of_base[name], 4)
        for name, value in own.items()
    }
    return {**own, "difference": difference}
