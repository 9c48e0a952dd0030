"""Shortlists of exports: learned from the data of the run, and CTranslate2's file."""

from pathlib import Path

import ctranslate2
import pytest
import sentencepiece

from keras_transformer.data.token_store import encoded, write_index, write_shard
from keras_transformer.errors import InputError
from keras_transformer.export.shortlist import learn_shortlist
from keras_transformer.extensions.ctranslate2.exporter import save_model, save_shortlist
from keras_transformer.inference.loading import load_translator
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.vocabulary import Vocabulary
from tests.conftest import PHRASES, random_shortlist
from tests.messages import mentions


def test_other_data_is_an_error(
    run_directory: RunDirectory, tagged_run: RunDirectory, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=mentions("training data", "--data_dir")):
        learn_shortlist(run_directory, None, 50)
    tagged_run.tokenizer().save(tmp_path)
    with pytest.raises(InputError, match=mentions("different vocabularies", run_directory.path)):
        learn_shortlist(run_directory, tmp_path, 50)
    run_directory.tokenizer().save(tmp_path)
    with pytest.raises(InputError, match=mentions(tmp_path / "train", "not a token store")):
        learn_shortlist(run_directory, tmp_path, 50)


def test_the_data_of_the_run_gives_a_shortlist(run_directory: RunDirectory, tmp_path: Path) -> None:
    run_directory.tokenizer().save(tmp_path)
    vocabulary, lines = Vocabulary.load(tmp_path), [phrase.encode() for phrase in PHRASES]
    side = encoded(lines, vocabulary.encode_source(lines), 60)
    digest = write_shard(tmp_path / "train" / "0", side, side)
    write_index(tmp_path / "train", [("0", len(lines), digest)])
    shortlist = learn_shortlist(run_directory, tmp_path, 8)
    assert shortlist.describe() == {"frequent": 10, "translations": 8}


def test_ctranslate2_uses_the_shortlist(run_directory: RunDirectory, tmp_path: Path) -> None:
    translator = load_translator(run_directory)
    shortlist = random_shortlist(run_directory, 2)
    vocabulary = translator.tokenizer.vocabulary
    save_model(translator, "float32", tmp_path)
    save_shortlist(shortlist, vocabulary, tmp_path)
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.source_model)
    _, target = vocabulary.pieces()
    engine = ctranslate2.Translator(str(tmp_path))
    whole = 0
    for phrase in PHRASES:
        source = processor.id_to_piece(processor.encode(phrase))
        ids, _ = translator.source_ids([phrase])
        found = shortlist.candidates(ids, translator.tokenizer.target_vocab_size)
        allowed = {target[i] for i in found.ids.numpy()} | {"<s>"}
        (result,) = engine.translate_batch([source], use_vmap=True, max_decoding_length=20)
        assert set(result.hypotheses[0]) <= allowed
        (result,) = engine.translate_batch([source], max_decoding_length=20)
        whole += not set(result.hypotheses[0]) <= allowed
    assert whole  # without the shortlist, the engine uses other tokens
