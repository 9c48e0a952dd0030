"""A real cluster of three raylets. `cluster_test` runs these tests without another network."""

import contextlib
import gc
import importlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from keras_transformer import __version__, plugins
from keras_transformer.cli import score
from keras_transformer.data import blocks
from keras_transformer.data import prepare as preparation
from keras_transformer.data.workers import run_tasks
from keras_transformer.errors import InputError, StoppedError
from keras_transformer.extensions import ray as extension
from keras_transformer.extensions.corpora import monolingual
from keras_transformer.extensions.paper.experiment import Experiment, Row
from keras_transformer.extensions.ray import training
from tests.builders import PHRASES, tiny_data, tiny_run
from tests.data.corpora import tree
from tests.extensions.ray import tasks
from tests.messages import mentions, tells

EXPORT = os.environ.get("EXPORT", "")
BEGAN = Path(os.environ.get("BEGAN", "began"))
# All nodes inherit these.
os.environ |= {"DRIVER": str(os.getpid()), "XDG_CACHE_HOME": str(BEGAN.with_name("cache"))}
TEXTS = "--input=mono --input=mono"
CLEAN, TRANSLATE = (preparation, "clean_block"), (monolingual, "translate_block")
SMALL = {"num_cpus": 1, "object_store_memory": 2**27, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster():
    checks = {"health_check_period_ms": 200, "health_check_failure_threshold": 10}
    extension.DEATH_SECONDS = 3  # longer than these checks take
    cluster = Cluster(initialize_head=True, head_node_args={**SMALL, "_system_config": checks})
    cluster.add_node(**SMALL)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def runner(cluster):
    return plugins.find("task_runners", "ray").connect(cluster.address)


@pytest.fixture
def victim(cluster):
    """A third node, which dies in its first task of `on_all_nodes`."""
    BEGAN.unlink(missing_ok=True)
    yield cluster.add_node(**SMALL, env_vars={"NODE": "victim"})
    assert BEGAN.exists(), "the node did not die"


@pytest.fixture
def mono(tmp_path, monkeypatch):
    """A text of several blocks, in the file `mono`."""
    monkeypatch.setattr(monolingual, "BLOCK_LINES", 2)
    (tmp_path / "mono").write_text("".join(f"{line}\n" for line in PHRASES))


@pytest.mark.parametrize(
    ("name", "task", "flags"),
    [
        ("prepare", CLEAN, "--tsv=c.tsv --vocab_size=80 --max_length_ratio=0"),
        ("translate_corpus", TRANSLATE, f"--model_dir=file://{EXPORT} {TEXTS}"),
        ("back_translate", TRANSLATE, f"--model_dir={EXPORT} {TEXTS} --min_score=-3"),
    ],
)
def test_output_is_that_of_one_machine_when_a_node_dies(
    cluster, victim, driver, tmp_path, monkeypatch, mono, name, task, flags
):
    monkeypatch.setattr(blocks, "BLOCK_LINES", 40)
    lines = (f"the {n} dogs see {7 * n}\tdie {n} Hunde sehen {7 * n}\n" for n in range(400))
    (tmp_path / "c.tsv").write_text("".join(lines))
    outputs = []
    for output, workers in (("one", "--workers=1"), ("ray", f"--ray={cluster.address}")):
        command = f"{flags} {workers} --output_dir={output}".split()
        ended = driver.run(tmp_path, name, command, "")
        assert ended.code == 0, ended.err
        outputs.append(ended.out.splitlines()[1:])
        monkeypatch.setattr(*task, getattr(tasks, task[1]))
    assert tree(tmp_path / "ray") == tree(tmp_path / "one")
    assert {path.name for path in tmp_path.iterdir()} == {"c.tsv", "mono", "one", "ray"}
    assert name != "prepare" or outputs[0] == outputs[1]


@pytest.mark.long
def test_scores_are_those_of_one_machine_when_a_node_dies(
    cluster, victim, driver, tmp_path, monkeypatch
):
    monkeypatch.setattr(score, "_BLOCK_PAIRS", 2)
    pairs = "".join(f"{line}\t{line}\n" for line in PHRASES)
    shutil.copytree(tiny_run(), tmp_path / "run")
    flags = [f"--model_dir=file://{tiny_run()},run"]
    one = driver.run(tmp_path, "score", flags, pairs)
    monkeypatch.setattr(score, "score_block", tasks.score_block)
    ended = driver.run(tmp_path, "score", [*flags, f"--ray={cluster.address}"], pairs)
    assert ended.code == one.code and ended.err.count("truncated") == one.err.count("truncated")
    assert ended.out == one.out and [*tmp_path.iterdir()] == [tmp_path / "run"]


def test_results_keep_their_order_while_nodes_join(cluster, runner, tmp_path, monkeypatch, capsys):
    nodes, first = ray.nodes, iter([list])  # first, there is none
    monkeypatch.setattr(ray, "nodes", lambda: next(first, nodes)())
    numbers = zip(range(20), strict=True)
    found = run_tasks(tasks.wait_and_tell, numbers, runner, tmp_path, uses_all_cores=True)
    results = [next(found)]
    assert tells(capsys.readouterr().err, "Warning", "No machine", "CPU")
    node = cluster.add_node(**SMALL, num_gpus=1)
    results += found
    cluster.remove_node(node)
    assert [number for number, *_ in results] == [*range(20)]
    assert len({process for _, process, _ in results}) > 1 and not [*tmp_path.iterdir()]
    assert not results[0][2] and results[-1][2]  # GPUs


def test_rows_of_an_experiment_run_on_the_nodes(runner, tmp_path):
    rows = [Row(name, tasks.row, (name,)) for name in ("a", "b", "c")]
    reported = []
    work = Experiment(tmp_path / "work", {"data": 1}, {"fact": 2})
    found = work.run_all(rows, lambda: reported.append(len(work.records())), runner)
    assert [record["result"] for record in found.values()] == ["a", "b", "c"]
    assert reported == [1, 2, 3] and all(record["fact"] == 2 for record in found.values())
    assert work.run_all(rows, workers=runner) == found  # finished rows are left out


def test_a_block_that_kills_three_workers_is_an_error_and_skipped_on_request(
    cluster, driver, tmp_path, monkeypatch, mono
):
    monkeypatch.setattr(monolingual, "translate_block", tasks.die_in_the_second_block)
    flags = f"--model_dir={EXPORT} --input=mono --output_dir=out --ray={cluster.address}"
    ended = driver.run(tmp_path, "translate_corpus", flags.split(), "")
    assert ended.code == 1 and ended.out == ""
    assert tells(ended.err, "error:", "lines 3 to 4 of mono", 3, "workers", "127.0.0.1")
    ended = driver.run(tmp_path, "translate_corpus", f"{flags} --skip_lost_blocks".split(), "")
    assert ended.code == 0 and tells(ended.err, "Skipped", "lines 3 to 4 of mono")
    lines = (tmp_path / "out/translations.txt").read_text().splitlines()
    assert [n for n, line in enumerate(lines, 1) if not line] == [3, 4] and len(lines) == 6
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["skipped"] == ["lines 3 to 4 of mono"] and report["untranslated"] == 2


@pytest.mark.parametrize(
    ("error", "expected", "facts"),
    [
        (InputError("line 7 is bad"), StoppedError, ["127.0.0.1", "line 7 is bad"]),
        (OSError(28, "No space left on device", "a"), StoppedError, ["127.0.0.1", "a", "No space"]),
        (ZeroDivisionError("a defect"), ZeroDivisionError, ["a defect"]),
    ],
)
def test_an_error_of_a_task_names_the_node(runner, tmp_path, error, expected, facts):
    with pytest.raises(expected, match=mentions(*facts)):
        list(run_tasks(tasks.fail, [("a", error)] * 2, runner, tmp_path))


def test_ctrl_c_stops_the_tasks_and_the_same_command_resumes(
    cluster, driver, tmp_path, monkeypatch, mono
):
    monkeypatch.setattr(monolingual, "BLOCK_LINES", 3)  # the second block is the last one
    flags = f"--model_dir={EXPORT} --input={tmp_path}/mono"
    command = f"{flags} --output_dir=out --ray={cluster.address}".split()
    with monkeypatch.context() as patch:
        patch.setattr(monolingual, "translate_block", tasks.interrupt)
        ended = driver.run(tmp_path, "translate_corpus", command, "")
    gc.collect()  # stops the tasks, as the end of the process does for a command
    assert ended.code == 130 and tells(ended.err, "Warning", "same command")
    _, [blocks, *_] = json.loads((tmp_path / ".out.partial/work/progress.json").read_bytes())
    assert blocks == 1
    assert driver.run(tmp_path, "translate_corpus", command, "").code == 0
    driver.run(tmp_path, "translate_corpus", f"{flags} --output_dir=one".split(), "")
    assert tree(tmp_path / "out") == tree(tmp_path / "one")


def test_a_node_with_another_version_is_named(runner, tmp_path, monkeypatch):
    monkeypatch.setattr(extension, "__version__", "0.0.1")  # of the command
    with pytest.raises(StoppedError, match=mentions("127.0.0.1", "0.0.1", __version__)):
        list(run_tasks(tasks.wait_and_tell, [(1,)], runner, tmp_path))


def test_a_node_without_the_package_is_named(runner, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def task(name):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    function = importlib.import_module("only_here").task
    with pytest.raises(StoppedError, match=mentions("127.0.0.1", "only_here", "install")):
        list(run_tasks(function, [("a",)], runner, tmp_path))


def test_a_node_without_the_files_is_named(cluster, runner, driver, tmp_path, monkeypatch, mono):
    """The folders of the output and of the model are other file systems on the last node."""
    BEGAN.unlink(missing_ok=True)
    shutil.copytree(EXPORT, model := tmp_path / "models" / "1")
    (output := tmp_path / "output").mkdir()
    mounts = "".join(f"mount -t tmpfs none {path} && " for path in (model.parent, output))
    start = f"-m ray.scripts.scripts start --address={cluster.address} --num-cpus=1 --block"
    blind = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"{mounts} exec {sys.executable} {start}"],
        env={**os.environ, "NODE": "blind"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with pytest.raises(StoppedError, match=mentions("127.0.0.1", "does not see", output)):
            list(run_tasks(tasks.wait_and_tell, zip(itertools.count()), runner, output))
        monkeypatch.setattr(monolingual, "translate_block", tasks.translate_block)
        flags = f"--model_dir={model} --input=mono --output_dir=out --ray={cluster.address}"
        ended = driver.run(tmp_path, "translate_corpus", flags.split(), "")
        assert ended.code == 1 and tells(ended.err, "error:", "127.0.0.1", model, "missing")
    finally:
        blind.terminate()
        blind.wait()


@pytest.fixture
def train(cluster, driver, tmp_path, monkeypatch):
    """Trains a tiny model on the cluster. Calls a function after the first checkpoint."""
    monkeypatch.setattr(training, "DEATH_SECONDS", 1)
    shutil.copytree(tiny_data(), tmp_path / "data")
    flags = "--data_dir=data --run_dir=run --preset=tiny --batch_tokens=128 --jit_compile=false"
    flags += f" --checkpoint_steps=10 --ray={cluster.address}"

    def run(max_steps, meanwhile):
        def wait():
            while not [*(tmp_path / "run" / "checkpoints").glob("step-*")]:
                time.sleep(0.05)
            meanwhile()

        (thread := threading.Thread(target=wait)).start()
        ended = driver.run(tmp_path, "train", [*flags.split(), f"--max_steps={max_steps}"], "")
        thread.join()
        return ended

    return run


@pytest.mark.long
def test_training_goes_on_after_a_worker_was_killed(train, tmp_path):
    ended = train(60, kill_a_worker)
    assert ended.code == 0, ended.err
    steps = [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")]
    assert max(steps) == "step-00000060"
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    logged = [json.loads(line)["step"] for line in lines if "loss" in json.loads(line)]
    assert logged == [*range(10, 61, 10)]


@pytest.mark.long
def test_ctrl_c_stops_training_with_a_checkpoint(train, tmp_path):
    ended = train(10**6, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert ended.code == 130, ended.err
    newest = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    steps = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert int(newest.name.removeprefix("step-")) >= steps


def kill_a_worker():
    """Kills the worker with the index 1."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_worker = b"keras_transformer\0train" in (process / "cmdline").read_bytes()
            if is_worker and b'"index": 1' in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
                return
    pytest.fail("there was no second worker")
