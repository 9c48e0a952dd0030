"""Options and files of fairseq, FSMT, OpenNMT-tf and Tensor2Tensor."""

import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions.converters import make_options, read_model
from keras_transformer.extensions.converters.torch_files import Inert, read_torch_file
from tests.builders import refuses
from tests.damage import replace
from tests.extensions.converters.toolkits import (
    FIXTURES,
    change_json,
    convert,
    copy_of,
    write_torch_file,
)
from tests.messages import mentions


@pytest.fixture
def opennmt_tf(tmp_path: Path) -> Path:
    """A copy of a model, which tests may change."""
    return copy_of("opennmt_tf", tmp_path)


def test_code_in_a_checkpoint_does_not_run(tmp_path: Path) -> None:
    class Exploit:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "executed",)

    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"args": Exploit()}))
    assert isinstance(read_torch_file(path)["args"], Inert)
    copy_of("marian", tmp_path)
    np.savez(tmp_path / "post_norm.npz", weight=np.array([Exploit()], object))
    refuses(read_model, (tmp_path, "marian"), "post_norm.npz", "allow_pickle")
    code = f"!!python/object/apply:pathlib.Path.touch [{tmp_path / 'executed'}]"
    copy_of("marian", tmp_path)
    (tmp_path / "decoder.yml").write_text(f"models: {code}")
    refuses(read_model, (tmp_path, "marian"), "decoder.yml", "models")
    assert not (tmp_path / "executed").exists()


def test_small_files_that_stand_for_large_objects_are_refused(tmp_path: Path) -> None:
    lists: Any = []
    tuples: Any = ()
    for _ in range(60):
        lists, tuples = [lists, lists], (tuples, tuples)
    key = b"\x80\x02}" + pickle.dumps(tuples, 2)[2:-1] + b"Ns."  # its hash takes 2**60 steps
    file = tmp_path / "model.pt"
    frozen = pickle.dumps(frozenset(), 4)  # nested ones take exponential time
    cases = ((pickle.dumps(lists), 10**8, "parts"), (frozen, 0, "145"), (key, 0, "parts"))
    for pickled, padding, fact in cases:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("archive/data.pkl", pickled)
            archive.writestr("archive/data/1", bytes(padding))
        refuses(read_torch_file, (file,), "model.pt", fact)
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(10**8))
    refuses(read_torch_file, (file,), "unpack", f"{10**8 + len(key):,}")
    write_torch_file(file, {"weight": np.ones(4, np.float32)}, weight=(2**40,))
    refuses(read_torch_file, (file,), "model.pt", "larger than their storages")
    copy_of("marian", tmp_path)
    np.savez_compressed(tmp_path / "post_norm.npz", weight=np.zeros(10**7))
    refuses(read_model, (tmp_path, "marian"), "post_norm.npz", "unpack")


@pytest.mark.parametrize(("variant", "is_joint"), [("words", True), ("sentencepiece", False)])
def test_one_dictionary_is_enough_only_for_shared_embeddings(
    variant: str, is_joint: bool, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(FIXTURES / "fairseq" / variant, tmp_path / "model"))
    expected = convert(copy, "fairseq").vocabulary.fingerprint
    (copy / "dict.de.txt").rename(tmp_path / "target.txt")
    if is_joint:
        assert convert(copy, "fairseq").vocabulary.fingerprint == expected
    else:
        refuses(convert, (copy, "fairseq"), copy, "dict.de.txt", "target_vocabulary")
        given = str(tmp_path / "target.txt")
        found = convert(copy, "fairseq", target_vocabulary=given)
        assert found.vocabulary.fingerprint == expected


def test_the_search_is_that_of_the_model(tmp_path: Path, opennmt_tf: Path) -> None:
    replace(opennmt_tf / "data.yml", "beam_width: 1", "length_penalty: 0.2")
    found = convert(opennmt_tf, "opennmt_tf").config.decoding
    assert (found.beam_size, found.length_penalty) == (4, 0.2)  # 4 is OpenNMT-tf's default
    assert (found.max_length, found.max_extra_tokens) == (50, 50)  # does not depend on the source
    for name, limits in {"fairseq/words": (200, 200), "tensor2tensor/shared": (None, 100)}.items():
        found = convert(FIXTURES / name, name.partition("/")[0]).config.decoding
        assert (found.max_length, found.max_extra_tokens) == limits

    copy = Path(shutil.copytree(FIXTURES / "fsmt", tmp_path / "fsmt"))
    file = copy / "generation_config.json"
    change_json(file, num_beams=3, no_repeat_ngram_size=2, max_length=30, length_penalty=0.6)
    found = convert(copy, "fsmt").config.decoding
    assert (found.beam_size, found.no_repeat_ngram, found.max_length) == (3, 2, 28)
    assert (found.length_penalty, found.length_penalty_formula) == (0.6, "power")
    # An old model has the options in config.json, and the class has defaults.
    file.unlink()
    replace(copy / "config.json", '"max_length": 200', '"no_repeat_ngram_size": 3')
    replace(copy / "config.json", '"num_beams": 5,', "")
    found = convert(copy, "fsmt").config.decoding
    assert (found.beam_size, found.no_repeat_ngram, found.max_length) == (5, 3, 198)


@pytest.mark.parametrize(
    ("description", "heads"),
    [
        (None, None),
        ('from opennmt import models\nm = models.get_model_from_catalog("TransformerBase")\n', 8),
        ("import opennmt\nmodel = opennmt.models.TransformerTiny\nmodel()\n", 2),
        ("open('executed', 'w')\nmodel(num_heads=4)\n", 4),
    ],
)
def test_the_number_of_heads_is_read_from_the_description(
    opennmt_tf: Path, description: str | None, heads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opennmt_tf / "model_description.py"
    if description is None:
        file.unlink()
        refuses(convert, (opennmt_tf, "opennmt_tf"), "model_description.py", "num_heads")
        assert convert(opennmt_tf, "opennmt_tf", num_heads=4).config.model.num_heads == 4
        return
    file.write_text(description)
    monkeypatch.chdir(opennmt_tf)
    assert convert(opennmt_tf, "opennmt_tf").config.model.num_heads == heads
    assert not (opennmt_tf / "executed").exists()


def test_pieces_need_their_sentencepiece_model(opennmt_tf: Path) -> None:
    with pytest.raises(InputError, match=mentions("piece", "source_sentencepiece")):
        convert(opennmt_tf, "opennmt_tf", source_sentencepiece=None, target_sentencepiece=None)
    with pytest.raises(InputError, match=mentions("SentencePiece", "data.yml")):
        convert(opennmt_tf, "opennmt_tf", target_sentencepiece=str(opennmt_tf / "data.yml"))


def test_checkpoints_are_named_by_a_file_or_in_a_subdirectory(opennmt_tf: Path) -> None:
    expected = convert(opennmt_tf, "opennmt_tf").weights
    pieces = {
        f"{side}_sentencepiece": str(opennmt_tf / f"{side}.model") for side in ("source", "target")
    }
    (opennmt_tf / "avg").mkdir()  # averaged weights
    for file in [opennmt_tf / "checkpoint", *opennmt_tf.glob("ckpt-*")]:
        shutil.copy(file, opennmt_tf / "avg")
    (opennmt_tf / "checkpoint").unlink()
    for path in (opennmt_tf / "avg", opennmt_tf / "ckpt-1.index"):
        found = read_model(path, "opennmt_tf", make_options(**pieces)).weights
        assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_the_target_space_is_part_of_the_source_embeddings() -> None:
    folder = FIXTURES / "tensor2tensor" / "shared"
    default = convert(folder, "tensor2tensor", target_space=0).weights
    german = convert(folder, "tensor2tensor").weights
    different = [path for path in default if not np.array_equal(default[path], german[path])]
    assert different == ["source_embedding/embeddings"]
    refuses(lambda: convert(folder, "tensor2tensor", target_space=32), (), "target_space", 32)
