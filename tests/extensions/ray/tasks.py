"""Functions that run on the nodes of a cluster. Tests replace the functions of commands by them."""

import functools
import os
import signal
import time
from pathlib import Path

import ray

from keras_transformer.cli import score
from keras_transformer.data import blocks
from keras_transformer.extensions.corpora import monolingual
from tests.extensions.serving.running_server import wait_until


def on_all_nodes(function, *arguments):
    """Calls a function after the special node has begun a task: a victim, which dies, or another
    one.
    """
    began = Path(os.environ["BEGAN"])
    if "NODE" in os.environ:
        began.touch()
    if os.environ.get("NODE") == "victim":
        os.kill(os.getppid(), signal.SIGKILL)  # the raylet
        os.kill(os.getpid(), signal.SIGKILL)
    wait_until(began.exists)
    return function(*arguments)


clean_block = functools.partial(on_all_nodes, blocks.clean_block)
translate_block = functools.partial(on_all_nodes, monolingual.translate_block)
score_block = functools.partial(on_all_nodes, score.score_block)


def wait_and_tell(number):
    time.sleep(0.1)
    return number, os.getpid(), ray.get_gpu_ids()


def row(directory, minutes, name):
    directory.mkdir(exist_ok=True)
    return {"result": name, "finished": True}


def die_in_the_second_block(block, *arguments):
    if block.line == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return monolingual.translate_block(block, *arguments)


def fail(name, error):
    raise error


def interrupt(block, *arguments):
    """Sends Ctrl-C to the command in the second block, after the first one, and stops."""
    if block.line > 1:
        folder = Path(block.names[0]).parent / ".out.partial" / "work"
        wait_until((folder / "progress.json").exists)
        os.kill(int(os.environ["DRIVER"]), signal.SIGINT)
        time.sleep(600)
    return monolingual.translate_block(block, *arguments)
