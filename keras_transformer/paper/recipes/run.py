"""Follows a recipe: prepares, trains, chooses on validation, exports, and scores the export.

data/                the prepared text; text/ with its parts where some are held out
writers/KIND/        the same again of the recipe whose model writes one side of pairs of a kind
synthetic/KIND/      pairs of which a model has written one side, where the recipe asks for them
seed-1/run/          a run, with its report
seed-1/export/1/     the SavedModel of its best weights
seed-1/results.json  scores of the export on each test, and how they came about
ensemble/            likewise, of the runs of several seeds together
tests/               the sources and references that are scored
results.json         those of the seeds that were last asked for, and how far apart they are
recipe.json          which recipe and which variant of it the directory is of, and whose writers
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from keras_transformer.data.corpora.corpus import Corpus
from keras_transformer.data.preparation.pipeline import PrepareOptions
from keras_transformer.data.preparation.prepare import prepare
from keras_transformer.errors import DivergedError, InputError
from keras_transformer.evaluation import metrics
from keras_transformer.paper.recipes.models import RecipeModels
from keras_transformer.paper.recipes.recipe import Recipe, Synthetic, Writer
from keras_transformer.paper.recipes.results import check_identity, identity, spread
from keras_transformer.paper.recipes.synthetic import (
    check_writer,
    synthetic_pairs,
    writer_fingerprint,
)
from keras_transformer.paper.recipes.texts import Texts
from keras_transformer.runs.report import write_data_page
from keras_transformer.runs.results import circumstances, read_results, write_results

log = logging.getLogger(__name__)


def run_recipe(
    recipe: Recipe,
    corpus_dir: str | Path,
    work_dir: str | Path,
    *,
    seeds: Sequence[int] = (1,),
    synthetic_from: Mapping[Synthetic, str | Path] | None = None,
    writers_dir: str | Path | None = None,
    accumulate_steps: int | None = None,
    max_minutes: float | None = None,
    steps_after: int = 0,
) -> dict[str, Any]:
    """Prepares, and for each seed trains, chooses on validation, exports and scores the export.

    Models that write a recipe's synthetic pairs are trained first, each by its own recipe.
    What is done already is not done again, so the same call continues after a stop, and one
    with more seeds adds to what is there. After a stop by `max_minutes` the call that
    continues exports the next version; `results.json` names it.

    Args:
        recipe: what to follow.
        corpus_dir: directory of the recipe's corpus files.
        work_dir: where everything is written.
        seeds: of one run each; the exports of several are also scored as an ensemble.
        synthetic_from: exports that write kinds of the recipe's synthetic pairs, in place of the
            models that the recipe says: for back-translation one of the other direction.
        writers_dir: where the recipe's own writers are trained, or have been, each in a directory
            of its kind; `work_dir/writers` by default.
        accumulate_steps: parts that a batch is computed in where the recipe's are too large for
            this machine's memory; the result is the same but for rounding and dropout.
        max_minutes: end this call's training after so long; what it has is chosen by the
            validation set and exported, and the next call trains on. Tests are scored when
            training is finished. Where the training is a writer's, there are no results of
            seeds yet.
        steps_after: of trainings that are to follow all these, for the time left that is shown.

    Returns:
        What is in results.json. Its `peak_memory_mb` is of this process so far: of writers that
        it has trained, too.

    Raises:
        InputError: for a corpus that cannot be read, or a `work_dir` of something else.
    """
    work_dir = Path(work_dir)
    _check_seeds(recipe, work_dir, seeds)
    if max_minutes is not None and not max_minutes > 0:
        raise InputError(f"max_minutes is {max_minutes}; expected more than 0")
    given = dict(synthetic_from or {})
    if not given.keys() <= recipe.synthetic.keys():
        raise InputError(
            f"the recipe {recipe.name} has {' and '.join(recipe.synthetic) or 'no synthetic pairs'}"
            f", and --synthetic_from has {' and '.join(given)}; expected only kinds of pairs that "
            "the recipe has"
        )
    try:
        writers = _Writers(recipe, work_dir, Path(writers_dir or work_dir / "writers"), given)
        facts = {**identity(recipe), **writers.facts}
        check_identity(work_dir, facts)
        results = read_results(work_dir / "results.json")
        if results.get("finished") and results.get("seeds", {}).keys() == {str(s) for s in seeds}:
            log.info("%s is finished: %s", work_dir, work_dir / "results.json")
            return results
        # Mistakes show before anything is trained.
        texts = _checked_texts(recipe, corpus_dir, work_dir, before_writers=bool(recipe.synthetic))
        writers.check(corpus_dir)
        work_dir.mkdir(parents=True, exist_ok=True)
        write_results(work_dir / "recipe.json", facts)
        deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
        own_steps = steps_to_train(recipe, work_dir, seeds)
        exports = writers.trained(corpus_dir, accumulate_steps, deadline, own_steps + steps_after)
        if exports is None:
            log.info("the time is over before all writers are trained; the same command continues")
            known = results.get("seeds", {})  # of another call
            results = {**facts, **circumstances(), "finished": False, "seeds": known}
        else:
            results = _run(
                recipe, texts, work_dir, seeds, exports, facts, accumulate_steps, deadline,
                steps_after,
            )  # fmt: skip
        write_results(work_dir / "results.json", results)
        return results
    except OSError as error:  # what modules below write, they tell of themselves
        raise InputError(
            f"the recipe cannot be followed in {work_dir} ({error}); once that is mended, the same "
            "command continues"
        ) from error


def steps_to_train(recipe: Recipe, work_dir: Path, seeds: Sequence[int]) -> int:
    """Returns the steps of the seeds that have no results yet; all of one that is half done."""
    paths = [work_dir / f"seed-{seed}" / "results.json" for seed in seeds]
    to_train = [path for path in paths if not read_results(path).get("finished")]
    return len(to_train) * recipe.config().training.max_steps


def _check_seeds(recipe: Recipe, directory: Path, seeds: Sequence[int]) -> None:
    """Raises `InputError` for seeds that cannot all be followed in a directory."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"the seeds are {list(seeds)}; expected different ones, at least one")
    for seed in seeds:
        recipe.config().updated({"training.seed": seed})
    if len(seeds) > 1 and set(",@") & set(str(directory)):
        raise InputError(
            f"{directory} has a comma or an @, which stand between the runs of an ensemble; "
            "expected another directory, or one seed"
        )


def _checked_texts(
    recipe: Recipe, corpus_dir: str | Path, work_dir: Path, *, before_writers: bool
) -> Texts:
    """Opens what a recipe is followed on, and finds the mistakes in it.

    Those in the text to train on only where it is not prepared next.
    """
    texts = recipe.texts(corpus_dir, work_dir / "text")
    for test in texts.tests.values():  # what is missed may be a package that scoring needs
        first = dataclasses.replace(test, references=[each[:1] for each in test.references])
        metrics.assess(list(first.references[0]), first, **recipe.evaluate)
    for corpus in (texts.valid, *([texts.train] if before_writers else [])):
        for _ in corpus.pairs():
            pass
    return texts


def _minutes_until(deadline: float | None) -> float | None:
    return None if deadline is None else (deadline - time.monotonic()) / 60


def _run(
    recipe: Recipe,
    texts: Texts,
    work_dir: Path,
    seeds: Sequence[int],
    writers: Mapping[Synthetic, Path | None],
    facts: Mapping[str, Any],
    accumulate_steps: int | None,
    deadline: float | None,
    steps_after: int,
) -> dict[str, Any]:
    """Prepares and follows each seed, in a directory that is the recipe's; returns the results."""
    corpora: list[Corpus] = [texts.train]
    for kind, model_dir in writers.items():
        directory = work_dir / "synthetic" / kind
        corpora.append(synthetic_pairs(kind, texts.train, model_dir, directory))
    if writers:
        hashes = {kind: writer_fingerprint(work_dir / "synthetic" / kind) for kind in writers}
        facts = {**facts, "writers_sha256": hashes}
    prepared = prepare(
        corpora,
        work_dir / "data",
        PrepareOptions(**recipe.prepare),
        valid_corpora=[texts.valid],
    )
    log.info(prepared.summary())
    write_data_page(prepared.directory, dataclasses.asdict(PrepareOptions()))
    computing = {} if accumulate_steps is None else {"training.accumulate_steps": accumulate_steps}
    models = RecipeModels(recipe, work_dir, texts.tests, computing, facts)
    by_seed: dict[str, dict[str, Any]] = {}
    for number, seed in enumerate(seeds, 1):
        left = _minutes_until(deadline)
        if left is not None and left <= 0 and by_seed:
            break
        minutes = None if left is None else max(1e-9, left)
        later = steps_to_train(recipe, work_dir, seeds[number:]) + steps_after
        by_seed[str(seed)] = models.run(seed, minutes, later)
        if not by_seed[str(seed)]["finished"]:
            break
    results = {**models.facts, "finished": False, "seeds": by_seed}
    if len(by_seed) == len(seeds) and all(result["finished"] for result in by_seed.values()):
        if len(seeds) > 1:
            results |= spread(by_seed)
            weights = {seed: by_seed[str(seed)]["weights"] for seed in sorted(seeds)}
            results["ensemble"] = models.ensemble(weights)
        results["finished"] = True
    return results


class _Writers:
    """Who writes a recipe's synthetic pairs: exports that are given, and its own models.

    Attributes:
        facts: what results say of them.
    """

    def __init__(
        self,
        recipe: Recipe,
        work_dir: Path,
        writers_dir: Path,
        given: Mapping[Synthetic, str | Path],
    ) -> None:
        kinds = [kind for kind in get_args(Synthetic) if kind in recipe.synthetic]
        self._given: dict[Synthetic, Path] = {kind: Path(given[kind]) for kind in given}
        self._own: dict[Synthetic, Writer] = {
            kind: recipe.writer(kind) for kind in kinds if kind not in given
        }
        self._kinds: list[Synthetic] = kinds
        self._work_dir = work_dir
        self._writers_dir = writers_dir
        written_by = {kind: self._who(kind) for kind in kinds}
        self.facts: dict[str, Any] = {"written_by": written_by} if kinds else {}

    def _who(self, kind: Synthetic) -> str:
        if kind in self._given:
            return "an export that was given"
        writer = self._own[kind]
        seeds = ",".join(map(str, writer.seeds))
        return f"{writer.recipe.name} {writer.recipe.variant}".strip() + f", seeds {seeds}"

    def check(self, corpus_dir: str | Path) -> None:
        """Raises `InputError` for what would else show when hours of training are over."""
        for kind, model_dir in self._given.items():
            check_writer(self._work_dir / "synthetic" / kind, model_dir)
        for kind, writer in self._own.items():
            directory, pairs = self._writers_dir / kind, self._work_dir / "synthetic" / kind
            _check_seeds(writer.recipe, directory, writer.seeds)
            check_identity(directory, identity(writer.recipe))
            exported = self._exported(kind)
            if exported is not None and exported.exists():
                check_writer(pairs, exported)
            elif self._has_written(kind):
                pass  # the model may be removed
            elif exported is not None:
                raise InputError(
                    f"{exported} is gone, which was to write {pairs}; expected it, or no "
                    f"{directory}"
                )
            elif writer_fingerprint(pairs):
                raise InputError(
                    f"{pairs} was begun by a model that is gone; expected it in {directory}, or no "
                    f"{pairs}"
                )
            else:
                _checked_texts(writer.recipe, corpus_dir, directory, before_writers=True)

    def _has_written(self, kind: Synthetic) -> bool:
        return (self._work_dir / "synthetic" / kind / "written").exists()

    def _exported(self, kind: Synthetic) -> Path | None:
        """Returns the export of an own writer that is trained; it may have been removed."""
        directory, seeds = self._writers_dir / kind, self._own[kind].seeds
        results = read_results(directory / "results.json")
        if not results.get("finished") or results.get("seeds", {}).keys() != {
            str(s) for s in seeds
        }:
            return None
        try:
            result = results["ensemble"] if len(seeds) > 1 else results["seeds"][str(seeds[0])]
            return directory / result["export"]
        except (KeyError, TypeError):
            raise InputError(
                f"{directory / 'results.json'} is finished and names no export; expected one"
            ) from None

    def trained(
        self,
        corpus_dir: str | Path,
        accumulate_steps: int | None,
        deadline: float | None,
        steps_after: int,
    ) -> dict[Synthetic, Path | None] | None:
        """Trains what is not trained yet.

        Returns:
            The exports by kind, None for one that is not needed any more; or None where time is
            over before all are trained.
        """
        exports: dict[Synthetic, Path | None] = {**self._given}
        steps = {
            kind: steps_to_train(writer.recipe, self._writers_dir / kind, writer.seeds)
            for kind, writer in self._own.items()
            if self._exported(kind) is None and not self._has_written(kind)
        }
        for kind, writer in self._own.items():
            if kind in steps:
                del steps[kind]
                left = _minutes_until(deadline)
                if left is not None and left <= 0:
                    return None
                directory = self._writers_dir / kind
                log.info("the writer of %s: %s, in %s", kind, self._who(kind), directory)
                try:
                    run_recipe(
                        writer.recipe,
                        corpus_dir,
                        directory,
                        seeds=writer.seeds,
                        accumulate_steps=accumulate_steps,
                        max_minutes=left,
                        steps_after=sum(steps.values()) + steps_after,
                    )
                except DivergedError as error:
                    raise InputError(f"the writer of {kind} has diverged: {error}") from error
                if self._exported(kind) is None:
                    return None
            exports[kind] = self._exported(kind)
        return {kind: exports[kind] for kind in self._kinds}
