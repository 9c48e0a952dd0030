"""Creates environments in seconds, in which the package is installed from a wheel.

A virtual environment gets the wheel, and links to those packages of this process's environment
that the wheel requires. An extra is one more folder of links.
"""

import csv
import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("keras_transformer", "recipes", "deploy", "setup.py", "setup.cfg", "pyproject.toml")
NAME = "keras-transformer-mt"


def build_wheel(folder: Path) -> Path:
    """Builds a wheel from a copy of the clone, because building leaves files."""
    source = folder / "source"
    source.mkdir()
    for part in (*PARTS, "README.md", "LICENSE"):
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("*.pyc"))
        else:
            shutil.copy(ROOT / part, source / part)
    _pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    shutil.rmtree(source)
    (wheel,) = folder.glob("*.whl")
    return wheel


class Environment:
    """A virtual environment with a wheel of the package and its hard requirements.

    Args:
        folder: folder to create.
        wheel: the file.
    """

    def __init__(self, folder: Path, wheel: Path):
        venv.create(folder, symlinks=True)
        self._folder = folder
        self.site = Path(
            sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
        )
        _pip("--python", str(folder / "bin" / "python"), "install", "--no-compile", str(wheel))
        (distribution,) = importlib.metadata.distributions(name=NAME, path=[str(self.site)])
        self._requires = [Requirement(text) for text in distribution.requires or []]
        self.extras = sorted(distribution.metadata.get_all("Provides-Extra") or [])
        self._core = _closure(self._requires)
        _link(self._core, self.site)

    def extra_packages(self, extra: str) -> set[str]:
        """Returns the names of the packages that an extra adds to the core."""
        return _closure(self._requires, extra) - self._core

    def run(
        self, folder: Path, command: Sequence[str], extra: str | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment, such as keras-transformer or python, in a folder."""
        program, *arguments = command
        return subprocess.run(
            [str(self._folder / "bin" / program), *arguments],
            cwd=folder, env=self.variables(extra), capture_output=True, text=True, check=False,
            timeout=timeout,
        )  # fmt: skip

    def variables(self, extra: str | None = None) -> Mapping[str, str]:
        """Returns the environment variables of a process, optionally with an extra."""
        mine = _environment()
        if extra is not None:
            links = self._folder / "extras" / extra
            if not links.is_dir():
                links.mkdir(parents=True)
                _link(self.extra_packages(extra), links)
            mine["PYTHONPATH"] = str(links)
        return mine


def _environment() -> dict[str, str]:
    """Returns the environment variables of this process without paths of other packages."""
    mine = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**mine, "PYTHONNOUSERSITE": "1"}


def _pip(*arguments: str) -> None:
    without_network = ("--no-index", "--no-deps", "--quiet", "--disable-pip-version-check")
    # Isolated (-I): a clone on PYTHONPATH would count as installed.
    command = [sys.executable, "-I", "-m", "pip", *arguments, *without_network]
    subprocess.run(command, check=True, timeout=300, env=_environment())


def _closure(requirements: Iterable[Requirement], extra: str = "") -> set[str]:
    """Returns the names of the packages that requirements need, directly and indirectly."""
    names: set[str] = set()
    todo = [(requirement, {"extra": extra}) for requirement in requirements]
    while todo:
        requirement, variables = todo.pop()
        if requirement.marker and not requirement.marker.evaluate(variables):
            continue
        name = canonicalize_name(requirement.name)
        try:
            inner = [Requirement(text) for text in importlib.metadata.requires(name) or []]
        except importlib.metadata.PackageNotFoundError:
            continue  # such as JupyterLab, which no test needs
        if name not in names:
            names.add(name)
            todo += [(needed, {"extra": ""}) for needed in inner]
        for own in requirement.extras:
            with_extra = [r for r in inner if r.marker and "extra" in str(r.marker)]
            todo += [(needed, {"extra": own}) for needed in with_extra]
    return names


@functools.cache
def _owners() -> Mapping[str, set[str]]:
    """Returns the packages that have files below each path of this process's environment."""
    owners = defaultdict(set)
    for distribution in importlib.metadata.distributions():
        name = canonicalize_name(distribution.metadata["Name"])
        for path, *_ in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
            while path and not path.startswith(("..", "__pycache__")):
                owners[path].add(name)
                path = path.rpartition("/")[0]
    return owners


def _link(names: set[str], folder: Path) -> None:
    """Links the files of packages. Folders that several packages share are created."""
    site = Path(str(importlib.metadata.distribution("absl-py").locate_file("")))
    linked = set()  # also everything below a link
    for path, owners in sorted(_owners().items()):
        if path.rpartition("/")[0] in linked:
            linked.add(path)
        elif owners <= names:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).symlink_to(site / path)
            linked.add(path)
