"""The examples in deploy/phone translate like `LiteRTModel`, where their tools are installed.

- C++: g++, SentencePiece's library, and $KERAS_TRANSFORMER_TEST_LITERT, a checkout of LiteRT with
  litert/build_common/build_config.h.
- Browser: Chromium, and $KERAS_TRANSFORMER_TEST_NODE_MODULES, a folder with @litertjs/core and
  @sctg/sentencepiece-js.
"""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import ai_edge_litert
import pytest

from keras_transformer.export import ExportOptions, export
from keras_transformer.inference.litert import LiteRTModel
from keras_transformer.runs.run_directory import RunDirectory
from tests.browser import find_browser, launched_browser
from tests.conftest import PHRASES, ROOT

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
    options = ExportOptions(text_signature=False)
    return export(run_directory, folder, PHRASES, options, format="litert").path


def expected(version: Path) -> list[str]:
    model = LiteRTModel(version / "model.tflite")
    return [model.translate(phrase)[0].text for phrase in PHRASES]


def test_cpp_example(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    headers = folder_of("KERAS_TRANSFORMER_TEST_LITERT", "litert/build_common/build_config.h")
    if shutil.which("g++") is None:
        pytest.skip("g++ is not on the PATH")
    runtime, program = ai_edge_litert.__path__[0], tmp_path / "translate"
    compiled = subprocess.run(
        [
            *("g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{headers}"),
            *(EXAMPLES / "translate.cc", "-o", program),
            *(f"-L{runtime}", "-lLiteRt", f"-Wl,-rpath,{runtime}", "-lsentencepiece"),
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    if "sentencepiece_processor.h: No such file" in compiled.stderr:
        pytest.skip("SentencePiece's C++ library is not installed")
    assert compiled.returncode == 0, compiled.stderr
    version: Path = request.getfixturevalue("version")
    vocabulary = version / "joint.model"
    result = subprocess.run(
        [program, version / "model.tflite", vocabulary, vocabulary],
        input="\n".join(PHRASES), capture_output=True, text=True,
    )  # fmt: skip
    assert result.stdout.splitlines() == expected(version), result.stderr
    (tmp_path / "cut.tflite").write_bytes((version / "model.tflite").read_bytes()[:-100])
    for files, message in (
        (("cut.tflite", vocabulary), "cut.tflite is cut off"),
        ((version / "model.tflite", "none.model"), "none.model cannot be read"),
    ):
        result = subprocess.run(
            [program, *files, vocabulary], cwd=tmp_path, input="", capture_output=True, text=True
        )
        assert result.returncode == 1 and message in result.stderr


@pytest.fixture
def address(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Serves the page with an export, as docs/phone.md says."""
    find_browser()
    modules = folder_of("KERAS_TRANSFORMER_TEST_NODE_MODULES", "@litertjs/core")
    (tmp_path / "node_modules").symlink_to(modules)
    for file in (EXAMPLES / "index.html", *request.getfixturevalue("version").iterdir()):
        shutil.copy(file, tmp_path)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def test_page_translates_in_the_browser(address: str, request: pytest.FixtureRequest) -> None:
    version: Path = request.getfixturevalue("version")
    with launched_browser() as browser:
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector("button:enabled")
        assert page.text_content("#status") == "Ready."
        found = []
        for phrase in PHRASES:
            page.fill("#text", phrase)
            page.click("button")
            page.wait_for_function("!document.querySelector('button').disabled")
            found.append(page.text_content("#translation"))
    assert found == expected(version)
