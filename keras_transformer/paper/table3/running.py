"""Trains the paper's Table 3 row by row, and shows it after each.

experiment.json      the rows, the base and the data that the directory is of
base/run/            the run of a row, with its report
base/results.json    its results, and how they came about
base/translations    of the validation set; its lines as they should be are in `reference`
reference
results.json         all rows that were asked for or are finished
table.txt, table.md  the same to be read, and
delta_bleu.svg       as a picture
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.config import Config
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import DivergedError, InputError
from keras_transformer.evaluation import metrics
from keras_transformer.paper.experiment import (
    RESULTS,
    Deadline,
    Trial,
    begun,
    check_converged,
    results_of,
    run_trials,
)
from keras_transformer.paper.table3 import printed
from keras_transformer.paper.table3.chart import delta_chart
from keras_transformer.paper.table3.tables import Row, Table, columns, differences, table3
from keras_transformer.runs.atomic import write_text
from keras_transformer.runs.results import write_lines, write_results
from keras_transformer.text.vocabulary import Vocabulary
from keras_transformer.tf_import import load_tensorflow

log = logging.getLogger(__name__)


def run_table3(
    data_dir: str | Path,
    work_dir: str | Path,
    *,
    preset_base: str = "tiny",
    settings: Mapping[str, Any] | None = None,
    names: Sequence[str] = (),
    tokenize: str = "13a",
    lowercase: bool = False,
    max_minutes: float | None = None,
) -> dict[str, Any]:
    """Trains the rows of Table 3 one after the other, each in a separate process.

    What is done already is not done again, so the same call continues after a stop, in the middle
    of a row too, and one that names other rows adds to what is there. A row other than base that
    diverges is a result, too. A script that calls it needs the line `if __name__ == "__main__":`.

    Args:
        data_dir: output of `prepare`; rows are scored on its validation set.
        work_dir: where everything is written.
        preset_base: name of the configuration that rows differ from.
        settings: what differs from it, in all rows.
        names: of rows or their groups, as in `("A", "B_dk16")`; all where there are none. Base
            is always one of them.
        tokenize: sacreBLEU's tokenizer; "none" takes text as it is.
        lowercase: whether BLEU ignores case.
        max_minutes: end this call's training after so long, to be continued.

    Returns:
        The content of results.json, as `_assemble` describes it.

    Raises:
        InputError: for flags or data that do not fit together, a `work_dir` of something else,
            and a row that cannot be trained.
        KeyboardInterrupt: after Ctrl-C or SIGTERM; the run of the row has a checkpoint.

    Example:
    >>> run_table3("build/data", "build/table3", names=["A", "B_dk16"])  # doctest: +SKIP
    """
    deadline = Deadline(max_minutes)
    data_dir, work_dir = Path(data_dir), Path(work_dir)
    vocabulary = Vocabulary.load(data_dir)
    stores = {part: TokenStore(data_dir / part) for part in ("train", "valid")}
    table = table3(preset_base, settings or {}, vocabulary)
    chosen = table.chosen(names)
    bleu = {"tokenize": tokenize, "lowercase": lowercase}
    metrics.evaluate(["a"], ["a"], tokenize=tokenize, lowercase=lowercase)  # knows the tokenizer
    identity = {
        "preset_base": preset_base,
        # Without defaults, so that a new setting of configurations changes nothing.
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
            train_and_score,
            (data_dir, preset_base, table.settings(row), bleu),
            title=row.rule or "the base",
            facts={"row": row.name},
            in_child=True,
        )
        for row in table.rows
        if row.same_as is None  # those that come out equal are trained once
    }

    def write() -> dict[str, Any]:
        """Writes the results of this call and of earlier ones."""
        found = _finished(results_of(trials.values(), work_dir), work_dir)
        shown = [row for row in table.rows if row in chosen or row.name in found]
        results = _assemble(table, shown, found)
        write_results(work_dir / RESULTS, results)
        write_text(work_dir / "table.txt", printed.text(results))
        write_text(work_dir / "table.md", printed.markdown(results))
        if len(results["rows"]) > 1:
            write_text(work_dir / "delta_bleu.svg", delta_chart(results))
        return results

    with begun(work_dir, identity):
        write_lines(work_dir / "reference", stores["valid"].target_text())
        results = write()
        wanted = {row.same_as or row.name for row in chosen}
        to_run = [trial for name, trial in trials.items() if name in wanted]
        if not results["finished"]:
            run_trials(
                to_run, work_dir, deadline, lambda _: log.info("\n%s", printed.text(write()))
            )
            results = write()
    if not results["finished"]:
        log.info("not finished: the same command continues")
    return results


def train_and_score(
    directory: Path,
    max_minutes: float | None,
    data_dir: Path,
    preset_base: str,
    settings: Mapping[str, Any],
    bleu: Mapping[str, Any],
) -> dict[str, Any]:
    """Trains a row, or continues to, and scores its last weights on the validation set.

    It is the function of a `Trial`, in a process that has no TensorFlow yet.

    Args:
        directory: directory of the row.
        max_minutes: stop training after so long, to be continued.
        data_dir: prepared data.
        preset_base: the configuration to begin with.
        settings: what differs from it.
        bleu: how translations are scored.

    Returns:
        `finished`, `steps`, and if it is finished `perplexity` (per wordpiece, by the true labels
        only), `bleu` and its `signature`, `parameters`, `minutes` of training and scoring,
        `precision`, `tokens_per_second` and `peak_memory_mb`; or how it has `diverged`.

    Raises:
        InputError: if the run cannot be continued, or base has diverged.
        KeyboardInterrupt: if training was interrupted; its checkpoint is written.
    """
    load_tensorflow()  # here: the process that starts others must not hold the GPU they need
    from keras_transformer.inference import evaluate, loading
    from keras_transformer.runs.run_directory import RunDirectory
    from keras_transformer.training import training_run

    is_base = directory.name == "base"
    run_dir = directory / "run"
    try:
        trained = training_run.train(
            data_dir,
            run_dir,
            preset_base,
            settings,
            training_run.TrainOptions(max_minutes=max_minutes),
        )
        log.info(trained.summary(run_dir))
        if trained.interrupted:
            raise KeyboardInterrupt
        if not trained.finished:
            return {"finished": False, "steps": trained.step}
        run = RunDirectory(run_dir)
        check_converged(run, trained.step)
    except DivergedError as error:
        if is_base:
            raise
        # A result, too, and no reason to leave out the others.
        log.warning("%s: %s", directory.name, error)
        return {"finished": True, "diverged": str(error)}
    except InputError as error:
        if is_base:
            raise
        raise InputError(f"{error} (--rows can leave it out)") from error
    store = TokenStore(data_dir / "valid")
    model = loading.load_model(run.path)
    scored = evaluate.evaluate(model, store.source_text(), store.target_text(), **bleu)
    log.info(scored.summary())
    write_lines(directory / "translations", scored.hypotheses)
    cost = trained.metrics
    return {
        "finished": True,
        "steps": trained.step,
        "perplexity": round(cost["val_perplexity"], 4),
        "bleu": round(scored.scores.bleu, 2),
        "signature": scored.scores.signature,
        "parameters": run.config.model.num_parameters(),
        "minutes": round((cost["training_seconds"] + scored.seconds) / 60, 1),
        "precision": trained.precision,
        "tokens_per_second": round(trained.tokens_per_second),
        "peak_memory_mb": round(cost["peak_memory_mb"]),
    }


def _finished(found: Mapping[str, dict[str, Any]], work_dir: Path) -> dict[str, dict[str, Any]]:
    """Returns the results of the rows that are finished; each has all that the table shows."""
    finished = {name: row for name, row in found.items() if row.get("finished")}
    needed = {"perplexity", "bleu", "minutes", "signature", "precision"}
    for name, row in finished.items():
        if "diverged" not in row and not needed <= row.keys():
            raise InputError(
                f"{work_dir / name / RESULTS} lacks {', '.join(sorted(needed - row.keys()))}; "
                "expected the results of a finished row, or no such file"
            )
    return finished


def _assemble(
    table: Table, shown: Sequence[Row], found: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns the results of a table.

    `rows` has for each row, by name: its `columns`, `rule`, `same_as` and `parameters`;
    `perplexity`, `bleu` and, of both, the `difference` from base, or None where they are not known
    yet; the same and the `columns` of the `paper`; and `run`, all that was found of it: of a row
    that has diverged how, as `diverged`, and no figures.
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
    """Perplexity and BLEU of a row, and their differences from base."""
    own, of_base = (
        {name: (found or {}).get(name) for name in ("perplexity", "bleu")} for found in (row, base)
    )
    difference = {
        name: None if value is None or of_base[name] is None else round(value - of_base[name], 4)
        for name, value in own.items()
    }
    return {**own, "difference": difference}
