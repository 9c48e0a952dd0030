"""The models of other toolkits in tests/fixtures, and the outputs that the toolkits recorded."""

import json
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.extensions.converters import make_options, read_model
from keras_transformer.extensions.converters.source import ConvertedModel

FIXTURES = Path(__file__).parents[2] / "fixtures"
# The files of a model that a format needs.
FILES = {
    "marian": "marian/post_norm.npz marian/vocab.yml marian/source.spm marian/target.spm",
    "huggingface": "marian_mt/*",
    "opennmt_tf": "opennmt_tf/separate/*",
    "tensor2tensor": "tensor2tensor/shared/*",
    "fairseq": "fairseq/sentencepiece/*",
    "fsmt": "fsmt/*",
    "m2m_100": "multilingual/m2m_100/*",
    "nllb": "multilingual/nllb/*",
    "mbart": "multilingual/mbart/*",
}
# The languages of the models of many languages.
LANGUAGES = {
    "m2m_100": ("en", "de"),
    "nllb": ("eng_Latn", "deu_Latn"),
    "mbart": ("en_XX", "de_DE"),
}
DE_TOK = 8  # the target space of the models of Tensor2Tensor


def copy_of(source_format: str, folder: Path) -> Path:
    """Copies a model, which a test may change."""
    for pattern in FILES[source_format].split():
        for file in FIXTURES.glob(pattern):
            if file.is_file():
                shutil.copy(file, folder)
    return folder


def convert(folder: Path, source_format: str, **options: Any) -> ConvertedModel:
    """Converts a model with the SentencePiece models or subwords of its folder."""
    is_tensor2tensor = source_format == "tensor2tensor"
    pattern, kind = (
        ("*.subwords", "vocabulary") if is_tensor2tensor else ("*.model", "sentencepiece")
    )
    names = [f"source_{kind}", f"target_{kind}"]
    given: dict[str, Any] = dict(zip(names, map(str, sorted(folder.glob(pattern))), strict=False))
    if is_tensor2tensor:
        given["target_space"] = DE_TOK
    if source_format in LANGUAGES:
        names = ["source_language", "target_language"]
        given = dict(zip(names, LANGUAGES[source_format], strict=True))
        source_format = "huggingface"
    return read_model(folder, source_format, make_options(**{**given, **options}))


def check_close(found: Any, expected: Any, atol: float, name: str) -> None:
    """Compares numbers, and prints the largest difference for the table of docs/convert.md."""
    print(f"{name}: {np.abs(found - np.array(expected)).max():.1e}")
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def change_json(file: Path, **changes: Any) -> None:
    """Changes fields of a JSON object."""
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **changes}), "utf-8")


def write_torch_file(file: Path, arrays: dict[str, np.ndarray], **shapes: tuple[int, ...]) -> None:
    """Writes float32 arrays like `torch.save`, some of them with other shapes and strides of 0."""

    def dumped(value: Any) -> bytes:
        return pickle.dumps(value, 2)[2:-1].replace(b"q\0", b"")  # without frame and memo

    code, names = b"\x80\x02}", list(arrays)
    for i, (name, array) in enumerate(arrays.items()):
        shape = shapes.get(name, array.shape)
        strides = [0 if name in shapes else s // 4 for s in array.strides]
        storage = b"(" + dumped("storage") + b"ctorch\nFloatStorage\n" + dumped(str(i))
        storage += dumped("cpu") + dumped(array.size) + b"tQ"
        numbers = [b"(" + b"".join(map(dumped, tuple_)) + b"t" for tuple_ in (shape, strides)]
        tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + dumped(0) + b"".join(numbers)
        code += dumped(name) + tensor + b"\x89}tRs"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("model/data.pkl", code + b".")
        for i, name in enumerate(names):
            archive.writestr(f"model/data/{i}", arrays[name].tobytes())


def change_npz(file: Path, **changes: np.ndarray) -> None:
    """Changes arrays of a model of Marian."""
    np.savez(file, allow_pickle=False, **{**np.load(file), **changes})


def change_marian(file: Path, old: str, new: str) -> None:
    """Replaces a part of the configuration inside a model of Marian."""
    text = np.load(file)["special:model.yml"].tobytes()
    assert old.encode() in text
    content = np.frombuffer(text.replace(old.encode(), new.encode()), np.int8)
    change_npz(file, **{"special:model.yml": content})
