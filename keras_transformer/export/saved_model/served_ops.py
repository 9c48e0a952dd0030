"""The ops that TF Serving's stock binary links: `tf_serving_ops.txt`, and how it is made.

The list comes from the sources of one TF Serving and of what that version pins, never
from a process's own registry, which holds whatever has been imported. Of TensorFlow it
has what `tensorflow/core:ops` links, without ops whose names begin with an underscore:
the runtime makes those, no saved graph holds one. Of tensorflow-text it has what
`tensorflow_text:ops_lib` links.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from keras_transformer.errors import InputError

_TEXT_LIBRARY = "@org_tensorflow_text//tensorflow_text:ops_lib"


@functools.cache
def served_ops() -> frozenset[str]:
    """Returns the names in the list."""
    text = importlib.resources.files(__package__).joinpath("tf_serving_ops.txt").read_text("utf-8")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def list_ops(serving: Path, tensorflow: Path, text: Path, notes: Sequence[str] = ()) -> str:
    """Returns the list as it is kept: a head of comments, then a name a line, sorted.

    Args:
        serving: sources of TF Serving.
        tensorflow: sources of TensorFlow, of which `tensorflow/core/ops/ops.pbtxt` is read.
        text: sources of tensorflow-text.
        notes: paragraphs for the head: what the sources are.

    Raises:
        InputError: where something is not in the sources, or these are of another
            tensorflow-text than TF Serving's.
    """
    pinned_text = _find(serving / "tensorflow_serving/workspace.bzl", r'strip_prefix = "text-(.+)"')
    text_version = _find(text / "tensorflow_text/__init__.py", r'__version__ = "(.+)"')
    if text_version != pinned_text:
        raise InputError(
            f"{text} is tensorflow-text {text_version}; expected {pinned_text}, which TF Serving "
            "is built with"
        )
    _find(serving / "tensorflow_serving/model_servers/BUILD", f'"({re.escape(_TEXT_LIBRARY)})"')
    version = _find(serving / "tensorflow_serving/tools/pip_package/setup.py", "^_VERSION = '(.+)'")
    commit = _find(serving / "WORKSPACE", 'git_commit = "(.+)"')
    paragraphs = [
        f"The ops that the stock binary of TF Serving {version} links: TensorFlow's (commit "
        f"{commit}) and tensorflow-text's (version {text_version}). "
        "bin/list_tf_serving_ops.py makes this list.",
        *notes,
    ]
    head = "\n#\n".join(
        textwrap.fill(paragraph, 100, initial_indent="# ", subsequent_indent="# ")
        for paragraph in paragraphs
    )
    names = sorted({*_tensorflow_ops(tensorflow), *_text_ops(text)})
    return "\n".join([head, *names]) + "\n"


def _tensorflow_ops(tensorflow: Path) -> Iterator[str]:
    """Ops of `tensorflow/core:ops`; TensorFlow's own tests keep the file as the registry is."""
    path = tensorflow / "tensorflow/core/ops/ops.pbtxt"
    yield from _find_all(path, r'^op \{\n  name: "([^_"][^"]*)"')


def _text_ops(text: Path) -> Iterator[str]:
    """Ops that the sources of the libraries in `ops_lib` register."""
    path = text / "tensorflow_text/BUILD"
    library = _find(path, r'name = "ops_lib",((?:.|\n)*?\n\))')
    for name in re.findall(r'":(\w+)_cc"', library):
        rule = _find(path, rf'py_tf_text_library\(\n    name = "{name}",((?:.|\n)*?\n\))')
        for folder, file in re.findall(r'"//(tensorflow_text/core/ops):(\w+\.cc)"', rule):
            yield from _registered(text, text / folder / file)


def _registered(text: Path, source: Path) -> Iterator[str]:
    """Names in `REGISTER_OP("…")`; the other macro takes a class, whose header has the name."""
    names = re.findall(r'REGISTER_OP\("([^"]+)"\)', _read(source))
    headers = [source]
    if "REGISTER_TF_OP_SHIM(" in _read(source):
        for header in headers:  # grows: headers include others
            included = re.findall(
                r'#include "(tensorflow_text/core/kernels/\w*kernel\w*\.h)"', _read(header)
            )
            headers += [text / each for each in included if text / each not in headers]
            names += re.findall(r'kOpName\[\] = "([^"]+)"', _read(header))
    if not names:
        raise InputError(f"{source} registers no op; expected REGISTER_OP or REGISTER_TF_OP_SHIM")
    yield from names


def _find(path: Path, pattern: str) -> str:
    return _find_all(path, pattern)[0]


def _find_all(path: Path, pattern: str) -> list[str]:
    found: list[str] = re.findall(pattern, _read(path), re.MULTILINE)
    if not found:
        raise InputError(f"{path} has nothing like {pattern}; expected the sources of a release")
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}); expected a checkout") from error
