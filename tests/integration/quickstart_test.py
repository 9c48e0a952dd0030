"""bin/quickstart from phrases to a SavedModel: its steps, and the whole script in the long test."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, SHARED_RUNS
from tests.driver import Driver
from tests.messages import tells

# Just enough to learn to end a sentence; otherwise every search runs to its limit.
STEPS = 100


def quickstart(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(ROOT / "bin" / "quickstart"), *arguments],
        cwd=directory, capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "QUICKSTART_STEPS": str(STEPS)},
    )  # fmt: skip


# Stands for Python in the script: records `-m keras_transformer NAME FLAGS`, and makes the files
# that the script reads.
RECORDER = f"""#!/bin/sh
[ "$1" = - ] && exec {sys.executable} "$@"
echo "$@" >>steps
mkdir -p out/corpus
touch out/corpus/test.en out/sentences.de
echo '{{"exact_match": 0.95, "sentences": 8}}'
"""


# Flags of steps, so that they take less time.
SMALL = {
    "prepare": "--vocab_size=400",
    "train": "--max_steps=4 --set=decoding.max_extra_tokens=5 --set=decoding.max_source_tokens=60 "
    "--set=decoding.beam_size=1 --set=model.d_model=32 --set=model.num_encoder_layers=1 "
    "--set=model.num_decoder_layers=1",
    "export": "--format=ctranslate2",
}


@pytest.mark.usefixtures("one_replica")
def test_the_steps_work_with_few_phrases_and_almost_no_training(
    driver: Driver, tmp_path: Path
) -> None:
    """The script itself gets the recorder. Its steps are then taken in this process."""
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / "bin" / "quickstart", tmp_path / "bin")
    environment = f"venv={tmp_path}\nprepare_environment() {{ :; }}\n"
    (tmp_path / "bin" / "environment.sh").write_text(environment)
    (tmp_path / "bin" / "python").write_text(RECORDER)
    (tmp_path / "bin" / "python").chmod(0o755)
    command = ["bash", tmp_path / "bin" / "quickstart", "out"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "\nHeld-out phrases translated exactly: 95.0% of 8\n" in ended.stdout

    shutil.rmtree(tmp_path / "out")
    results = {}
    SHARED_RUNS.add(tmp_path / "out" / "run")  # no step loads it before it is trained
    for step in (tmp_path / "steps").read_text().splitlines():
        _, _, name, *flags = step.split()
        results[name] = driver.run(tmp_path, name, [*flags, *SMALL.get(name, "").split()], "")
        assert results[name].code == 0, results[name].err
        if name == "phrasebook":
            for path in (tmp_path / "out/corpus").iterdir():
                lines = path.read_text().splitlines(keepends=True)
                path.write_text("".join(lines[: 2000 if path.stem == "train" else 8]))
            shutil.copy(tmp_path / "out/corpus/test.en", tmp_path / "out/sentences.en")
    assert len(results) == 6
    scores = json.loads(results["evaluate"].out.splitlines()[-1])
    assert scores["sentences"] == 8 and scores["exact_match"] == 0
    assert (tmp_path / "out" / "sentences.de").read_text().count("\n") == 8


@pytest.mark.long
def test_the_whole_script_runs_and_a_bad_model_is_an_error(tmp_path: Path) -> None:
    if not (ROOT / ".venv" / "installed").is_file():
        pytest.skip("no .venv, which bin/quickstart would install; bin/test makes it")
    result = quickstart(tmp_path, "new/quick start")
    assert result.returncode == 1, result.stderr
    sentence = result.stderr.splitlines()[-1]
    assert re.fullmatch(r"error: .*\b\d?\d\.\d ?%.*\b90 ?%.*", sentence), result.stderr
    assert "Traceback" not in result.stderr
    # The folder is relative to the current folder, not to the project.
    assert (tmp_path / "new" / "quick start" / "export" / "1" / "saved_model.pb").is_file()
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]
    assert [line[3:9] for line in result.stdout.splitlines() if line.startswith("== ")] == [
        f"{i} of 6" for i in range(1, 7)
    ]


def test_help_and_wrong_arguments_do_nothing(tmp_path: Path) -> None:
    shown = quickstart(tmp_path, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "bin/quickstart [DIR]" in shown.stdout and "#" not in shown.stdout
    wrong = quickstart(tmp_path, "--steps")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: ") and wrong.stderr.count("\n") == 1
    assert tells(wrong.stderr, "--steps", "bin/quickstart", "directory")
    assert list(tmp_path.iterdir()) == []
