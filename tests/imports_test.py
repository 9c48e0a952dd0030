"""The layout of the package: which component may import which, and which may import TensorFlow."""

import ast
import functools
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "keras_transformer"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
BINARIES = sorted((ROOT / "bin").glob("*.py"))

# Each component of the core (a folder or module) with the components that it may import. It may
# also import itself, `errors` and `plugins`. All of them must be above it.
COMPONENTS: dict[str, set[str]] = {
    "errors": set(),
    "plugins": set(),
    "console": set(),
    "config": set(),
    "layers": set(),
    "text": set(),
    "presets": {"config", "text"},
    "models": {"config", "layers", "presets"},
    "runs": {"config", "console", "text"},
    "tf_import": {"console", "runs"},  # native logs, and the cores of this machine
    "data": {"config", "console", "runs", "text"},
    "decoding": {"config", "layers", "models"},
    "evaluation": {"data", "text"},
    "inference": set("config console data decoding evaluation models runs text".split()),
    "training": set(
        "config console data evaluation inference layers models presets runs text".split()
    ),
    "export": set("config console data decoding evaluation inference models runs text".split()),
    "api": set("config data export inference models runs text training".split()),
    "cli": set("config console data evaluation export inference runs tf_import training".split()),
    "__main__": {"cli"},
}
# Each extension with the other extensions that it may import. Any extension may import the core.
EXTENSIONS: dict[str, set[str]] = {
    "converters": {"huggingface"},
    "litert": {"converters"},
    "ctranslate2": set(),
    "huggingface": {"converters"},
    "argos": {"ctranslate2"},
    "serving": {"litert"},
    "alignment": set(),
    "shortlist": {"alignment"},
    "documents": set(),
    "gateway": {"documents", "serving"},
    "augmentation": {"alignment", "documents"},
    "corpora": set(),
    "pages": {"serving"},
    "ray": set(),
    "paper": {"alignment", "corpora"},
}
WITHOUT_TENSORFLOW = ("config", "errors", "layers", "models", "presets")
WITHOUT_KERAS = ("config", "errors", "presets")


def name_of(path: Path) -> str:
    """Returns the name of a module below the package, such as `layers.attention`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


KNOWN = {name_of(module) for module in PACKAGE.rglob("*.py")}


def component_of(name: str) -> str:
    return name.split(".")[0]


def extension_of(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "extensions" and len(parts) > 1 else None


def imported_names(path: Path) -> Iterator[str]:
    """Returns the dotted names that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            # `from keras_transformer import config` imports keras_transformer.config.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def imported_modules(path: Path) -> set[str]:
    """Returns the names of the package's modules that a file imports."""
    modules = set()
    for name in imported_names(path):
        package, _, rest = name.partition(".")
        if package == PACKAGE.name:
            modules.add(rest if rest in KNOWN else rest.rpartition(".")[0])
    return modules - {""}


def test_components_import_only_components_above_them() -> None:
    above: set[str] = set()
    for component, allowed in COMPONENTS.items():
        assert allowed <= above, f"{component} may not import {allowed - above}"
        above.add(component)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_import_only_allowed_components(path: Path) -> None:
    component = component_of(name_of(path))
    extension = extension_of(name_of(path))
    assert component in {*COMPONENTS, "extensions"}, f"{path} belongs to no component of the table"
    for module in imported_modules(path):
        other = extension_of(module)
        if extension is not None:
            assert other in {None, extension, *EXTENSIONS[extension]}, f"{path} imports {module}"
        elif other is not None:
            pytest.fail(f"the core never imports an extension: {path}")
        else:
            assert component_of(module) in {*COMPONENTS[component], component, "errors", "plugins"}


def test_the_core_names_no_module_of_an_extension() -> None:
    for path in PACKAGE.rglob("*.py"):
        if extension_of(name_of(path)) is None:
            assert "keras_transformer.extensions." not in path.read_text("utf-8"), path


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    # The package's __init__ imports its modules lazily, so it is left out.
    graph = {name_of(path): imported_modules(path) for path in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"circular imports: {' -> '.join(error.args[1])}")


def test_modules_import_only_what_is_installed_with_them() -> None:
    for path in (*MODULES, *BINARIES):
        packages = {name.partition(".")[0] for name in imported_names(path)}
        forbidden = {"tests", "benchmarks", "docs", "bin"}  # they exist only in a clone
        if (component := component_of(name_of(path)) if path in MODULES else "") in WITHOUT_KERAS:
            forbidden |= {"keras", "tf_keras", "jax"}
        if component in WITHOUT_TENSORFLOW:
            forbidden |= {"tensorflow", "tensorflow_text"}
        assert not packages & forbidden, path


def test_at_most_seven_modules_are_outside_of_folders() -> None:
    loose = [path.name for path in PACKAGE.glob("*.py") if path.stem[0] != "_"]
    assert len(loose) <= 7, loose


def test_tests_mirror_the_package() -> None:
    beside = {"benchmarks", "integration"}
    for path in (ROOT / "tests").rglob("*_test.py"):
        folder = path.parent.relative_to(ROOT / "tests")
        if folder.parts[:1] and folder.parts[0] in beside:
            continue
        assert (PACKAGE / folder).is_dir(), f"{path} tests a folder that is not in the package"
