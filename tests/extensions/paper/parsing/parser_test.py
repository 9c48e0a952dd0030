"""The trees of a parser have exactly the words, for any model. Integration tests use exports."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import SearchInputs
from keras_transformer.errors import InputError
from keras_transformer.export import ExportOptions
from keras_transformer.export.saved_model.exporter import SavedModelExporter
from keras_transformer.extensions.paper.parsing import exporter, parser, treebank, trees
from keras_transformer.extensions.paper.parsing.exporter import EXPORTER
from keras_transformer.inference import loading
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import learn_vocabulary
from tests.builders import refuses
from tests.export.model_variants import make_run
from tests.extensions.paper.parsing.sentences import TREEBANK
from tests.messages import mentions, tells

TREES = list(trees.parse_trees(TREEBANK, "text"))
SENTENCES = [
    *(" ".join(tree.words) for tree in TREES),
    "mice",  # one word
    "a ( b ) c",
    "mice " * 60,  # more than the limit of the model
    "the \u200alab",
    "\u200b",  # empty after the normalization of SentencePiece
]


def leaves(sentence: str) -> list[str]:
    return [
        word.replace("(", "-LRB-").replace(")", "-RRB-") for word in sentence.split(" ") if word
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    words = [" ".join(tree.words).encode() for tree in TREES]
    tokenizer = Tokenizer(
        learn_vocabulary(words, 60), treebank.symbol_model(trees.symbols_of(TREES))
    )
    path = tmp_path_factory.mktemp("parser") / "run"
    # Random weights, so that outputs differ from all treebanks.
    return make_run(
        path, tokenizer=tokenizer, model__tie_embeddings="target", decoding__beam_size=3,
        decoding__max_extra_tokens=20,
    )  # fmt: skip


@pytest.fixture(scope="module")
def model(run: RunDirectory) -> parser.ParserModel:
    return parser.load_parser(run.path, {"decoding.n_best": 2})


def test_leaves_are_the_words(model: parser.ParserModel) -> None:
    results = parser.parse_lines(model, [*SENTENCES, "", " "], tokens=True)
    for sentence, result in zip(SENTENCES, results, strict=False):
        (tree,) = trees.parse_trees([result.tree], "tree")
        assert list(tree.words) == leaves(sentence)
    assert any(")))" in result.tree for result in results)  # not all are flat
    assert [result.tree for result in results[-2:]] == ["", ""]
    long = SENTENCES.index("mice " * 60)
    assert [i for i, result in enumerate(results) if result.truncated] == [long]
    told = parser.remarks(results)
    assert tells(told[0], f"line {long + 1}", "truncated")
    empty = len(SENTENCES) + 1
    assert tells(told[-1], f"line {empty + 1}", "empty")


def test_trees_equal_the_results_of_the_search(model: parser.ParserModel) -> None:
    sentences = [" ".join(tree.words) for tree in TREES]
    parsed = model.parse_tokens(tf.constant(sentences))
    translator = model.owner.translator
    source_ids, *_ = translator.source_ids(tf.constant(sentences))
    max_lengths = translator.max_lengths(source_ids)
    tokenizer = translator.tokenizer
    symbols = treebank.require_parser(tokenizer.vocabulary, "the model")
    constraint = parser.TreeConstraint.of(symbols, tokenizer.end_id, tokenizer.target_vocab_size)
    inputs = SearchInputs(max_lengths, constraint_inputs=tf.constant([len(t.words) for t in TREES]))
    found = tf.function(
        lambda: translator.translate_ids(source_ids, inputs, constraint=constraint), autograph=False
    )()
    np.testing.assert_allclose(parsed["scores"], found.scores, rtol=1e-6)
    texts = translator.texts(found, tf.constant(sentences)).numpy()
    for row, tree in enumerate(TREES):
        for rank in range(2):
            written = texts[row, rank].decode().split(" ")
            kinds = [trees.SymbolKind.of(symbol) for symbol in written]
            assert kinds.count(trees.SymbolKind.WORD) == len(tree.words)
            expected = str(trees.restore(tree.words, written))
            assert parsed["trees"][row, rank].numpy().decode() == expected
    assert found.finished.numpy().all()


def test_as_many_words_have_tags_as_the_model_sees(model: parser.ParserModel) -> None:
    sentences = [*SENTENCES, "the\u00a0lab mice", "mice \u200b eat"]
    vocabulary = model.owner.translator.tokenizer.vocabulary
    begins, _ = treebank.word_boundaries(vocabulary) or ([], [])
    limit = model.owner.translator.max_source_tokens
    for sentence, result in zip(
        sentences, parser.parse_lines(model, sentences, tokens=True), strict=True
    ):
        words = [word for word in sentence.split(" ") if word]
        (ids,) = vocabulary.encode_source([sentence.encode()])
        seen = len(words) if len(ids) > 1 else 0  # a zero-width space leaves nothing
        if result.truncated:
            seen = sum(begins[i] for i in ids[: limit - 1])
        assert result.tree.count("(XX ") == len(words) - seen, sentence


def test_a_model_without_a_sensible_output_has_flat_trees(model: parser.ParserModel) -> None:
    transformer = model.owner.translator.transformer
    known = [weight.numpy() for weight in transformer.weights]
    try:
        for weight in transformer.weights:
            weight.assign(tf.fill(weight.shape, np.nan))
        outputs = model.parse_tokens(tf.constant(["the mice", "mice", ""]))
        (result,) = parser.parse_lines(model, ["the mice"], tokens=True)
    finally:
        for weight, value in zip(transformer.weights, known, strict=True):
            weight.assign(value)
    assert outputs["trees"].numpy().tolist() == [
        [b"(TOP (XX the) (XX mice))", b""], [b"(TOP (XX mice))", b""], [b"", b""]
    ]  # fmt: skip
    assert np.all(outputs["scores"].numpy()[:2] == -1e9)
    assert tells(parser.remarks([result])[0], "line 1", "flat tree", "logits")


def test_ordinary_translators_are_refused_as_parsers(
    run_directory: RunDirectory, exported_run: Path
) -> None:
    refuses(parser.load_parser, (run_directory.path,), "run", "parser", "vocabulary")
    with pytest.raises(InputError, match=mentions("run", "parser", "vocabulary")):
        EXPORTER.prepare(loading.load_translator(run_directory), ExportOptions())
    refuses(parser.load_parser, (exported_run,), "/1", "parser", "signature")


def test_an_export_with_different_trees_is_an_error(
    model: parser.ParserModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, translator = model.owner, model.owner.translator
    monkeypatch.setattr(exporter, "Parser", lambda _: owner)  # which is traced
    assert list(EXPORTER.extra_signatures(translator)[1]) == ["parse", "parse_tokens"]
    scores = owner.parse_tokens(tf.constant(SENTENCES[:1]))["scores"].numpy()
    monkeypatch.setattr(SavedModelExporter, "compare_signatures", lambda *_: None)

    engine = mock.Mock(call=mock.Mock(return_value=[{"scores": scores}]))
    EXPORTER.compare_signatures(translator, engine, SENTENCES[:1])
    engine.call.assert_called_once_with([("parse_tokens", {"tokens": SENTENCES[:1]})])
    engine.call.return_value = [{"scores": scores + 0.01}]
    with pytest.raises(InputError, match=mentions("parse_tokens", "scores")):
        EXPORTER.compare_signatures(translator, engine, SENTENCES[:1])
