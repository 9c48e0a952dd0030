"""Flags that choose the processes or the cluster for work on a large corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from keras_transformer.cli.app import refuse

if TYPE_CHECKING:
    from keras_transformer.data.preparation.workers import Runner

FLAGS = flags.FLAGS
flags.disclaim_key_flags()  # flags defined here count as the calling command's, for --help


def define_runner_flags(workers: int | None, workers_help: str) -> None:
    """Defines --workers, with a default, and --beam."""
    flags.DEFINE_integer("workers", workers, workers_help, lower_bound=1)
    flags.DEFINE_multi_string(
        "beam",
        [],
        "run on Apache Beam, with an option of it, as in --runner=FlinkRunner; repeatable",
    )


def runner(workers: int, output_dir: Path) -> Runner:
    """Returns the runner for a number of processes, or Apache Beam if --beam is given.

    Raises:
        InputError: for --workers beside --beam, and options that Beam does not take.
    """
    if not FLAGS.beam:
        from keras_transformer.data.preparation.workers import Workers

        return Workers(workers)
    refuse(["workers"], "beside --beam; expected one of them")
    from keras_transformer.data.preparation.beam_runner import BeamRunner  # late: an extra

    parent = output_dir.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    return BeamRunner(parent, FLAGS.beam)
