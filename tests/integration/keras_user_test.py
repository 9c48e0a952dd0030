"""Standard Keras workflows with the model and its layers: fit, save, load and registration."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer.models.transformer import Transformer
from tests.builders import tiny_config

ROOT = Path(__file__).parents[2]
CONFIG = tiny_config(model__source_vocab_size=12, model__target_vocab_size=12).model


PROGRAM = """
import gc, sys; gc.disable()  # imports take less time
import keras, numpy as np
import keras_transformer as kt

def show():
    names = [name.partition(">") for name in keras.saving.get_custom_objects()]
    print(*(name for package, _, name in names if package == "keras_transformer"))

kt.layers
show()
folder = sys.argv[1]
inputs = dict(np.load(folder + "/inputs.npz"))
whole = keras.saving.load_model(folder + "/model.keras")
bare = kt.Transformer(whole.config)
bare.build()
bare.load_weights(folder + "/model.weights.h5")
np.savez(folder + "/outputs.npz", whole=whole(inputs), bare=bare(inputs))
print(int(whole.optimizer.iterations), whole.loss)  # it is still compiled
import keras_transformer.extensions.paper.baselines
show()
"""


def run(program: str, *arguments: Any) -> str:
    """Runs a program in a new process and returns its output."""
    result = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT, env=os.environ.copy(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def registered_classes() -> tuple[set[str], set[str]]:
    """Returns the classes that the package registers: its own, and the paper's baselines."""
    pattern = (
        r'@keras.saving.register_keras_serializable\(package="keras_transformer"\)\nclass (\w+)'
    )
    classes: dict[bool, set[str]] = {False: set(), True: set()}
    for path in (ROOT / "keras_transformer").rglob("*.py"):
        classes["baselines" in path.parts] |= {*re.findall(pattern, path.read_text("utf-8"))}
    return classes[False], classes[True]


def test_another_process_registers_all_classes_and_loads_a_saved_model(tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    source = np.random.default_rng(1).integers(4, 12, (64, 5), dtype=np.int32)
    start = np.full((64, 1), CONFIG.token_ids.start_id, np.int32)
    target = np.concatenate([start, source[:, :-1]], axis=1)
    inputs = {"source_ids": source, "target_ids": target}  # sequences to copy
    model = Transformer(CONFIG)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 100, 0.9)
    adam, loss = keras.optimizers.Adam(schedule), kt.losses.LabelSmoothedCrossEntropy()
    # Two batches take less time than tracing a graph.
    model.compile(adam, loss, metrics=[kt.metrics.Perplexity()], run_eagerly=True)
    model.fit(inputs, source, batch_size=32, verbose=0)
    outputs = model(inputs)
    assert outputs.shape == (64, 5, 12)
    np.savez(tmp_path / "inputs.npz", **inputs)
    model.save(tmp_path / "new.keras")
    # As in an earlier version, in which the modules had other names.
    files = (tmp_path / "new.keras", "r"), (tmp_path / "model.keras", "w")
    with zipfile.ZipFile(*files[0]) as new, zipfile.ZipFile(*files[1]) as old:
        for name in new.namelist():
            content = new.read(name)
            if name == "config.json":
                content = content.replace(b"keras_transformer.models.", b"keras_transformer.x.")
            old.writestr(name, content)
    model.save_weights(tmp_path / "model.weights.h5")

    library, compiled, everything = run(PROGRAM, tmp_path).splitlines()[-3:]
    assert compiled.startswith("2 ") and "LabelSmoothedCrossEntropy" in compiled
    loaded = np.load(tmp_path / "outputs.npz")
    for name in ("whole", "bare"):
        np.testing.assert_allclose(loaded[name], outputs, atol=1e-6)
    own, baselines = registered_classes()
    assert len(own) > 15 and baselines == {"Convolutional", "GRU"}
    assert {*library.split()} == own
    assert {*everything.split()} == own | baselines


def test_the_package_alone_is_imported_quickly() -> None:
    """The limit is on processor time, because other processes may run at the same time."""
    run(
        "import sys, time\n"
        "start = time.process_time()\n"
        "import keras_transformer\n"
        "seconds = time.process_time() - start\n"
        "assert seconds < 0.3, seconds\n"
        "assert not {'absl', 'keras', 'numpy', 'tensorflow'} & set(sys.modules)\n"
    )
