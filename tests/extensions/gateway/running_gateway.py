"""A gateway with engines that need no model, in a thread of the test's process."""

import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.extensions.gateway import Settings, create_gateway
from keras_transformer.extensions.gateway.server import Gateway
from keras_transformer.inference.engine import Engine
from tests.extensions.serving.running_server import SECONDS, in_thread


class WordEngine(Engine):
    """Adds the target language to each word of letters: "A wall." becomes "Ade wallde.".

    It keeps the terms of the tests.
    """

    n_best = 2

    def __init__(self, target: str, before: Callable[[list[str]], object] = lambda texts: None):
        self.target, self.before, self.label = target, before, f"to {target}"
        self.symbols = ("<formal>", "<informal>") if target == "de" else ()

    def translate(self, text: Any) -> dict[str, Any]:
        """Returns two translations. The second one is in capitals."""
        lines = [line.decode() for line in text]
        self.before(lines)
        best = [
            re.sub(r"(?<!\S)(?!Wand|mur$)([^\W\d_]+)(?=[.!?]?(\s|$))", rf"\1{self.target}", t)
            for t in lines
        ]
        rows = [[line.encode(), line.upper().encode()] for line in best]
        return {
            "translations": np.array(rows, object),
            "scores": np.array([[-1.0, -2.0]] * len(rows)),
        }

    def lengths(self, text: Any) -> dict[str, Any]:
        """Counts words."""
        counts = np.array([len(line.split()) + 1 for line in text])
        return {"tokens": counts, "used": counts, "unknown": 0 * counts}


def open_words(path: Path, batches_at_once: int) -> Engine:
    """Opens a folder as a `WordEngine`."""
    if (path / "damaged").exists():
        raise InputError(f"{path} is damaged.")
    return WordEngine(path.name.split("-")[1])


def make_models(folder: Path, *names: str, megabytes: int = 0) -> Path:
    """Makes folders of models with a size. Their format needs no TensorFlow."""
    for name in names:
        (folder / name).mkdir(parents=True)
        facts = {"format_version": 1, "format": "litert", "files": {}, "name": name}
        (folder / name / "manifest.json").write_text(json.dumps(facts))
        with (folder / name / "weights").open("wb") as file:
            file.truncate(megabytes << 20)
    return folder


@contextlib.contextmanager
def running_gateway(
    models_dir: Path, open_model: Any = open_words, **settings: Any
) -> Iterator[tuple[Gateway, httpx.Client]]:
    """Serves models at a free port. Yields the gateway and a client with its URL."""
    options = {"rest_port": 0, "poll_seconds": 0.05, "batch_timeout_ms": 0.0, **settings}
    options["batches_at_once"] = options.get("batches_at_once", 1)
    create = functools.partial(create_gateway, open_model=open_model)
    with in_thread(Settings(models_dir, **options), create) as (gateway, port, _):
        scheme = "https" if options.get("tls_certificate") else "http"
        url = f"{scheme}://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=SECONDS, verify=False, trust_env=False) as client:
            yield gateway, client
