r"""Runs keras-transformer serve with more models than its memory holds, for a long time.

Example:
    python -m tests.stress gateway --models_dir=models --memory_mb=150 --minutes=20 \
        --source=newstest2013.en

The folders of --models_dir are exports with float32 weights, and their names are pairs, as in
`en-de`. At first, each model translates all sentences alone. Then clients send sentences for random
pairs to a server without a cache. An answer must be the translation by the model of its pair, and
may not have a pivot. Sentences whose translation two models share are left out.

Prints one JSON object: answers per second, latencies in milliseconds, how often a model was loaded,
and the resident memory over time. The exit code is 1 if a request was lost or answered wrongly, or
if the memory in the last quarter is more than a tenth above that of the second one.
"""

import asyncio
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import command
import httpx
from absl import flags
from measuring import describe_machine
from protocol import Child
from resources import resident_mb
from serving import ROOT, read_sentences

import keras_transformer as kt

FLAGS = flags.FLAGS
flags.DEFINE_string("models_dir", None, "folders of models with float32 weights", required=True)
flags.DEFINE_list("source", None, "files with one sentence per line", required=True)
flags.DEFINE_integer("memory_mb", 150, "memory for the models", lower_bound=1)
flags.DEFINE_integer("clients", 16, "clients at the same time", lower_bound=1)
flags.DEFINE_float("minutes", 20, "length of the run", lower_bound=0.1)

_SENTENCES = 50
_SAMPLE_S = 10.0


def expected_translations(folder: Path) -> dict[str, dict[str, str]]:
    """Returns the translations of the sentences by each model, by its pair."""
    sentences = read_sentences(FLAGS.source)[:_SENTENCES]
    found = {}
    for path in sorted(folder.iterdir()):
        outputs = kt.load(path)(sentences, document=True)
        found[path.name] = dict(zip(sentences, outputs, strict=True))
    for sentence in sentences:
        if len({known[sentence] for known in found.values()}) < len(found):
            for known in found.values():
                del known[sentence]
    return found


async def soak(port: int, pid: int, expected: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Lets clients send requests, and returns what they found."""
    end = time.perf_counter() + 60 * FLAGS.minutes
    seconds, wrong, memory = list[float](), list[Any](), list[float]()
    questions = [(pair, text) for pair, known in expected.items() for text in known]

    async def client(http: httpx.AsyncClient, random_: random.Random) -> None:
        while (start := time.perf_counter()) < end:
            pair, text = random_.choice(questions)
            source, target = pair.split("-")
            answer = await http.post(
                "/translate", json={"q": text, "source": source, "target": target}
            )
            seconds.append(time.perf_counter() - start)
            if answer.json() != {"translatedText": expected[pair][text]}:
                wrong.append([pair, text, answer.status_code, answer.text])

    async def watch() -> None:
        while time.perf_counter() < end:
            memory.append(round(resident_mb("VmRSS", pid), 1))
            await asyncio.sleep(_SAMPLE_S)

    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as http:
        clients = [client(http, random.Random(seed)) for seed in range(FLAGS.clients)]
        await asyncio.gather(watch(), *clients)
    percent = statistics.quantiles(seconds, n=100)
    return {
        "answers": len(seconds),
        "answers_per_s": round(len(seconds) / (60 * FLAGS.minutes), 1),
        "latency_ms": {f"p{p}": round(1000 * percent[p - 1], 1) for p in (50, 95, 99)},
        "wrong": len(wrong),
        "first_wrong": wrong[:5],
        "memory_mb": memory,
    }


def main() -> int:
    """Prints the results."""
    folder = Path(FLAGS.models_dir)
    expected = expected_translations(folder)
    serve = [sys.executable, str(ROOT / "bin" / "serve.py"), f"--models_dir={folder}"]
    serve += ["--rest_port=0", "--cache_mb=0", f"--memory_mb={FLAGS.memory_mb}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with Child("keras-transformer serve", serve, environment, answers=False) as server:
        port = int(server.wait_for(r"http://[^:]+:(\d+)/", 300)[1])
        result = asyncio.run(soak(port, server.pid, expected))
        loads = server.output().count(" Loaded ")
    quarter = len(result["memory_mb"]) // 4
    early, late = result["memory_mb"][quarter : 2 * quarter], result["memory_mb"][-quarter:]
    is_flat = not quarter or statistics.mean(late) < 1.1 * statistics.mean(early)
    print(json.dumps({**describe_machine(), "loads": loads, "flat": is_flat, **result}))
    return int(bool(result["wrong"]) or not is_flat)


if __name__ == "__main__":
    command.run(main)
