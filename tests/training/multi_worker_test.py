"""One worker, a worker that waits for others, and two real processes of which one is killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.training.multi_worker import Cluster, WorkerLost, read_tf_config
from tests.builders import refuses
from tests.conftest import ROOT
from tests.messages import mentions, tells

LOST = 75  # the exit code of a worker that has lost another
WORKERS = ["a:2222", "b:2222"]


def tf_config(workers, index, job="worker", **others):
    cluster = {"worker": workers, **others}
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


def free_ports(count):
    servers = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def test_without_tf_config_there_is_one_worker(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    cluster = Cluster.from_environment()
    assert (cluster.num_workers, cluster.is_chief) == (1, True)
    assert cluster.connect() is None
    value = {"weights": np.zeros(3)}
    assert cluster.from_chief(lambda: value) is value
    cluster.check_equal_on_all_workers({"seed": 1})
    cluster.finish()
    with pytest.raises(tf.errors.UnavailableError), cluster.watch():
        raise tf.errors.UnavailableError(None, None, "a file server")


def test_other_errors_do_not_mean_a_lost_worker():
    cluster = Cluster(WORKERS)
    with pytest.raises(tf.errors.ResourceExhaustedError), cluster.watch():
        raise tf.errors.ResourceExhaustedError(None, None, "out of memory")
    with pytest.raises(WorkerLost, match=mentions("worker", "lost")), cluster.watch():
        raise tf.errors.UnavailableError(None, None, "recvmsg:Connection reset by peer")


# Bit patterns that must survive. A sum with zeros would lose the first three.
BITS = np.array([0x80000000, 0x7FC00001, 0x00000001, 0x3F800000], np.uint32).view(np.float32)
SENT = {
    "bits": BITS,
    "steps": np.array(5, np.int64),
    "large": np.random.default_rng(0).normal(size=(3, 700_001)),
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
}


def take_part():
    """Runs a worker of these tests, which prints one JSON object. All but the chief are killed."""
    cluster = Cluster.from_environment()
    strategy = cluster.connect()
    assert strategy is not None
    said = {"replicas": strategy.num_replicas_in_sync}
    said["sigterm"] = str(signal.getsignal(signal.SIGTERM))
    arrays = {
        name: cluster.broadcast(array if cluster.is_chief else np.zeros_like(array))
        for name, array in SENT.items()
    }
    said["same_bits"] = [
        name for name, array in arrays.items() if array.tobytes() == SENT[name].tobytes()
    ]
    said["received"] = cluster.from_chief(lambda: {"ü": [0.1, None]} if cluster.is_chief else 1)

    def fail():
        raise InputError("the run is damaged")

    check = cluster.check_equal_on_all_workers
    different = {"seed": cluster.index, "same": 1, "data": [cluster.index]}
    for name, act in (
        ("failed", lambda: cluster.from_chief(fail)),
        ("agreed", lambda: check({"training.seed": 1, "data": "f00"})),
        ("differed", lambda: check(different)),
    ):
        try:
            act()
        except InputError as error:
            said[name] = str(error)
    print(json.dumps(said), flush=True)
    try:
        with cluster.watch():
            if not cluster.is_chief:
                os.kill(os.getpid(), signal.SIGKILL)
            cluster.finish()
    except WorkerLost:
        sys.exit(LOST)


def fork(workers, logs):
    """Runs a chief and a worker in copies of this process; prints how they ended."""
    children = []
    for index, log in enumerate(logs):
        if not (child := os.fork()):
            signal.alarm(200)  # a worker that waits for ever ends
            os.environ["TF_CONFIG"] = tf_config(workers, index)
            for stream in (1, 2):
                os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
            take_part()
            os._exit(0)
        children.append(child)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Returns what a chief and a worker said, before the worker was killed."""
    folder = tmp_path_factory.mktemp("cluster")
    workers = [f"localhost:{port}" for port in free_ports(2)]
    logs = [folder / "0", folder / "1"]
    program = "import sys; from tests.training import multi_worker_test as test; "
    program += "test.fork(sys.argv[1:3], sys.argv[3:])"
    ended = subprocess.run(
        [sys.executable, "-c", program, *workers, *map(str, logs)],
        stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=240, check=False,
    )  # fmt: skip
    codes = json.loads(ended.stdout)
    assert codes == [LOST, -signal.SIGKILL], [log.read_text() for log in logs]
    lines = (
        [line for line in log.read_text().splitlines() if line.startswith("{")] for log in logs
    )
    return [json.loads(line) for [line] in lines]


@pytest.mark.long
def test_a_lost_worker_stops_the_others(cluster):
    assert [said["replicas"] for said in cluster] == [2, 2]
    assert cluster[0]["sigterm"] == str(signal.SIG_DFL), "signals are Python's again"


def test_the_chief_sends_every_bit_and_its_errors(cluster):
    for said in cluster:
        assert said["same_bits"] == list(SENT)
        assert said["received"] == {"ü": [0.1, None]}
        assert said["failed"] == "the run is damaged"


def test_workers_that_differ_end_and_name_the_difference(cluster):
    chief, worker = cluster
    assert "agreed" not in chief and "agreed" not in worker
    assert tells(chief["differed"], "worker", "localhost", "differ")
    assert re.search(r"\bseed 1\b.*\b0\b.*\bdata \[1\].*\[0\]", worker["differed"])


ONE_MACHINE = (("localhost:0",), 0)
ADDRESSES = [f"job-{name}.kubeflow.svc:2222" for name in ("chief-0", "worker-0", "worker-1")]
TFJOB = {"chief": ADDRESSES[:1], "worker": ADDRESSES[1:]}


def task(cluster, job, index):
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (tf_config(WORKERS, 1), (WORKERS, 1)),
        # As Kubeflow's operator writes it: a chief and workers.
        (task(TFJOB, "chief", 0), (ADDRESSES, 0)),
        (task(TFJOB, "worker", 1), (ADDRESSES, 2)),
        (task({"master": ["m:1"], "worker": WORKERS}, "worker", 1), (["m:1", *WORKERS], 2)),
        (task({**TFJOB, "ps": [], "evaluator": ["e:1"]}, "worker", 0), (ADDRESSES, 1)),
        (task({"worker": WORKERS, "chief": None}, "worker", 0), (WORKERS, 0)),
        # One machine: no cluster.
        (" \n", ONE_MACHINE),
        ('""', ONE_MACHINE),
        (task({}, "chief", 0), ONE_MACHINE),
        (task({"worker": [], "ps": None}, "worker", 0), ONE_MACHINE),
    ],
)
def test_the_role_of_a_process(config, expected, monkeypatch):
    assert read_tf_config(config) == expected
    monkeypatch.setenv("TF_CONFIG", config)
    cluster = Cluster.from_environment()
    assert (cluster.workers, cluster.index) == (tuple(expected[0]), expected[1])
    assert cluster.is_chief == (expected[1] == 0)


@pytest.mark.parametrize(
    "text",
    [
        "{cluster",
        "[" * 100_000,
        '{"cluster": "a:1"}',
        '{"cluster": {"worker": ["a:1"]}}',
        tf_config(WORKERS, 2),
        tf_config(WORKERS, "0"),
        tf_config(WORKERS, 0, "chief"),
        tf_config(WORKERS, 0, "evaluator", evaluator=["e:1"]),
        tf_config(WORKERS, 0, "ps", ps=["c:1"]),
    ],
)
def test_invalid_tf_config_is_one_error(text):
    refuses(read_tf_config, (text,), "TF_CONFIG", '"worker": ["host:port", ...]')
