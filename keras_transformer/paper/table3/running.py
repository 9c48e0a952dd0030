"""Trains a table row by row, and shows after each what has been found so far.

sweep.json           which table, base and data the directory is of
base/run/            the run of a row, with its report
base/results.json    what was found of it, and how that came about
base/translations    of the validation set; its lines as they should be are in `reference`
reference
results.json         all rows that were asked for or are finished
table.txt, table.md  the same to be read, and
delta_bleu.svg       as a picture
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from keras_transformer.config import Config
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import DivergedError, InputError
from keras_transformer.evaluation import metrics
from keras_transformer.paper import child_process as process
from keras_transformer.paper.table3 import printed
from keras_transformer.paper.table3.chart import delta_chart
from keras_transformer.paper.table3.row import Job, train_and_score
from keras_transformer.paper.table3.tables import TABLES, Row, Table, columns, differences, fields
from keras_transformer.runs.atomic import write_text
from keras_transformer.runs.results import (
    read_results,
    run_metadata,
    write_lines,
    write_results,
)
from keras_transformer.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)


def run_sweep(
    table: str,
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
    """Trains the rows of a table one after the other, each in a process of its own.

    What is done already is not done again, so the same call continues after a stop, in the middle
    of a row too, and one that names other rows adds to what is there. A row other than base that
    diverges is a result, too. A script that calls it needs the line `if __name__ == "__main__":`.

    Args:
        table: one of `TABLES`.
        data_dir: what `prepare` wrote; its validation set is what rows are scored on.
        work_dir: where everything is written.
        preset_base: name of the configuration that rows differ from.
        settings: what differs from it, in all rows.
        names: of rows or their groups, as in `("A", "B_dk16")`; all where there are none. Base
            is always one of them.
        tokenize: sacreBLEU's tokenizer; "none" takes text as it is.
        lowercase: whether BLEU ignores case.
        max_minutes: end this call's training after so long, to be continued.

    Returns:
        What is in results.json: `_assemble` says it.

    Raises:
        InputError: for flags or data that do not fit together, a `work_dir` of something else,
            and a row that cannot be trained.
        KeyboardInterrupt: after Ctrl-C or SIGTERM; the run of the row has a checkpoint.
    """
    if max_minutes is not None and not max_minutes > 0:
        raise InputError(f"max_minutes is {max_minutes}; expected more than 0")
    data_dir, work_dir = Path(data_dir), Path(work_dir)
    vocabulary = Vocabulary.load(data_dir)
    stores = {part: TokenStore(data_dir / part) for part in ("train", "valid")}
    made = TABLES[table](preset_base, settings or {}, vocabulary)
    chosen = made.chosen(names)
    metrics.evaluate(["a"], ["a"], tokenize=tokenize, lowercase=lowercase)  # knows the tokenizer
    identity = {
        **_identity(made),
        "data": {
            "vocabulary": vocabulary.fingerprint,
            **{part: store.fingerprint for part, store in stores.items()},
        },
        "bleu": {"tokenize": tokenize, "lowercase": lowercase},
    }
    try:
        _open(work_dir, identity)
        write_lines(work_dir / "reference", stores["valid"].target_text())
        job = Job(data_dir, work_dir, preset_base, {}, tokenize, lowercase, None)
        return _Sweep(made, chosen, work_dir, job, max_minutes).run()
    except OSError as error:  # what modules below write, they tell of themselves
        raise InputError(
            f"{work_dir} cannot be written ({error}); once it can, the same command continues"
        ) from error


def _identity(table: Table) -> dict[str, Any]:
    """What tells a table from every other: its base, and what differs from it in each row."""
    base = table.base.config
    return {
        "table": table.name,
        "preset_base": table.preset_base,
        "base": fields(base),
        "rows": {row.name: differences(base, row.config) for row in table.rows},
    }


def _open(work_dir: Path, identity: Mapping[str, Any]) -> None:
    """Makes the directory of a sweep, or raises `InputError` where it is of something else."""
    path = work_dir / "sweep.json"
    found = read_results(path)
    if isinstance(found.get("base"), dict):  # it may be of a version that had fewer settings
        found["base"] = {**fields(Config()), **found["base"]}
    # A kill may have left parts of a sweep.json.
    if (
        not found
        and work_dir.exists()
        and any(not each.match("sweep.*tmp") for each in work_dir.iterdir())
    ):
        raise InputError(f"{work_dir} exists and is of no sweep; expected a new or empty directory")
    if found and (difference := _difference(found, identity)):
        raise InputError(
            f"{path} is of a sweep with {difference}; expected the flags and the data that it "
            "began with, or another directory"
        )
    work_dir.mkdir(parents=True, exist_ok=True)
    write_results(path, identity)


def _difference(found: Any, expected: Any, place: str = "") -> str | None:
    """Names the first value that differs between JSON objects."""
    if not (isinstance(found, dict) and isinstance(expected, dict)):
        return None if found == expected else f"{place} {found!r}, not {expected!r}"
    for key in dict.fromkeys([*expected, *found]):
        below = f"{place}: {key}" if place else key
        if difference := _difference(found.get(key), expected.get(key), below):
            return difference
    return None


def _finished(path: Path) -> dict[str, Any]:
    """Returns what was found of a row, or nothing where it is not finished."""
    found = read_results(path)
    if not found or isinstance(found.get("diverged"), str):
        return found
    numbers, words = ("perplexity", "bleu", "minutes"), ("signature", "precision")
    if not (
        all(type(found.get(name)) in (int, float) for name in numbers)
        and all(isinstance(found.get(name), str) for name in words)
    ):
        raise InputError(
            f"{path} lacks {', '.join(numbers)}, {' or '.join(words)}; expected what a finished "
            "row leaves, or no such file"
        )
    return found


class _Sweep:
    """Some rows of a table in a directory that is the sweep's."""

    def __init__(
        self,
        table: Table,
        chosen: Sequence[Row],
        work_dir: Path,
        job: Job,
        max_minutes: float | None,
    ) -> None:
        self._table = table
        self._chosen = chosen
        # Those that come out equal are trained once.
        trained = {row.same_as or row.name for row in chosen}
        self._trained = [row for row in table.rows if row.name in trained]
        self._work_dir = work_dir
        self._job = job
        self._deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
        self._found = {
            row.name: found
            for row in table.rows  # those of earlier calls, too
            if (found := _finished(work_dir / row.name / "results.json"))
        }

    def run(self) -> dict[str, Any]:
        """Trains what is left to train; returns the results."""
        results = self._write()
        for number, row in enumerate(self._trained, start=1):
            if row.name in self._found:
                continue
            if self._deadline is not None and time.monotonic() >= self._deadline:
                break
            log.info("\n%s", printed.text(results))
            log.info(
                "row %d of %d: %s (%s); %s",
                number, len(self._trained), row.name, row.rule or "the base", self._time_left(),
            )  # fmt: skip
            if not self._do(row):
                break
            results = self._write()
        if not results["finished"]:
            log.info("not finished: the same command continues")
        return results

    def _do(self, row: Row) -> bool:
        """Trains and scores a row; returns whether it is finished."""
        directory = self._work_dir / row.name
        left = None
        if self._deadline is not None:
            left = max(1e-9, (self._deadline - time.monotonic()) / 60)
        job = self._job._replace(
            run_dir=directory / "run", settings=self._table.settings(row), max_minutes=left
        )
        try:
            found = process.call(train_and_score, job)
        except InputError as error:
            if row.name == self._table.base.name:
                raise InputError(f"row {row.name}: {error}") from error
            if not isinstance(error, DivergedError):
                raise InputError(f"row {row.name}: {error} (--rows can leave it out)") from error
            # A result, too, and no reason to leave out the others.
            log.warning("row %s: %s", row.name, error)
            found = {"finished": True, "diverged": str(error)}
        if not found["finished"]:
            return False
        if "translations" in found:
            write_lines(directory / "translations", found.pop("translations"))
        self._found[row.name] = {"row": row.name, **found, **run_metadata()}
        write_results(directory / "results.json", self._found[row.name])
        return True

    def _time_left(self) -> str:
        """Says how long all that is left will take, by what the rows so far have taken."""
        done = [row for row in self._table.rows if "minutes" in self._found.get(row.name, {})]
        if not done:
            return "time left in all is known after the first row"
        minutes = sum(self._found[row.name]["minutes"] for row in done)
        left = sum(row.cost for row in self._trained if row.name not in self._found)
        seconds = 60 * minutes * left / sum(row.cost for row in done)
        return f"about {tqdm.format_interval(seconds)} left in all, this row included"

    def _write(self) -> dict[str, Any]:
        """Writes what is known so far, and returns it."""
        shown = [row for row in self._table.rows if row in self._chosen or row.name in self._found]
        results = _assemble(self._table, shown, self._found)
        write_results(self._work_dir / "results.json", results)
        write_text(self._work_dir / "table.txt", printed.text(results))
        write_text(self._work_dir / "table.md", printed.markdown(results))
        if len(results["rows"]) > 1:
            write_text(self._work_dir / "delta_bleu.svg", delta_chart(results))
        return results


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
        "table": table.name,
        "title": table.title,
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
