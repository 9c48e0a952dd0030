"""Shared fixtures: real corpora, two logical CPU devices, a tiny run and its export."""

import contextlib
import fcntl
import functools
import gc
import itertools
import math
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import hypothesis
import pytest

from tests.builders import PHRASES, SHARED_RUNS, tiny_config
from tests.driver import Driver
from tests.messages import Pattern

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before anything loads TensorFlow
# TensorFlow turns oneDNN's operations, which int8 needs, off on CPUs without AVX-512.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
ROOT = Path(__file__).resolve().parents[1]
STARTED = time.monotonic()
NO_TIME = "the time is over"

# The background jobs of a shell ignore Ctrl-C, those of nohup ignore SIGHUP, and so do their child
# processes. Tests send these signals to processes and to themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def test_data():
    """Returns the folder of the real corpora, or skips the test."""
    path = ROOT / os.environ.get("KERAS_TRANSFORMER_TEST_DATA", "../shared/data")
    if not path.is_dir():
        pytest.skip(f"no corpora at {path}; KERAS_TRANSFORMER_TEST_DATA names their folder")
    return path


# Other processes may slow a test down.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="also run the tests that are marked long")
    parser.addoption("--seconds", type=float, help="start no test after these seconds")


def pytest_configure(config):
    untimed = hypothesis.settings.get_profile("untimed")
    examples = 60 if config.getoption("--long") else 5
    hypothesis.settings.register_profile("searches", untimed, max_examples=examples)


def pytest_collection_modifyitems(config, items):
    """Skips the long tests without --long, so that all others fit into the time of a change.

    The files that take longest come first, so that no process works alone at the end, unless the
    time is limited.
    """
    if config.getoption("--seconds") is None:
        items.sort(key=lambda item: item.path.parent.name not in ("integration", "training"))
    if not config.getoption("--long"):
        reason = "takes long: bin/test --long runs it, and .github/workflows/test.yml every week"
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if time.monotonic() - STARTED > (item.config.getoption("--seconds") or math.inf):
        pytest.skip(NO_TIME)


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    if count := sum(NO_TIME in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(f"{count} tests were left out, because {NO_TIME}.")


def pytest_make_parametrize_id(val):
    """Uses the facts of a pattern as the name of a test case."""
    return (
        ", ".join(val.facts).encode("unicode_escape").decode() if isinstance(val, Pattern) else None
    )


def _split_cpu():
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    with contextlib.suppress(
        RuntimeError
    ):  # a test module ran an op at import: two_cpus reports it
        tf.config.set_logical_device_configuration(cpu, two)


def pytest_collection_finish(session):
    """Splits the CPU before the first test runs an op, because TensorFlow forbids it later.

    What is there by now, libraries and tests, stays to the end: no collection of garbage needs to
    look at its half a million objects again. Graphs are large cycles, so collections are rare.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    if "tensorflow" in sys.modules and os.environ.get("KERAS_BACKEND") in (None, "tensorflow"):
        _split_cpu()
        if not session.config.getoption("--long"):
            _save_time()


def _save_time():
    """Leaves out what takes longer than the small graphs of tests.

    TensorFlow optimizes no graphs: running them once is faster. It records one stack for all their
    operations, since those of pytest are deep. It looks for uses of variables only among operations
    with handles as inputs. Exports are compared in this process, because another one imports
    TensorFlow for seconds; `core_alone_test` exports with a separate process. Only the tests of
    reports draw curves. Kills, unlike power failures, lose no file that was not synchronized.
    """
    import tensorflow as tf
    from tensorflow.python.framework import auto_control_deps
    from tensorflow.python.util import tf_stack  # has no public way to turn this off

    from keras_transformer.export.saved_model.exporter import SavedModelExporter
    from keras_transformer.extensions.pages import report

    os.fsync = lambda descriptor: None
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    stack = tf_stack.extract_stack()
    tf_stack.extract_stack = lambda stacklevel=1: stack
    find_resources, handles = auto_control_deps._get_resource_inputs, (tf.resource, tf.variant)
    auto_control_deps._get_resource_inputs = lambda operation: (
        find_resources(operation) if any(t.dtype in handles for t in operation.inputs) else ()
    )
    SavedModelExporter.open_for_comparison = SavedModelExporter.open
    report._curves = lambda history: ""
    _share_translators()


def _share_translators():
    """Loads the runs that no test may change only once, because their searches are traced."""
    import numpy as np

    from keras_transformer import export
    from keras_transformer.inference import loading, scoring

    load, translators = loading.load_translator, {}

    def load_shared(model_dir, settings=None, precision="float32"):
        members = loading.members(model_dir)
        names = [(run.path.resolve(), name) for run, name in members]
        if not {path for path, _ in names} <= SHARED_RUNS:
            return load(model_dir, settings, precision=precision)
        decoding = loading.updated_decoding(members[0][0].config.decoding, settings or {})
        key = repr((names, decoding, precision))
        translator, weights = translators.pop(key, (None, []))
        if not all(itertools.starmap(np.array_equal, weights)):
            pytest.fail(f"A test changed the weights of {key}. It should load a copy of the run.")
        if translator is None:
            translator = load(model_dir, settings, precision=precision)
            variables = [weight for model in translator.transformers for weight in model.variables]
            weights = [(weight, weight.numpy()) for weight in variables]
        translators[key] = translator, weights
        return translator

    loading.load_translator = export.load_translator = load_shared
    scoring.Scorer = functools.lru_cache(4)(scoring.Scorer)


@pytest.fixture(scope="session")
def two_cpus():
    """Returns the names of two logical CPU devices, for `tf.distribute.MirroredStrategy`."""
    import tensorflow as tf

    if len(tf.config.list_logical_devices("CPU")) < 2:  # also the first use of TensorFlow
        pytest.fail("TensorFlow ran before the CPU was split; import it at the top of the test")
    return ["CPU:0", "CPU:1"]


@pytest.fixture(scope="session")
def driver():
    """Runs commands in this process."""
    return Driver()


@pytest.fixture(scope="module")
def one_replica():
    """Trains on one of the test process's two logical CPUs, which halves the time to trace."""
    import tensorflow as tf

    from keras_transformer.training import training_run
    from keras_transformer.training.devices import choose_platform

    def choose(config, num_shapes, device, strategy):
        return choose_platform(config, num_shapes, device, strategy)._replace(
            strategy=tf.distribute.MirroredStrategy(["CPU:0"])
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_run, "choose_platform", choose)
        yield


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory):
    """A run of a tiny model with random weights and three checkpoints. Copy it before changes."""
    return _random_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def own_run(run_directory, tmp_path):
    """A copy of the run, which a test may change."""
    return type(run_directory)(shutil.copytree(run_directory.path, tmp_path / "run"))


@pytest.fixture(scope="session")
def tagged_run(tmp_path_factory):
    """The same for a vocabulary with the tags <2de> and <2fr>, and the symbol <number>."""
    return _random_run(tmp_path_factory.mktemp("tagged") / "run", "<2fr>", "<2de>", "<number>")


def _random_run(path, *symbols):
    import keras

    from keras_transformer.models.transformer import Transformer
    from keras_transformer.runs.run_directory import RunDirectory
    from keras_transformer.text.tokenizer import Tokenizer
    from keras_transformer.text.vocabulary import learn_vocabulary

    tokenizer = Tokenizer(learn_vocabulary((p.encode() for p in PHRASES), 60, symbols=symbols))
    config = tiny_config(
        model__source_vocab_size=tokenizer.source_vocab_size,
        model__target_vocab_size=tokenizer.target_vocab_size,
        training__checkpoint_steps=100,
    )
    run = RunDirectory.create(path, config, tokenizer, "fingerprint")
    SHARED_RUNS.add(run.path.resolve())
    for step in (100, 200, 300):
        keras.utils.set_random_seed(step)
        model = Transformer(config.model, dtype="float32")
        model.build()
        # Larger than initial weights, so that outputs are not empty and depend on the source.
        weights = {
            path: variable.numpy() * (3 if path.endswith(("kernel", "embeddings")) else 1)
            for path, variable in model.weights_by_path().items()
        }
        weights["embedding/embeddings"][tokenizer.end_id] *= 0.1
        run.save_checkpoint(step, weights, {}, {})
    return run


def random_shortlist(run, size):
    """Returns ten frequent tokens, and `size` random translations of each token."""
    import numpy as np

    from keras_transformer.decoding.shortlist import Shortlist

    ids, random = run.tokenizer(), np.random.default_rng(3)
    translations = random.integers(4, ids.target_vocab_size, (ids.source_vocab_size, size))
    translations[ids.pad_id] = ids.end_id
    return Shortlist([ids.end_id, ids.unknown_id, *range(8, 18)], translations)


FORMATS = ("saved_model", "litert", "cpu", "ctranslate2", "huggingface", "argos")


@pytest.fixture(scope="session")
def version_of(run_directory, tmp_path_factory):
    """Returns the version of the run in a format, in float32. Copy it before changes."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each process has a folder inside the common one
        folder = folder.parent

    def get(format):
        from keras_transformer.export import ExportOptions, export

        output = folder / ("export" if format == "saved_model" else format)
        options, sentences, settings = ExportOptions(weights="float32"), PHRASES, {}
        if format in ("saved_model", "litert", "cpu"):
            settings = {"decoding.n_best": 2}
        if format == "saved_model":
            sentences = [*PHRASES, "", "ball " * 30]
        if format == "argos":
            options = ExportOptions(languages=("en", "de"))
        with output.with_suffix(".lock").open("w") as lock:  # another process may export it
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (output / "1").exists():
                export(run_directory, output, sentences, options, format=format, settings=settings)
        return output / "1"

    return get


@pytest.fixture(scope="session")
def litert_version(version_of):
    """A version of the run as a float32 LiteRT model. Copy it before changes."""
    return version_of("litert")


@pytest.fixture(scope="session")
def cpu_version(version_of):
    """A version of the run as a float32 LiteRT model for servers. Copy it before changes."""
    return version_of("cpu")


@pytest.fixture(scope="session")
def exported_run(version_of):
    """The directory of the run's version as a SavedModel. Copy it before changes."""
    return version_of("saved_model").parent
