"""Prints the tests of the files that changed since the main branch, for `bin/test --fast`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
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


def paths_of(files: Iterable[str]) -> list[str]:
    """Returns the tests of files: a module's own test, or all tests of its folder."""
    tests = set(ALWAYS)
    for path in map(Path, files):
        if path.suffix == ".md":
            tests.add("tests/docs_test.py")
        elif path.name.endswith("_test.py"):
            tests.add(str(path))
        elif path.parts[0] in ("keras_transformer", "benchmarks") and path.suffix == ".py":
            folder = Path("tests", *path.parts[path.parts[0] == "keras_transformer" : -1])
            own = folder / f"{path.stem}_test.py"
            tests.add(str(own if (ROOT / own).is_file() else folder))
    return sorted(test for test in tests if (ROOT / test).exists() and test != "tests")


if __name__ == "__main__":
    print(*paths_of(changed_files()))
