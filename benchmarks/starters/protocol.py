r"""What a starter is asked for: to be timed from its first line to its second translation.

It is started as `python -m starters.NAME SETTINGS`, the settings a JSON object, and prints a
JSON object. Nothing is imported here that a way to translate would import too: whoever is
first would pay for both.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Settings = dict[str, Any]
Translate = Callable[[str], str]


def start(
    modules: Sequence[str],
    load: Callable[[Settings], Translate],
    afterwards: Callable[[Settings], dict[str, float]] | None = None,
) -> None:
    """Imports, loads and translates, each timed.

    Prints `import_seconds` of each module, in this order; `load_seconds`, `first_seconds`,
    `second_seconds`; `own_seconds`, load and first, and `start_seconds`, these without what
    the second takes, the translation itself; `all_seconds`, from the start of the
    process to the first translation; `memory_mb`, resident, of the imports, of the
    loaded model and at its peak.

    Args:
        modules: names of all that has to be imported.
        load: from settings to what translates a sentence. The settings are the `path` of the
            model, its `precision`, the `sentence`, the number of `threads`, `beam_size`,
            `length_penalty`, the number of `steps` of every output, and `started`, the
            monotonic clock when the process was.
        afterwards: returns more that is to be printed.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    settings = json.loads(sys.argv[1])
    imports = {}
    for name in modules:
        begun = time.monotonic()
        importlib.import_module(name)
        imports[name] = time.monotonic() - begun
    memory = {"imports": _memory_mb("VmRSS")}

    begun = time.monotonic()
    translate = load(settings)
    loaded = time.monotonic()
    memory["loaded"] = _memory_mb("VmRSS")
    texts, ends = [], []
    for _ in range(2):
        texts.append(translate(settings["sentence"]))
        ends.append(time.monotonic())
    if not texts[0] or texts[0] != texts[1]:
        raise RuntimeError(f"{texts[0]!r}, and then {texts[1]!r}; expected one text twice")
    memory["peak"] = _memory_mb("VmHWM")
    answer = {
        "import_seconds": imports,
        "load_seconds": loaded - begun,
        "first_seconds": ends[0] - loaded,
        "second_seconds": ends[1] - ends[0],
        "own_seconds": ends[0] - begun,
        "start_seconds": ends[0] - begun - (ends[1] - ends[0]),
        "all_seconds": ends[0] - settings["started"],
        "memory_mb": memory,
        **(afterwards(settings) if afterwards is not None else {}),
    }
    print(json.dumps(answer), file=answers, flush=True)


def _memory_mb(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith(field)]
    return int(line.split()[1]) / 1024
