"""A wheel in an environment without the clone: the guide, and each extra on top of the core.

No other extra is installed, so the test finds undeclared packages.
"""

import contextlib
import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from backports import zstd

from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES, ROOT
from tests.environment import Environment, build_wheel
from tests.site_test import code_of

# For each extra a command that fails without it. The files are made by `files`.
COMMANDS = {
    "argos": "export --run_dir=run --valid_source=a.en --output_dir=q --format=argos "
    "--languages=en,de",
    "convert": "convert --from=marian --input=marian/post_norm.npz --output=converted",
    "ctranslate2": "export --run_dir=run --valid_source=a.en --output_dir=c --format=ctranslate2",
    "demo": "demo --model_dir=run --port=0 --nobrowser",
    "documents": "translate --model_dir=run --document --input=a.en",
    "files": "translate_file --model_dir=run --input=a.en --output=b.md --format=markdown",
    "gateway": "serve --models_dir=models --rest_port=0",
    "huggingface": "export --run_dir=run --valid_source=a.en --output_dir=h --format=huggingface",
    "languages": "prepare --source=a.en --target=a.de --output_dir=l --check_languages=en,de",
    "litert": "export --run_dir=run --valid_source=a.en --output_dir=lite --format=litert",
    "moses": "evaluate --hypothesis=a.de --reference=a.de --paper_bleu",
    "phrasebook": "phrasebook --output_dir=corpus",
    "plots": "visualize --model_dir=run --sentence=ball --output_dir=pictures",
    "serving": "serve --model_dir=export --rest_port=0",
    "zstd": "prepare --source=a.en.zst --target=a.de --output_dir=z",
}
# The line that a server prints when it is ready. It runs until it is stopped.
READY = {"demo": r"The playground is at http://\S+", "serving": r"REST at http://([^/]+)/"}
READY["gateway"] = READY["serving"]
# More commands that fail without the extra.
ALSO = {
    "ray": ["prepare --source=a.en --target=a.de --output_dir=r --ray=auto"],
    "litert": ["translate --model_dir=a.tflite --input=a.en"],
    "plots": [
        "report --run_dir=run",
        "sweep --table3 --data_dir=none --work_dir=w",
        "baseline --data_dir=none --work_dir=w --source=a.en --reference=a.de",
    ],
}

# A recipe is a file of the wheel. Its corpora are missing.
RECIPE = "recipe --recipe=multi30k_en_de --corpus_dir=none --work_dir=work"
CORE = [
    "prepare --source=a.en --target=a.de --output_dir=core",
    "evaluate --model_dir=run --source=a.en --reference=a.de --beam_size=1",
]

# Extras whose commands do not run here: their packages.
PACKAGES = {
    "docs": "furo myst_nb sphinx sphinx_copybutton sphinx_design",
    "notebook": "babel matplotlib",  # this environment has no JupyterLab
    "ray": "ray",  # its commands need a cluster
}

# Runs the help of all commands, and then the commands of its arguments, and prints the exit code
# and the errors of each. TensorFlow takes seconds to load, so it is one process.
PROGRAM = """
import contextlib, io, json, sys
from keras_transformer.cli import main
for line in [*(f"{command} --help" for command in main.command_modules()), *sys.argv[1:]]:
    command, *flags = line.split()
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try: main.run(command, [command, *flags])
        except SystemExit as ended: code = ended.code or 0
    print("ended", json.dumps([line, code, said.getvalue()]))
"""


def run_all(
    environment: Environment, folder: Path, commands: list[str], extra: str | None = None
) -> dict[str, tuple[int, str]]:
    """Runs commands in one process; returns the exit code and the standard error of each."""
    ended = environment.run(folder, ["python", "-c", PROGRAM, *commands], extra)
    assert ended.returncode == 0, ended.stderr
    assert "accelerator" not in ended.stderr  # LiteRT's log when it is unloaded
    lines = [line for line in ended.stdout.splitlines() if line.startswith("ended ")]
    results = [json.loads(line.removeprefix("ended ")) for line in lines]
    return {line: (code, said) for line, code, said in results}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("installed")
    return Environment(folder / "environment", build_wheel(folder))


@pytest.fixture(scope="module")
def files(
    run_directory: RunDirectory,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Path:
    """A folder with a run, its export (only for the long tests) and a text."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "run").symlink_to(run_directory.path)
    is_long = request.config.getoption("--long")
    export = request.getfixturevalue("exported_run") if is_long else run_directory.path
    (folder / "export").symlink_to(export)
    (folder / "models").mkdir()
    (folder / "models" / "en-de").symlink_to(export)
    (folder / "marian").symlink_to(ROOT / "tests" / "fixtures" / "marian")
    text = "".join(f"{phrase}\n" for phrase in PHRASES)
    for name in ("a.en", "a.de"):
        (folder / name).write_text(text * 10)
    (folder / "a.tflite").write_bytes(b"not read before the extra is there")
    (folder / "a.en.zst").write_bytes(zstd.compress((text * 10).encode()))
    return folder


@contextlib.contextmanager
def until_ready(environment: Environment, folder: Path, extra: str) -> Iterator[re.Match[str]]:
    """Runs a server from its line in `READY` to the end of the block."""
    program = environment.site.parents[2] / "bin" / "keras-transformer"
    with subprocess.Popen(
        [str(program), *COMMANDS[extra].split()], cwd=folder, env=environment.variables(extra),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if found := re.search(READY[extra], line):
                    yield found
                    break
            else:
                pytest.fail("".join(said))
        finally:
            process.kill()


@pytest.mark.long
def test_the_python_guide_runs_as_written(environment: Environment, tmp_path: Path) -> None:
    """Except for the numbers of steps, pieces and layers, which suit a tiny corpus."""
    for side in ("en", "de"):
        (tmp_path / f"train.{side}").write_text("".join(f"{phrase}\n" for phrase in PHRASES * 10))
    code = code_of("docs/python.md", "python")
    layers = "num_encoder_layers=1, num_decoder_layers=1"
    for shown, short in (
        ("max_steps=10_000", f"max_steps=4, {layers}"),
        ("vocab_size=data.tokenizer", f"{layers}, vocab_size=data.tokenizer"),
        ('output_dir="data", vocab_size=8000', 'output_dir="data", vocab_size=70'),
    ):
        assert code.count(shown) == 1
        code = code.replace(shown, short)
    ended = environment.run(tmp_path, ["python", "-c", code], "litert", timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert (tmp_path / "phone" / "1" / "model.tflite").is_file()
    assert (tmp_path / "export2" / "1" / "saved_model.pb").is_file()


def test_the_wheel_is_enough(environment: Environment, tmp_path: Path) -> None:
    program = "import sys, keras_transformer; print(keras_transformer.__file__, *sys.path)"
    ended = environment.run(tmp_path, ["python", "-c", program])
    file, *path = ended.stdout.split()
    assert Path(file).parent.parent == environment.site
    assert sum("site-packages" in entry for entry in path) == 1
    assert (environment.site / "keras_transformer" / "deploy" / "kserve" / "server.py").is_file()


def test_the_core_works_and_a_command_without_its_extra_names_it(
    environment: Environment, files: Path
) -> None:
    # `dev` is this environment.
    assert {*environment.extras} - {"dev"} == COMMANDS.keys() | PACKAGES.keys()
    extras = {line: extra for extra, line in COMMANDS.items()}
    extras |= {line: extra for extra, lines in ALSO.items() for line in lines}
    results = run_all(environment, files, [*CORE, RECIPE, *extras])
    assert [results[line][0] for line in CORE] == [0, 0], results
    assert results[RECIPE][0] == 1 and "none/" in results[RECIPE][1]
    for line, extra in extras.items():
        code, said = results[line]
        sentence = said.splitlines()[-1]
        assert code == 1 and "Traceback" not in said, said
        assert sentence.startswith("error: ") and f" needs the extra {extra} (" in sentence
        assert sentence.endswith(f". Run: pip install 'keras-transformer-mt[{extra}]'")


@pytest.mark.long
@pytest.mark.parametrize("extra", [*COMMANDS, *PACKAGES])
def test_an_extra_on_top_of_the_core(environment: Environment, files: Path, extra: str) -> None:
    if extra in READY:
        with until_ready(environment, files, extra) as found:
            if extra == "gateway":
                form = urllib.parse.urlencode({"q": "59", "source": "en", "target": "de"})
                url = f"http://{found[1]}/translate"
                with urllib.request.urlopen(url, form.encode(), timeout=300) as answer:
                    assert "translatedText" in json.loads(answer.read())
            elif extra == "serving":
                asked = f"translate --model_dir={found[1]}/export --input=a.en"
                ended = environment.run(files, ["keras-transformer", *asked.split()], extra)
                assert ended.returncode == 0 and "59 ||| " in ended.stdout, ended.stderr
        return
    # Packages of an extra must not break the core. A namespace package once did.
    commands = [f"{CORE[0]}-{extra}", CORE[1]]
    if extra in COMMANDS:
        commands.append(COMMANDS[extra])
    if extra == "litert":
        commands.append("translate --model_dir=lite/1/model.tflite --input=a.en")
    results = run_all(environment, files, commands, extra)
    assert [line for line, (code, said) in results.items() if code or "cannot be" in said] == []
    if extra in PACKAGES:
        program = f"import {', '.join(PACKAGES[extra].split())}"
        ended = environment.run(files, ["python", "-c", program], extra)
        assert ended.returncode == 0, ended.stderr
