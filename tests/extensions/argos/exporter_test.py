"""Packages for Argos Translate contain what it expects, and translate like the run.

Argos Translate 1.11 itself installed such a package and gave 100 of 100 translations of the run
(docs/other_engines.md). These tests do what it does, and do not need it.
"""

import json
import zipfile
from pathlib import Path
from typing import Any

import ctranslate2
import sentencepiece
import tensorflow as tf

from keras_transformer.export import ExportOptions, export
from keras_transformer.extensions.argos import exporter as argos
from keras_transformer.inference import loading
from keras_transformer.inference.manifest import check_manifest
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import learn_vocabulary
from tests.builders import SHARED_RUNS, refuses
from tests.conftest import PHRASES
from tests.export.model_variants import make_run
from tests.messages import tells

# The search of Argos Translate, and the same search here.
SEARCH = {"beam_size": 4, "num_hypotheses": 1, "length_penalty": 0.2, "replace_unknowns": True}
DECODING = {
    "decoding__length_penalty": 0.2,
    "decoding__length_penalty_formula": "power",
    "decoding__unknown": "replace",
    "decoding__early_stopping": "marian",
}


def unpack(package: Path, folder: Path) -> Path:
    with zipfile.ZipFile(package) as file:
        file.extractall(folder)
    (unpacked,) = folder.iterdir()
    return unpacked


def test_a_package_translates_like_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", **DECODING)
    SHARED_RUNS.add(run.path)
    options = ExportOptions(languages=("en", "pt-BR"), license="cc0-1.0")
    result = export(run, tmp_path / "export", PHRASES, options, format="argos")
    assert result.largest_difference is not None and result.largest_difference < 1e-4
    assert tells(str(result.warning), "early_stopping=marian")
    check_manifest(result.path)
    folder = unpack(result.path / "translate-en_pt-BR.argosmodel", tmp_path / "packages")
    assert folder.name == "translate-en_pt-BR"
    metadata = json.loads((folder / "metadata.json").read_bytes())
    names = {"from_code": "en", "from_name": "English", "to_code": "pt-BR"}
    assert {**metadata, **names, "to_name": "Portuguese (Brazil)"} == metadata
    card = (result.path / "README.md").read_text()
    assert "argospm install translate-en_pt-BR.argosmodel" in card

    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    engine, texts = ctranslate2.Translator(str(folder / "model")), []
    for phrase in PHRASES:
        pieces = tokenizer.encode(phrase, out_type=str)
        limit = len(pieces) + 6  # of this run; Argos Translate has 256
        (found,) = engine.translate_batch([pieces], max_decoding_length=limit, **SEARCH)
        texts.append(tokenizer.decode_pieces(found.hypotheses[0]))
    translator = loading.load_translator(run)
    own = translator.translate(tf.constant(PHRASES))["translations"].numpy()
    assert texts == [row[0].decode() for row in own]


def test_two_vocabularies_with_the_same_decoding(tmp_path: Path) -> None:
    """Argos Translate decodes the target with the source model."""
    phrases = [phrase.encode() for phrase in PHRASES]

    def check(source: bytes, target: bytes) -> None:
        tokenizer = Tokenizer(source, target)
        name = f"run_{len(list(tmp_path.iterdir()))}"
        changes: dict[str, Any] = {"model__tie_embeddings": "target"}
        run = make_run(tmp_path / name, tokenizer=tokenizer, **changes)
        argos.check_target_pieces(loading.load_translator(run))

    plain, german = learn_vocabulary(phrases[:3], 40), learn_vocabulary(phrases[3:], 50)
    check(plain, german)
    with_bytes = learn_vocabulary(phrases[3:], 310, byte_fallback=True)
    refuses(check, {"source": plain, "target": with_bytes}, "'<0x20>'", "joint vocabulary")
