"""The rooms of the package: who may import whom, and who may know TensorFlow."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "keras_transformer"
BINARIES = "bin"

# What each room may import besides itself and `errors`, which belongs to all:
# only rooms that stand above it. Rooms that stand beside each other share none.
ROOMS: dict[str, set[str]] = {
    room: set() for room in ("errors", "quiet", "results", "config", "checkpoints", "json_types")
}
# Those that may be on another machine, where there is neither a run nor TensorFlow.
ALONE: dict[str, set[str]] = {
    "client": {"translation"},
    "litert": {"text", "translation"},
    "translation": set(),
}
for _room, _not_its_business in (
    ("presets", set()),
    ("layers", set()),
    ("encoder_decoder", {"presets", "layers"}),
    ("model", set()),
    ("text", {"layers", "encoder_decoder", "model"}),
    ("data", {"layers", "encoder_decoder", "model"}),
    ("training", {"text"}),
    ("decoding", {"layers", "encoder_decoder", "model", "text", "data", "training"}),
    ("cached_decoding", {"text", "data", "training", "decoding"}),
    ("translator", {"data", "training"}),
    (
        "evaluation_sets",
        {
            "layers",
            "encoder_decoder",
            "model",
            "text",
            "training",
            "decoding",
            "cached_decoding",
            "translator",
        },
    ),
    ("evaluation", {"training"}),
    ("run_directory", {"layers", "encoder_decoder", "model"}),
    (
        "report",
        {
            "presets",
            "layers",
            "encoder_decoder",
            "model",
            "text",
            "data",
            "training",
            "decoding",
            "translator",
        },
    ),
    ("training_run", {"report"}),
    ("translation", set()),
    ("litert", set()),
    ("loading", {"training", "training_run", "report"}),
    ("inference", {"training", "training_run", "report", "litert"}),
    ("documents", {"training", "training_run", "report"}),
    (
        "corpus_translation",
        {"layers", "encoder_decoder", "model", "text", "training", "training_run", "report"},
    ),
    ("scoring", {"training", "training_run", "report", "documents"}),
    (
        "parsing",
        {"layers", "model", "training", "training_run", "report", "documents", "scoring"},
    ),
    ("export", {"training", "training_run", "report", "documents"}),
    ("client", set()),
    # A server has a SavedModel alone.
    (
        "serving",
        {
            *("layers", "encoder_decoder", "model", "training", "training_run", "report"),
            *("scoring", "parsing", "export"),
        },
    ),
    ("experiment", {"serving"}),
    ("recipe_texts", {"evaluation", "training_run", "serving", "experiment", "export"}),
    (
        "recipe",
        {
            "layers",
            "encoder_decoder",
            "model",
            "training",
            "training_run",
            "serving",
            "experiment",
            "export",
        },
    ),
    ("synthetic", {"training", "training_run", "serving", "experiment", "export", "report"}),
    ("recipe_results", {"training_run", "serving", "experiment", "export", "synthetic"}),
    ("recipe_models", {"serving", "synthetic", "recipe_results"}),
    ("recipe_run", {"serving"}),
    (
        "sweep",
        {
            *("layers", "encoder_decoder", "model", "training", "report", "export", "serving"),
            *("recipe_results", "recipe_models", "recipe_run"),
        },
    ),
    # What the Transformer is compared with: nothing but a binary needs it.
    (
        "baselines",
        {
            *("documents", "corpus_translation", "export", "client", "serving"),
            *("recipe_texts", "recipe", "recipe_results", "recipe_models", "recipe_run"),
        },
    ),
    (
        "visualization",
        {
            *("layers", "encoder_decoder", "model", "training", "training_run", "documents"),
            *(
                "corpus_translation",
                "evaluation",
                "evaluation_sets",
                "scoring",
                "parsing",
                "litert",
            ),
            *("client", "serving", "experiment"),
            *("recipe_texts", "recipe", "synthetic", "recipe_results", "recipe_models"),
            *("recipe_run", "sweep"),
            "baselines",
        },
    ),
    (
        "playground",
        {
            *("layers", "encoder_decoder", "model", "training", "training_run", "documents"),
            *("corpus_translation", "evaluation", "evaluation_sets", "scoring", "parsing"),
            *("litert", "serving", "experiment"),
            *("recipe_texts", "recipe", "synthetic", "recipe_results", "recipe_models"),
            *("recipe_run", "sweep"),
            "baselines",
        },
    ),
):
    ROOMS[_room] = ALONE.get(_room, set(ROOMS) - _not_its_business)
ROOMS[BINARIES] = set(ROOMS)


def imported_modules(path: Path) -> Iterator[str]:
    """Dotted names that a file imports anywhere in it, functions included."""
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            module = node.module or ""
            # `from keras_transformer import config` imports keras_transformer.config.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return BINARIES if parts[0] == BINARIES else parts[1]


FILES = sorted(
    path
    for folder in (PACKAGE, BINARIES)
    for path in (ROOT / folder).rglob("*.py")
    if path != ROOT / PACKAGE / "__init__.py"
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_only_upwards(path: Path) -> None:
    room = room_of(path)
    assert room in ROOMS, f"{path} is in no room of the table"
    allowed = ROOMS[room] | {room, "errors"}
    for name in imported_modules(path):
        package, _, rest = name.partition(".")
        if package == PACKAGE:
            assert rest.split(".")[0] in allowed, f"{path} imports {name}"
        assert package not in ("tests", "benchmarks", "docs", BINARIES), f"{path} imports {name}"


@pytest.mark.parametrize(
    "room", ["config", "errors", "layers", "encoder_decoder", "model", "checkpoints"]
)
def test_room_does_not_know_tensorflow(room: str) -> None:
    paths = [path for path in FILES if room_of(path) == room]
    assert paths, f"no files in {room}"
    for path in paths:
        for name in imported_modules(path):
            package = name.partition(".")[0]
            assert not package.startswith("tensorflow"), f"{path} imports {name}"


@pytest.mark.parametrize("room", ["config", "errors", "checkpoints"])
def test_room_does_not_know_keras(room: str) -> None:
    for path in FILES:
        if room_of(path) == room:
            packages = {name.partition(".")[0] for name in imported_modules(path)}
            assert not packages & {"keras", "tf_keras", "jax"}, f"{path} imports {packages}"
