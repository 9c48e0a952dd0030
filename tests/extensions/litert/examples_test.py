"""The examples in deploy/phone translate like `LiteRTModel`, where their tools are installed.

The weekly job of .github/workflows/test.yml installs them:

- C++: g++, SentencePiece's library, and $KERAS_TRANSFORMER_TEST_LITERT, a checkout of LiteRT with
  litert/build_common/build_config.h.
- Kotlin: a JDK, and $KERAS_TRANSFORMER_TEST_NODE_MODULES with kotlin-compiler. Only the tokenizer
  is run, because LiteRT's library for Kotlin runs on Android.
- Browser: Chromium, and $KERAS_TRANSFORMER_TEST_NODE_MODULES, a folder with @litertjs/core and
  @sctg/sentencepiece-js.
"""

import functools
import http.server
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import ai_edge_litert
import pytest

from keras_transformer.export import ExportOptions, export
from keras_transformer.extensions.litert.engine import LiteRTModel
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.browser import find_browser, launched_browser
from tests.conftest import PHRASES, ROOT
from tests.damage import cut, empty, flip

EXAMPLES = ROOT / "deploy" / "phone"


def folder_of(variable: str, needed: str) -> Path:
    """Returns the folder that an environment variable names, or skips the test."""
    folder = Path(os.environ.get(variable, "none"))
    if not (folder / needed).exists():
        pytest.skip(f"{variable} names no folder with {needed}")
    return folder.resolve()


@pytest.fixture(scope="module")
def version(run_directory: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phone")
    options = ExportOptions.of(
        text_signature=False, weights="int8", references=PHRASES, max_bleu_loss=100.0
    )
    return export(run_directory, folder, PHRASES, options, format="litert").path


def expected(version: Path) -> list[str]:
    model = LiteRTModel(version / "model.tflite")
    return [model.translate(phrase)[0].text for phrase in PHRASES]


def compile_cpp(*arguments: str | Path) -> None:
    """Runs g++, or skips the test."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not on the PATH")
    compiled = subprocess.run(
        ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", *arguments, "-lsentencepiece"],
        capture_output=True, text=True,
    )  # fmt: skip
    if "sentencepiece_processor.h: No such file" in compiled.stderr:
        pytest.skip("SentencePiece's C++ library is not installed")
    assert compiled.returncode == 0, compiled.stderr


def test_cpp_example(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    headers = folder_of("KERAS_TRANSFORMER_TEST_LITERT", "litert/build_common/build_config.h")
    runtime, program = ai_edge_litert.__path__[0], tmp_path / "translate"
    compile_cpp(
        *(f"-I{headers}", EXAMPLES / "translate.cc", "-o", program),
        *(f"-L{runtime}", "-lLiteRt", f"-Wl,-rpath,{runtime}"),
    )
    version: Path = request.getfixturevalue("version")
    model, vocabulary = version / "model.tflite", version / "joint.model"
    result = subprocess.run(
        [program, model, vocabulary, vocabulary],
        input="\n".join([*PHRASES, "ball " * 2000]), capture_output=True, text=True,
    )  # fmt: skip
    assert result.stdout.splitlines()[:-1] == expected(version), result.stderr
    assert result.stderr.count("A line is too long") == 1
    for damage in (cut, flip, empty):
        damage(Path(shutil.copy(model, tmp_path / f"{damage.__name__}.tflite")))
    (tmp_path / "cut.model").write_bytes(vocabulary.read_bytes()[:-100])
    lines = [phrase.encode() for phrase in PHRASES]
    (tmp_path / "other.model").write_bytes(learn_vocabulary(lines, vocab_size=100))
    for files, message in (
        (("none.tflite", vocabulary), "none.tflite cannot be read"),
        (("empty.tflite", vocabulary), "empty.tflite is cut off or damaged"),
        (("cut.tflite", vocabulary), "cut.tflite is cut off or damaged"),
        (("flip.tflite", vocabulary), "flip.tflite is cut off or damaged"),
        ((model, "none.model"), "none.model cannot be read"),
        ((model, "cut.model"), "cut.model is damaged, or is not the one of"),
        ((model, "other.model"), "other.model is damaged, or is not the one of"),
    ):
        result = subprocess.run(
            [program, *files, vocabulary], cwd=tmp_path, input="", capture_output=True, text=True
        )
        assert result.returncode == 1
        assert message in result.stderr and result.stderr.count("\n") == 1


def compile_kotlin(modules: Path, jar: Path, *sources: Path) -> None:
    """Runs the compiler, or skips the test."""
    if shutil.which("java") is None:
        pytest.skip("Java is not on the PATH")
    compiler = modules / "kotlin-compiler" / "lib" / "kotlin-compiler.jar"
    result = subprocess.run(
        [
            *("java", "-cp", compiler, "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler"),
            *("-no-reflect", "-kotlin-home", compiler.parents[1], "-d", jar, *sources),
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr


MAIN = """
fun main(arguments: Array<String>) {
    sentencepiece.Tokenizer(arguments[0]).use { tokenizer ->
        val ids = arguments.drop(1).map { tokenizer.encode(it) }
        println(ids.map { it.toList() })
        println(ids.map { tokenizer.decode(it) })
    }
    try {
        sentencepiece.Tokenizer("none.model")
    } catch (error: IllegalArgumentException) {
        println(error.message)
    }
}
"""


def test_tokenizer_in_kotlin(tmp_path: Path) -> None:
    modules = folder_of("KERAS_TRANSFORMER_TEST_NODE_MODULES", "kotlin-compiler")
    (tmp_path / "Main.kt").write_text(MAIN, "utf-8")
    jar = tmp_path / "main.jar"
    compile_kotlin(modules, jar, EXAMPLES / "Tokenizer.kt", tmp_path / "Main.kt")
    headers = Path(str(shutil.which("java"))).resolve().parents[1] / "include"
    if not (headers / "jni.h").exists():
        pytest.skip("Java has no jni.h (Debian: apt-get install default-jdk-headless)")
    compile_cpp(
        *("-shared", "-fPIC", f"-I{headers}", f"-I{headers / 'linux'}"),
        *(EXAMPLES / "tokenizer.cc", EXAMPLES / "tokenizer_jni.cc"),
        *("-o", tmp_path / "libtokenizer.so"),
    )
    phrases = [*PHRASES, "\U0001f600 日本 é", "", "ball " * 100]
    lines = [phrase.encode() for phrase in PHRASES]
    model = learn_vocabulary(lines, vocab_size=400, byte_fallback=True)
    (tmp_path / "joint.model").write_bytes(model)
    library = modules / "kotlin-compiler" / "lib" / "kotlin-stdlib.jar"
    result = subprocess.run(
        [
            *("java", "-cp", f"{jar}:{library}", f"-Djava.library.path={tmp_path}"),
            *("-Dfile.encoding=UTF-8", "MainKt", tmp_path / "joint.model", *phrases),
        ],
        capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    vocabulary = Vocabulary(model)
    ids = vocabulary.encode_source([phrase.encode() for phrase in phrases])
    texts = ", ".join(vocabulary.target_text(sentence) for sentence in ids)
    message = "none.model is not a SentencePiece model. Copy it again from the export."
    assert result.stdout.splitlines() == [str(ids), f"[{texts}]", message]


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Returns a folder with the page and an export, as docs/phone.md says."""
    find_browser()
    modules = folder_of("KERAS_TRANSFORMER_TEST_NODE_MODULES", "@litertjs/core")
    (tmp_path / "node_modules").symlink_to(modules)
    for file in (EXAMPLES / "index.html", *request.getfixturevalue("version").iterdir()):
        shutil.copy(file, tmp_path)
    return tmp_path


def test_page_translates_and_refuses_damaged_files(site: Path) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with server, launched_browser() as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def loaded() -> tuple[Any, str]:
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.server_address[1]}/")
            page.wait_for_function("!/Loading/.test(document.querySelector('#status').textContent)")
            text = str(page.text_content("#status"))
            assert page.is_enabled("button") == (text == "Ready.")
            return page, text

        page, status = loaded()
        assert status == "Ready."
        found = []
        for phrase in (*PHRASES, "ball " * 2000):
            page.fill("#text", phrase)
            page.click("button")
            page.wait_for_function("!document.querySelector('button').disabled")
            found.append(page.text_content("#translation"))
        assert "too long" in page.text_content("#status")
        assert found[:-1] == expected(site)
        for name in ("joint.model", "model.tflite", "manifest.json"):
            content = (site / name).read_bytes()
            for damage in (cut, flip) if name != "manifest.json" else (cut,):
                damage(site / name)
                assert loaded()[1].startswith(f"Error: {name} is damaged")
                (site / name).write_bytes(content)
            (site / name).unlink()
            assert loaded()[1] == f"Error: {name} is not in the folder of this page."
            (site / name).write_bytes(content)
        # A file of another export, which the manifest does not list, is not used.
        (site / "source.model").write_bytes(b"another vocabulary")
        assert loaded()[1] == "Ready."
        server.shutdown()
