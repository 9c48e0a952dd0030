"""Settings of a user's shell that must not reach the commands, each with all commands."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keras_transformer.cli import environment, main
from tests.conftest import PHRASES
from tests.driver import Driver
from tests.messages import tells

if TYPE_CHECKING:
    from keras_transformer.runs.run_directory import RunDirectory

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {"average": "average_checkpoints"}

# Shows the help of every command, and an error of every command.
ALL_COMMANDS = """
import sys
from keras_transformer.cli import main
for command in main.COMMANDS:
    for option in ("--help", "--\\u00fcnknown=1"):
        try: main.run(command, [command, option])
        except SystemExit as ended: print(command, ended.code)
"""

SETTINGS: dict[str, dict[str, str]] = {
    "colors": {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "1"},
    "hash seed": {"PYTHONHASHSEED": "7"},
    "home": {"HOME": "/nonexistent", "TMPDIR": "/nonexistent"},
    "keras": {"KERAS_BACKEND": "jax", "TF_USE_LEGACY_KERAS": "1", "KERAS_MAX_EPOCHS": "x"},
    "optimized": {"PYTHONOPTIMIZE": "2"},
    "posix": {"LC_ALL": "POSIX"},
    "posix without UTF-8": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "safe path": {"PYTHONSAFEPATH": "1"},
    "streams": {"PYTHONIOENCODING": "ascii", "PYTHONUNBUFFERED": "1"},
    "tensorflow": {"TF2_BEHAVIOR": "0", "OMP_NUM_THREADS": "1", "XLA_FLAGS": "rubbish"},
    "torch": {"KERAS_BACKEND": "torch", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "cpp"},
    "warnings": {"PYTHONWARNINGS": "error"},
}
# All settings that do not exclude each other.
HOSTILE = {
    name: value
    for setting in ("colors", "home", "keras", "posix", "safe path", "streams")
    for name, value in SETTINGS[setting].items()
} | {
    "MPLBACKEND": "module://missing",
    "OMP_NUM_THREADS": "1",
    "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "cpp",
    "PYTHONWARNINGS": "error",
    "TF2_BEHAVIOR": "0",
}


def variables(**settings: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **settings}


def script(command: str) -> str:
    return str(ROOT / "bin" / f"{SCRIPTS.get(command, command)}.py")


def ended(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    settings = options.pop("settings", {})
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(
        [sys.executable, *map(str, command)], env=variables(**settings), check=False, timeout=120,
        encoding="utf-8", **streams,
    )  # fmt: skip


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a line of bash, in which `keras-transformer` is the console command of this clone."""
    program = folder / "keras-transformer"
    program.write_text(
        f"#!{sys.executable}\nfrom keras_transformer.cli.main import main\nmain()\n", "utf-8"
    )
    program.chmod(0o755)
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], cwd=folder, check=False, timeout=120,
        capture_output=True, text=True, env=variables(PATH=f"{folder}:{os.environ['PATH']}"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def shown() -> str:
    """The output of all commands without a special setting."""
    return said_by_all({})


def said_by_all(settings: dict[str, str]) -> str:
    result = ended("-c", ALL_COMMANDS, settings=settings)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    errors = result.stderr.splitlines()
    assert len(errors) == len(main.COMMANDS), result.stderr
    assert all(line.startswith("error: ") for line in errors)
    return result.stdout


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_command_shows_the_same_under_each_setting(setting: str, shown: str) -> None:
    assert shown.count(" 0\n") >= len(main.COMMANDS) <= shown.count(" 2\n")
    assert said_by_all(SETTINGS[setting]) == shown


@pytest.mark.parametrize("command", main.COMMANDS)
def test_every_script_finds_its_clone_with_a_safe_path(command: str, tmp_path: Path) -> None:
    result = ended(script(command), "--help", settings={"PYTHONSAFEPATH": "1", "PYTHONPATH": ""})
    assert (result.returncode, result.stderr) == (0, "")
    assert f"bin/{SCRIPTS.get(command, command)}.py " in result.stdout


# Real work of the commands, in a folder with the files of `work_folder`.
WORK = (
    ("prepare", "--source=ü.en --target=ü.de --output_dir=data --vocab_size=60 --valid_pairs=1"),
    (
        "train",
        "--data_dir=data --run_dir=trained --preset=tiny --max_steps=2 --batch_tokens=64 "
        "--jit_compile=false --set=model.num_encoder_layers=1 --set=model.num_decoder_layers=1 "
        "--set=model.d_model=16 --set=model.d_ff=16 --set=model.num_heads=2",
    ),
    ("average", "--run_dir=trained --last=1"),
    ("report", "--run_dir=trained --data_dir=data"),
    ("evaluate", "--model_dir=rün --source=ü.en --reference=ü.de"),
    ("translate", "--model_dir=rün --input=ü.en"),
    ("translate", "--model_dir=export --input=ü.en --output=ü.out"),
    ("translate_corpus", "--model_dir=rün --input=ü.en --output_dir=corpus"),
    ("score", "--model_dir=rün --source=ü.en --target=ü.de"),
    ("visualize", "--model_dir=rün --sentence=ball --output_dir=pictures"),
    ("score_trees", "--gold=gold --hypothesis=gold"),
    # These would take long. Their errors say that they have read their arguments.
    ("export", "--run_dir=nöne --data_dir=data --output_dir=e"),
    ("serve", "--model_dir=nöne"),
    ("demo", "--model_dir=nöne"),
    ("recipe", "--recipe=nöne --corpus_dir=c --work_dir=w"),
    ("sweep", "--table3 --data_dir=nöne --work_dir=w"),
    ("baseline", "--data_dir=nöne --work_dir=w --source=ü.en --reference=ü.de"),
    ("prepare_trees", "--treebank=nöne --output_dir=t"),
    ("parse", "--model_dir=nöne --input=ü.en"),
    ("phrasebook", "--output_dir=ü.en"),
    ("convert", "--from=marian --input=märian/post_norm.npz --output=converted"),
)


@pytest.fixture
def work_folder(
    tmp_path: Path, run_directory: RunDirectory, exported_run: Path
) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "rün").symlink_to(run_directory.path)
        (folder / "export").symlink_to(exported_run)
        (folder / "märian").symlink_to(ROOT / "tests" / "fixtures" / "marian")
        for language in ("en", "de"):
            (folder / f"ü.{language}").write_text("\n".join(PHRASES) + "\n", "utf-8")
        (folder / "gold").write_text("(S (NP (DT the) (NN dog)) (VP (VBZ runs)))\n", "utf-8")
        return folder

    return make


@pytest.mark.long
def test_all_commands_work_the_same_under_all_settings_at_once(
    work_folder: Callable[[str], Path], driver: Driver
) -> None:
    assert {name for name, _ in WORK} == set(main.COMMANDS)
    work = [(SCRIPTS.get(name, name), flags, "") for name, flags in WORK]
    expected = driver.run_all(work_folder("expected"), work)
    with Driver(**HOSTILE) as hostile:
        results = hostile.run_all(work_folder("hostile"), work)
    for (name, flags, _), result, plain in zip(work, results, expected, strict=True):
        assert "Traceback" not in result.err, f"{name} {flags}: {result.err}"
        assert without_times(result) == without_times(plain), f"{name} {flags}"


def without_times(result: Any) -> tuple[Any, ...]:
    """Returns the exit code, the output, the messages and the files, without measured numbers."""
    texts = (
        re.sub(r"[\d.,]+ (s|ms|min|MB|tokens/s|a second|sentences)\b|\"seconds\": [\d.]+", "", text)
        for text in (result.out, result.err)
    )
    return (result.code, *texts, [re.sub(r"\d{6,}\S*", "", name) for name in result.left])


@pytest.mark.parametrize(
    "setting",
    [
        # It compiles all modules again, because no cache has optimized ones.
        pytest.param("optimized", marks=pytest.mark.long),
        "posix without UTF-8",
    ],
)
def test_python_starts_again_where_libraries_would_fail(
    setting: str, work_folder: Callable[[str], Path]
) -> None:
    folder = work_folder("ä")
    command = [script("translate"), f"--model_dir={folder / 'rün'}", f"--input={folder / 'ü.en'}"]
    result = ended(*command, settings=SETTINGS[setting])
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("\n") == len(PHRASES)


# Standard streams.


@pytest.mark.parametrize(
    ("redirect", "reason"), [(">/dev/full", "No space left"), (">&-", "closed")]
)
@pytest.mark.parametrize(
    "command", ["--help", "train --help", "score_trees --gold={0} --hypothesis={0}"]
)
def test_output_that_cannot_be_written_is_one_sentence(
    command: str, redirect: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "gold").write_text("(S (NP (DT the) (NN dog)) (VP (VBZ runs)))\n")
    result = shell(f"keras-transformer {command.format('gold')} {redirect}", tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("error: standard output ") and result.stderr.count("\n") == 1
    assert reason in result.stderr


PREPARE = (
    "keras-transformer prepare --source=a.en --target=a.en --output_dir=data --vocab_size=60 "
    "--valid_pairs=1"
)


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full", "<&- >&- 2>&-", ">/dev/full"])
def test_files_are_whole_without_streams(streams: str, tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("\n".join(PHRASES) + "\n", "utf-8")
    expected = shell(PREPARE, tmp_path)
    assert expected.returncode == 0, expected.stderr
    (tmp_path / "data").rename(tmp_path / "expected")
    result = shell(f"{PREPARE} {streams}", tmp_path)
    assert result.returncode == (0 if streams.startswith("2") else 1), result.stderr

    def files(folder: Path) -> dict[str, bytes]:
        paths = (path for path in folder.rglob("*") if path.is_file())
        without_report = (path for path in paths if path.suffix not in (".json", ".html"))
        return {str(path.relative_to(folder)): path.read_bytes() for path in without_report}

    assert files(tmp_path / "data") == files(tmp_path / "expected")
    json.loads((tmp_path / "data" / "report.json").read_text("utf-8"))


def test_a_closed_standard_input_is_one_sentence(
    run_directory: RunDirectory, tmp_path: Path
) -> None:
    result = shell(f"keras-transformer translate --model_dir={run_directory.path} <&-", tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "error: standard input is closed.\n"


@pytest.mark.parametrize("command", ["", *main.COMMANDS])
def test_head_ends_a_command_quietly(command: str, tmp_path: Path) -> None:
    line = f"(sleep 0.1; keras-transformer {command} --help; echo $? >code) | true"
    result = shell(line, tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert (tmp_path / "code").read_text() == "141\n"


def test_a_dumb_terminal_has_no_progress_bar() -> None:
    program = (
        "from keras_transformer.console import progress_bar\n"
        "with progress_bar(3, 'lines', 'reading') as bar: bar.update(3)\n"
    )
    drawn = {}
    for terminal in ("xterm", "dumb"):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        result = ended("-c", program, stderr=theirs, settings={"TERM": terminal})
        os.write(theirs, b"end")
        drawn[terminal] = os.read(ours, 10_000)
        assert result.returncode == 0
        os.close(ours)
        os.close(theirs)
    assert b"3/3" in drawn["xterm"] and drawn["dumb"] == b"end"


# Signals.


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_raise_an_interrupt(name: str) -> None:
    program = (
        "import time\n"
        "from keras_transformer.cli import environment\n"
        "def program():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "environment.run(program)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=variables(),
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(getattr(signal, name))
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.startswith("\nerror: stopped by ") and tells(said, name.replace("SIGINT", "Ctrl-C"))
    assert said.count("\n") == 2


def test_nohup_is_respected() -> None:
    program = (
        "import os, signal\n"
        "from keras_transformer.cli import environment\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "environment.run(lambda: os.kill(os.getpid(), signal.SIGHUP))\n"
    )
    result = ended("-c", program)
    assert (result.returncode, result.stderr) == (0, "")


INTERRUPT_IMPORT = """
import builtins, os, signal, sys
name, *arguments = sys.argv[1:]

def interrupting(module, *args, importing=builtins.__import__, **options):
    if module == name:
        print("importing")
        os.kill(os.getpid(), signal.SIGINT)
    return importing(module, *args, **options)

builtins.__import__ = interrupting
from keras_transformer.cli.main import main
sys.argv = ["keras-transformer", *arguments]
main()
"""


@pytest.mark.parametrize("module", ["absl", "datetime", "numpy", "tensorflow.python", "keras"])
def test_ctrl_c_while_modules_are_imported_shows_no_stack_trace(
    module: str, run_directory: RunDirectory
) -> None:
    """NumPy, for example, turns an interrupted import of datetime into an `ImportError`."""
    result = ended("-c", INTERRUPT_IMPORT, module, "translate", f"--model_dir={run_directory.path}")
    assert (result.returncode, result.stdout, result.stderr) == (130, "importing\n", "")


def test_the_process_of_a_caller_is_restored() -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    streams = sys.stdout, sys.stderr
    with pytest.raises(SystemExit) as ending:
        environment.run(lambda: 3)
    assert ending.value.code == 3
    assert before == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert (sys.stdout, sys.stderr) == streams


@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_cluster_configuration_is_removed(value: str) -> None:
    code = (
        "import os\nfrom keras_transformer.cli import environment\n"
        "environment.run(lambda: print(os.environ.get('TF_CONFIG')))"
    )
    assert ended("-c", code, settings={"TF_CONFIG": value}).stdout == "None\n"
    assert ended("-c", code, settings={"TF_CONFIG": "{}"}).stdout == "{}\n"
