r"""Trains a translation model on prepared data, or continues its training.

Example:
    keras-transformer train --data_dir=build/data --run_dir=build/run --preset=tiny \
        --max_steps=2000 --set=training.label_smoothing=0.2

Several corpora, prepared with one vocabulary, are mixed: by their sizes, by --mix, or by
sizes at a temperature.
    keras-transformer train --data_dir=build/news,build/talks --mix=news:2,talks:1 \
        --run_dir=build/run

The same command again continues where the run stopped. Ctrl-C stops after the
current step and leaves a checkpoint. --ray trains on all machines of a cluster.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from absl import flags

from keras_transformer import plugins
from keras_transformer.cli import app, config_flags

FLAGS = flags.FLAGS

WORKER_LOST = 75  # EX_TEMPFAIL: a supervisor starts the same command again


def define_flags() -> None:
    """Defines the flags of the command."""
    config_flags.define_path_flags("data_dir", "run_dir", required=True)
    names = [name for name, (key, _) in config_flags.FIELDS.items() if key.startswith("training.")]
    config_flags.define_config_flags("preset", *names)
    flags.DEFINE_string("mix", None, "share of the steps for each --data_dir, as in a:2,b:1")
    temperature_help = "shares are sizes to the power of 1 / temperature, as in 5"
    flags.DEFINE_float("mix_temperature", None, temperature_help)
    device_help = "auto: all GPUs, or the CPU if there are none"
    flags.DEFINE_enum("device", "auto", ["auto", "cpu", "gpu"], device_help)
    flags.DEFINE_integer("logical_cpus", None, "number of replicas to split the CPU into")
    config_flags.define_option_flags("init_from", "max_minutes")
    config_flags.define_cluster_flags()


def main() -> int:
    """Runs `training_run.train` with the flags."""
    for name, address in config_flags.values_of(plugins.names("task_runners")).items():
        if address is not None:
            FLAGS[name].unparse()  # the workers train without this flag
            runner = plugins.find("task_runners", name)
            return int(runner.train(address, app.given_flags(__name__), Path(FLAGS.run_dir)))
    app.load_tensorflow()
    from keras_transformer.training import training_run  # slow to import
    from keras_transformer.training.multi_worker import Cluster, WorkerLost
    from keras_transformer.training.training_run import TrainOptions

    try:
        trained = training_run.train(
            plugins.resolve(FLAGS.data_dir).split(","),
            FLAGS.run_dir,
            FLAGS.preset,
            config_flags.config_settings(),
            TrainOptions(**config_flags.values_of(TrainOptions._fields)),
        )
    except WorkerLost as error:
        advice = "Start this command again on every worker, to resume from the last checkpoint."
        print(f"error: {error}. {advice}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(WORKER_LOST)  # TensorFlow's cleanup prints tracebacks after a lost worker
    if Cluster.from_environment().is_chief:  # only the chief has a run directory
        print(trained.summary(FLAGS.run_dir))
    return 130 if trained.interrupted else 0


if __name__ == "__main__":
    from keras_transformer.cli.main import run

    run("train")
