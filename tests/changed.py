"""Prints the tests of what changed since the main branch, the nearest first: `bin/test --fast`."""

import functools
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.imports_test import ROOT, imported_names

ALWAYS = ("tests/imports_test.py", "tests/size_test.py")


def git(*arguments: str) -> list[str]:
    """Returns the lines that a git command prints; none if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.split() if done.returncode == 0 else []


def changed_files() -> set[str]:
    """Returns what differs from the branch point of main, or without one from the last commit."""
    start = git("merge-base", "HEAD", "origin/main") or git("merge-base", "HEAD", "main")
    new = git("ls-files", "--others", "--exclude-standard")
    return {*git("diff", "--name-only", *(start or ["HEAD"])), *new}


def folder_of(path: Path) -> Path:
    """Returns the folder with the tests of a module, or the nearest one that exists."""
    folder = Path("tests", *path.parts[path.parts[0] == "keras_transformer" : -1])
    return next(path for path in (folder, *folder.parents) if (ROOT / path).is_dir())


@functools.cache
def imports() -> dict[Path, list[str]]:
    """Returns the dotted names that each module and each test imports."""
    files = (path for top in ("keras_transformer", "tests") for path in (ROOT / top).rglob("*.py"))
    return {path.relative_to(ROOT): [*imported_names(path)] for path in files}


def importers(path: Path) -> list[Path]:
    """Returns the modules and tests that import a module directly."""
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    return [
        other
        for other, names in imports().items()
        if any(f"{imported}.".startswith(f"{name}.") for imported in names)
    ]


def paths_of(files: Iterable[str]) -> list[str]:
    """Returns the tests of files: their own tests, those of their folders, those of importers."""
    own, near, far = [Path(test) for test in ALWAYS], [], []
    for path in map(Path, files):
        if path.suffix == ".md":
            own.append(Path("tests/docs_test.py"))
        elif path.name.endswith("_test.py"):
            own.append(path)
        elif path.parts[0] in ("keras_transformer", "benchmarks", "tests"):
            folder = folder_of(path)
            own.append(folder / f"{path.stem}_test.py")
            if folder != Path("tests"):
                near += sorted((ROOT / folder).glob("*_test.py"))
            for user in importers(path) if path.suffix == ".py" else ():
                far += [user] * user.name.endswith("_test.py")
                far.append(folder_of(user) / f"{user.stem}_test.py")
    tests = dict.fromkeys(str((ROOT / test).relative_to(ROOT)) for test in (*own, *near, *far))
    return [test for test in tests if (ROOT / test).is_file()]


if __name__ == "__main__":
    print(*paths_of(changed_files()))
