"""The list of the server's ops, and how it is read from sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_transformer.errors import InputError
from keras_transformer.export.saved_model.served_ops import list_ops, served_ops
from tests.messages import mentions

SOURCES = {
    "serving/WORKSPACE": 'tensorflow_http_archive(\n    git_commit = "abc123",\n)\n',
    "serving/tensorflow_serving/workspace.bzl": '    strip_prefix = "text-9.1.0",\n',
    "serving/tensorflow_serving/model_servers/BUILD": (
        'SUPPORTED_TENSORFLOW_OPS = [\n    "@org_tensorflow_text//tensorflow_text:ops_lib",\n]\n'
    ),
    "serving/tensorflow_serving/tools/pip_package/setup.py": (
        "_VERSION = '9.1.2'\n_TF_VERSION = '>=9.1.0'\n"
    ),
    "tensorflow/tensorflow/core/ops/ops.pbtxt": (
        'op {\n  name: "Zeta"\n  input_arg {\n    name: "x"\n  }\n}\n'
        'op {\n  name: "_Internal"\n}\nop {\n  name: "Abs"\n}\n'
    ),
    "text/tensorflow_text/__init__.py": '__version__ = "9.1.0"\n',
    "text/tensorflow_text/BUILD": """
cc_library(
    name = "ops_lib",
    deps = [
        ":pieces_cc",
        ":words_cc",
    ],
)

py_tf_text_library(
    name = "pieces",
    srcs = ["python/ops/pieces.py"],
    cc_op_defs = ["//tensorflow_text/core/ops:pieces_ops.cc"],
)

py_tf_text_library(
    name = "words",
    cc_op_defs = [
        "//tensorflow_text/core/ops:words_op.cc",
    ],
)

py_tf_text_library(
    name = "research",
    cc_op_defs = ["//tensorflow_text/core/ops:research_op.cc"],
)
""",
    "text/tensorflow_text/core/ops/pieces_ops.cc": (
        'REGISTER_OP("Text>Pieces")\n    .Input("x: string");\nREGISTER_OP("Unpieces");\n'
    ),
    "text/tensorflow_text/core/ops/research_op.cc": 'REGISTER_OP("Research")\n',
    "text/tensorflow_text/core/ops/words_op.cc": (
        '#include "tensorflow_text/core/kernels/words_kernel.h"\nREGISTER_TF_OP_SHIM(WordsOp);\n'
    ),
    "text/tensorflow_text/core/kernels/words_kernel.h": (
        '#include "tensorflow_text/core/kernels/words_kernel_template.h"\n'
    ),
    "text/tensorflow_text/core/kernels/words_kernel_template.h": (
        '#include "tensorflow_text/core/kernels/words_kernel.h"\n'
        '  static constexpr char kOpName[] = "Text>Words";\n'
    ),
}


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def listed(sources: Path) -> str:
    return list_ops(*(sources / name for name in ("serving", "tensorflow", "text")), notes=["Why."])


def test_names_are_found_in_sources(sources: Path) -> None:
    assert listed(sources) == (
        "# The ops that the stock binary of TF Serving 9.1.2 links: TensorFlow's (commit abc123)"
        " and\n# tensorflow-text's (version 9.1.0). bin/list_tf_serving_ops.py makes this list.\n"
        "#\n"
        "# Why.\n"
        "Abs\nText>Pieces\nText>Words\nUnpieces\nZeta\n"
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "text/tensorflow_text/__init__.py",
            '__version__ = "9.0"\n',
            mentions("tensorflow-text", "9.0"),
        ),
        ("serving/tensorflow_serving/model_servers/BUILD", "", mentions("BUILD", "nothing")),
        ("tensorflow/tensorflow/core/ops/ops.pbtxt", "", mentions("ops.pbtxt", "nothing")),
        ("text/tensorflow_text/core/ops/words_op.cc", "// moved", mentions("words_op.cc", "op")),
    ],
)
def test_sources_that_are_not_as_expected(
    sources: Path, name: str, text: str, message: str
) -> None:
    (sources / name).write_text(text)
    with pytest.raises(InputError, match=message):
        listed(sources)
    (sources / name).unlink()
    with pytest.raises(InputError, match=mentions("read", "checkout")):
        listed(sources)


def test_the_list() -> None:
    ops = served_ops()
    assert len(ops) > 1500
    assert {"MatMul", "StatelessWhile", "SentencepieceTokenizeOp", "SentencepieceOp"} <= ops
    assert all(name and "#" not in name and " " not in name for name in ops)
    assert not {"XlaDynamicUpdateSlice", "CustomAggregator", "_Arg"} & ops
