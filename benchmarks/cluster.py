#!/usr/bin/env python3
r"""Measures what Ray costs next to processes on this machine, and simulates large clusters.

Example:
    benchmarks/cluster.py --tsv=tatoeba.tsv --pairs=2000000 --model_dir=build/export/1 \
        --input=mono.en --rounds=3 --work_dir=build/cluster

A cluster of one node is started on this machine. keras-transformer prepare and translate_corpus run
in new processes, in turns: with processes of this machine, and with --ray. A run with --ray
includes the start of the processes of the cluster: they are stopped after each turn.

The simulation draws times of blocks from those of the text on this machine, adds stragglers and
lost nodes, and follows the order in which --ray starts and repeats blocks. It is compared with the
cluster of this machine, whose tasks then only wait, as if it had 16 nodes.

Prints one JSON object: rates and their ratios, the check of the simulation, and for each number of
nodes the efficiency: the time of the blocks, divided by the nodes and the time of the simulation.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import command
import ray
from absl import flags
from measuring import Turn, describe_machine, ratio, spread, take_turns
from prepare import make_corpus

from keras_transformer import plugins
from keras_transformer.data.blocks import read_blocks
from keras_transformer.data.reading import read_text
from keras_transformer.data.workers import run_tasks
from keras_transformer.extensions.corpora import monolingual
from keras_transformer.extensions.ray import AHEAD, QUEUED
from keras_transformer.runs.atomic import growing_files

FLAGS = flags.FLAGS
flags.DEFINE_string("model_dir", None, "export to translate with", required=True)
flags.DEFINE_string("input", None, "text to translate", required=True)
flags.DEFINE_float("node_hours", 12.0, "mean time until a node of the simulation is lost")

_ADDRESS = "127.0.0.1:6399"
_CHECKED_NODES = 16
_START_SECONDS = 20  # until the processes of the cluster have started and are idle
_BLOCKS_PER_NODE = 200
_FOUND_SECONDS, _REPLACED_SECONDS = 60.0, 180.0  # until a lost block runs again, or a new node
_NEW_NODE = -1
_NEVER = 1e9  # hours
_STRAGGLERS, _SLOWNESS = 0.02, 5.0


def run(name: str, arguments: Sequence[str], lines: int) -> Turn:
    """Runs a command in a new process, and returns its rate."""
    output = Path(FLAGS.work_dir) / "out"
    shutil.rmtree(output, ignore_errors=True)
    started = time.perf_counter()
    program = [sys.executable, "-m", "keras_transformer", name, f"--output_dir={output}"]
    subprocess.run([*program, *arguments], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "per_second": lines / seconds}


def on_cluster(name: str, arguments: Sequence[str], lines: int) -> Turn:
    """Runs a command on a new cluster, whose start is not measured."""
    with cluster(cores=2):
        return run(name, [*arguments, f"--ray={_ADDRESS}"], lines)


@contextlib.contextmanager
def cluster(cores: int) -> Iterator[None]:
    """Runs a cluster of one node on this machine, with a number of cores that may be pretended."""
    host, port = _ADDRESS.split(":")
    start = ["start", "--head", "--block", f"--node-ip-address={host}", f"--port={port}"]
    start += [f"--num-cpus={cores}", "--include-dashboard=false", "--disable-usage-stats"]
    program = [sys.executable, "-m", "ray.scripts.scripts", *start]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            time.sleep(_START_SECONDS)
            yield
        finally:
            ray.shutdown()  # the end of its node would end this process
            process.terminate()


def block_seconds() -> list[float]:
    """Returns the measured times of the text's blocks, except for the first, which loads the model,
    and the last, which has fewer lines.
    """
    model = (FLAGS.model_dir, monolingual.model_fingerprint(Path(FLAGS.model_dir)))
    blocks = read_blocks(Path(FLAGS.input), monolingual.BLOCK_LINES)
    results = [monolingual.translate_block(one, model, (None, None), None) for one in blocks]
    return [float(result["seconds"]) for result in results[1:-1]]


def draw_seconds(times: Sequence[float], blocks: int, draw: random.Random) -> list[float]:
    """Returns measured times for blocks, of which some take much longer, as on slow nodes."""
    slowness = (_SLOWNESS if draw.random() < _STRAGGLERS else 1 for _ in range(blocks))
    return [draw.choice(times) * factor for factor in slowness]


def simulate(
    seconds: Sequence[float], nodes: int, dispatch: float, node_hours: float, draw: random.Random
) -> float:
    """Returns the seconds until nodes, each with one block at a time, have finished all blocks.

    Args:
        seconds: time of each block.
        nodes: number of nodes. A lost node is replaced.
        dispatch: seconds that the command needs to start a block and to save its result.
        node_hours: mean time until a node is lost.
        draw: random numbers.
    """
    now, started, first = 0.0, 0, 0  # first: the first block whose result is missing
    finished = [False] * len(seconds)
    queue: collections.deque[int] = collections.deque()
    free = nodes
    events: list[tuple[float, int, bool]] = []  # time, block or _NEW_NODE, whether it was lost
    running = 0
    most = nodes + QUEUED

    def can_start() -> bool:
        return started < min(len(seconds), first + AHEAD * most) and len(queue) + running < most

    while first < len(seconds):
        while can_start():
            queue.append(started)
            started, now = started + 1, now + dispatch
            if free:
                break  # it begins before the next one is started
        while free and queue:
            block, free, running = queue.popleft(), free - 1, running + 1
            lost_after = draw.expovariate(1 / (3600 * node_hours))
            is_lost = lost_after < seconds[block]
            end = now + (lost_after + _FOUND_SECONDS if is_lost else seconds[block])
            heapq.heappush(events, (end, block, is_lost))
        if can_start() and (not events or now < events[0][0]):
            continue
        end, block, is_lost = heapq.heappop(events)
        now = max(now, end)
        if block == _NEW_NODE:
            free += 1
            continue
        running -= 1
        if is_lost:
            queue.append(block)
            heapq.heappush(events, (now + _REPLACED_SECONDS, _NEW_NODE, False))
            continue
        free, finished[block] = free + 1, True
        while first < len(seconds) and finished[first]:
            first += 1
    return now


def check_simulation(times: Sequence[float]) -> dict[str, float]:
    """Compares the simulation with the cluster of this machine, whose tasks wait, 0.5 s on average
    before some are slowed down. Each result is a block of text, which is saved.
    """
    draw = random.Random(1)
    scale = 0.5 * len(times) / sum(times)
    seconds = draw_seconds([scale * one for one in times], 20 * _CHECKED_NODES, draw)
    with cluster(cores=_CHECKED_NODES):
        runner = plugins.find("task_runners", "ray").connect(_ADDRESS)
        folder = Path(FLAGS.work_dir)
        text = next(read_blocks(Path(FLAGS.input), monolingual.BLOCK_LINES)).texts[0]

        def measure(waits: Sequence[float]) -> float:
            started = time.perf_counter()
            tasks = ((seconds,) for seconds in waits)
            with growing_files(folder, ["saved"]) as (_, save):
                for _ in run_tasks(time.sleep, tasks, runner, folder):
                    save([text], None)
            return time.perf_counter() - started

        measure([2.0] * 4 * _CHECKED_NODES)  # starts the processes
        dispatch = measure([0.0] * 400) / 400
        measured = measure(seconds)
    simulated = simulate(seconds, _CHECKED_NODES, dispatch, _NEVER, draw)
    return {
        "dispatch_ms": round(1000 * dispatch, 1),
        "ideal_seconds": round(sum(seconds) / _CHECKED_NODES, 1),
        "measured_seconds": round(measured, 1),
        "simulated_seconds": round(simulated, 1),
    }


def efficiencies(times: Sequence[float], dispatch: float) -> dict[int, dict[str, float]]:
    """Returns the efficiency for each number of nodes, without and with losses of nodes."""
    result = {}
    for nodes in (2**power for power in range(1, 9)):
        blocks = _BLOCKS_PER_NODE * nodes
        seconds = draw_seconds(times, blocks, random.Random(nodes))
        result[nodes] = {
            name: round(sum(seconds) / nodes / simulate(seconds, nodes, dispatch, hours, draw), 3)
            for name, hours in (("no node is lost", _NEVER), ("nodes are lost", FLAGS.node_hours))
            for draw in [random.Random(nodes)]
        }
    return result


def main() -> int:
    """Prints the measurements."""
    work_dir = Path(FLAGS.work_dir)
    source, target, pairs = make_corpus(work_dir)
    lines = len(read_text(FLAGS.input))
    commands = {
        "prepare": ([f"--source={source}", f"--target={target}"], pairs, "--workers=2"),
        "translate_corpus": (
            [f"--model_dir={FLAGS.model_dir}", f"--input={FLAGS.input}"], lines, "--workers=1",
        ),
    }  # fmt: skip
    result: dict[str, Any] = {"machine": describe_machine(), "pairs": pairs, "lines": lines}
    for name, (arguments, number, workers) in commands.items():
        calls: dict[str, Callable[[int], Turn]] = {
            "ray": lambda _, a=arguments, n=number, c=name: on_cluster(c, a, n),
            "processes": lambda _, a=arguments, n=number, c=name, w=workers: run(c, [*a, w], n),
        }
        turns = take_turns(calls, FLAGS.rounds)
        result[name] = {
            **{kind: spread([turn["seconds"] for turn in turns[kind]], 1) for kind in calls},
            "ratio": ratio(turns, "ray", "processes"),
        }
    result["block_seconds"] = times = block_seconds()
    result["simulation"] = check = check_simulation(times)
    result["efficiency"] = efficiencies(times, check["dispatch_ms"] / 1000)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    command.run(main)
