"""LiteRT exports give the tokens of the run, even with quantized weights, or raise an error."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from hypothesis import strategies as st

from keras_transformer.decoding import NEG_INF, SearchInputs, SearchResult
from keras_transformer.errors import InputError
from keras_transformer.export import ExportOptions, ExportResult, export
from keras_transformer.extensions.litert import convert, exporter, passes
from keras_transformer.extensions.litert import engine as litert
from keras_transformer.extensions.litert.archive import append_archive
from keras_transformer.extensions.litert.engine import LiteRTModel
from keras_transformer.extensions.litert.quantization import multiply_int8_rows, quantize
from keras_transformer.extensions.litert.signatures import LiteRTSignatures
from keras_transformer.inference import Status, loading, translate
from keras_transformer.inference.manifest import check_manifest
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.layers import masks
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import learn_vocabulary
from tests.builders import refuses, weekly
from tests.conftest import PHRASES
from tests.export.model_variants import SEARCH_OPTIONS, make_run
from tests.messages import mentions, tells

SENTENCES = [*PHRASES, "", " ", "ball " * 30, "☃ 雪", "</s> <pad> <unk>"]
SETTINGS = {"decoding.n_best": 2}
WINDOW = {"model__attention_window": 5}
SSRU = {"model__decoder_self_attention": "ssru"}

# Built-in operations that a search needs. Some runtimes may lack any other operation.
OPS = set(
    "ADD ADD_N BATCH_MATMUL CAST CONCATENATION COS DIV DYNAMIC_UPDATE_SLICE EMBEDDING_LOOKUP EQUAL "
    "EXP EXPAND_DIMS FILL FLOOR_DIV FLOOR_MOD FULLY_CONNECTED GATHER GREATER GREATER_EQUAL LESS "
    "LESS_EQUAL LOG LOGICAL_AND LOGICAL_NOT LOGICAL_OR MAXIMUM MEAN MINIMUM MUL NEG NOT_EQUAL PACK "
    "PAD POW RANGE REDUCE_ANY REDUCE_MAX RELU RESHAPE RSQRT SELECT SELECT_V2 SHAPE SIN SOFTMAX "
    "SPLIT SQUARED_DIFFERENCE STRIDED_SLICE SUB SUM TOPK_V2 TRANSPOSE WHILE".split()
)
TOKENIZERS = {"TFText>FastSentencepieceTokenize", "TFText>FastSentencepieceDetokenize"}
TEXT_OPS = {"CUMSUM", "WHERE"} | TOKENIZERS  # for text inputs and outputs


class LiteRTExport:
    """A run, its translator and its LiteRT model."""

    def __init__(self, run: RunDirectory | str, version: Path):
        self.run, self.version = run, version
        self.path = version / "model.tflite"
        self.model = LiteRTModel(self.path)
        self.translator = loading.load_translator(run, SETTINGS)

    @property
    def content(self) -> Any:
        return passes.read(self.path.read_bytes())


@pytest.fixture(scope="module")
def paper(run_directory: RunDirectory, litert_version: Path) -> LiteRTExport:
    return LiteRTExport(run_directory, litert_version)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> LiteRTModel:
    """A model whose scores change only slightly if its weights are rounded."""
    folder = tmp_path_factory.mktemp("exact")
    translator = loading.load_translator(make_run(folder / "run"), SETTINGS)
    convert.write_file(folder / "model.tflite", translator, "float32", for_cpu=False)
    return LiteRTModel(folder / "model.tflite")


def found_by(translator: TranslationModule, text: str) -> tuple[Any, Any, Any]:
    result = translator.translate_to_ids(tf.constant([text]))
    return tuple(field[0].numpy() for field in (result.ids, result.lengths, result.scores))


def assert_same_tokens(model: LiteRTModel, translator: TranslationModule, text: str) -> None:
    ids, lengths, scores = found_by(translator, text)
    found = model.translate_ids(model.source_ids(text))
    np.testing.assert_allclose(found.scores, scores, atol=1e-4)
    assert found.lengths.tolist() == lengths.tolist()
    for ours, theirs, length in zip(found.ids, ids, lengths, strict=True):
        assert ours[:length].tolist() == theirs[:length].tolist()


def test_every_signature_translates_as_the_run(paper: LiteRTExport) -> None:
    assert check_manifest(paper.version)["warning"] is None
    in_graph = convert.load_text_signature(paper.path)
    for sentence in SENTENCES:
        assert_same_tokens(paper.model, paper.translator, sentence)
        outputs = paper.translator.translate(tf.constant([sentence]))
        texts = [text.decode() for text in outputs["translations"][0].numpy()]
        translations = paper.model.translate(sentence)
        assert [translation.text for translation in translations] == texts[: len(translations)]
        for found, scores in (
            (texts, [translation.score for translation in translations]),
            in_graph(paper.model.truncate(sentence)),
        ):
            assert found == texts
            expected = outputs["scores"][0].numpy()[: len(scores)]
            np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_longer_sentences_after_shorter_ones(paper: LiteRTExport) -> None:
    """A kernel that keeps sizes of smaller inputs would read uninitialized memory."""
    sentences = sorted(PHRASES, key=lambda phrase: len(paper.model.source_ids(phrase)))
    expected = [found_by(paper.translator, sentence)[2] for sentence in sentences]
    for _ in range(10):
        model = LiteRTModel(paper.path)
        for sentence, scores in zip(sentences, expected, strict=True):
            found = model.translate_ids(model.source_ids(sentence))
            np.testing.assert_allclose(found.scores, scores, atol=1e-3)


@pytest.mark.parametrize(
    ("format", "model", "changes", "settings"),
    [
        weekly("cpu", "paper", SSRU, {}),
        weekly("litert", "separate", SSRU, {"decoding.beam_size": 2}),
        weekly("litert", "converted", {}, {"decoding.beam_size": 4, **SEARCH_OPTIONS}),
        weekly("litert", "separate", WINDOW, {"decoding.beam_size": 1}),
        weekly("cpu", "converted", {}, {"decoding.n_best": 2, "decoding.max_extra_tokens": 30}),
    ],
    ids=[
        "ssru",
        "ssru, phone",
        "converted, all options",
        "separate, greedy",
        "early stopping of batches",
    ],
)
def test_other_architectures_and_searches(tmp_path, monkeypatch, format, model, changes, settings):
    monkeypatch.setattr(masks, "_MIN_BLOCK_SIZE", 4)  # makes several blocks with a window
    run = make_run(tmp_path / "run", model, **changes)
    # The export compares all sentences.
    given = {"settings": settings, "options": ExportOptions(weights="float32"), "format": format}
    result = export(run, tmp_path / "export", SENTENCES, **given)
    assert len(result.translations) == len(SENTENCES)


def test_only_operations_of_every_runtime_are_used(paper: LiteRTExport) -> None:
    model = paper.content
    assert set(passes.describe_signatures(model)) == {"translate_ids", "translate"}
    [graph] = [s.subgraphIndex for s in model.signatureDefs if s.signatureKey == b"translate"]
    graphs = [{passes.op_name(model, op) for op in graph.operators} for graph in model.subgraphs]
    assert TOKENIZERS <= graphs.pop(graph) <= OPS | TEXT_OPS
    assert set.union(*graphs) <= OPS
    assert_stored_once(model)


def test_the_first_signature_needs_no_operations_of_tensorflow_text(paper: LiteRTExport) -> None:
    """`CompiledModel` runs it by default, and the Java runtime prepares its graph at the start."""
    assert paper.content.signatureDefs[0].signatureKey == b"translate_ids"
    interpreter = Interpreter(str(paper.path))
    interpreter.allocate_tensors()
    assert np.int32 in {detail["dtype"] for detail in interpreter.get_input_details()}
    assert np.bytes_ not in {detail["dtype"] for detail in interpreter.get_input_details()}


def assert_stored_once(model: Any) -> None:
    contents = [bytes(buffer.data) for buffer in model.buffers if buffer.data is not None]
    assert len(contents) == len(set(contents))
    # The signatures, and for each loop (the encoder and the search) a condition, a body, and a
    # condition that is never true.
    assert len(model.subgraphs) == len(model.signatureDefs) + 6


@pytest.mark.parametrize(
    ("weights", "tolerance"), [("float32", 0.0), ("float16", 0.01), ("int8", 0.2), ("int4", 0.4)]
)
def test_quantization_changes_scores_slightly_and_each_weight_is_stored_once(
    exact: LiteRTModel, tmp_path: Path, weights: str, tolerance: float
) -> None:
    model, path = passes.read(exact.path.read_bytes()), tmp_path / "model.tflite"
    quantize(model, weights)
    multiply_int8_rows(model)
    path.write_bytes(passes.write(model))
    append_archive(path, exact.metadata, exact.vocabulary)
    made = LiteRTModel(path)
    for sentence in PHRASES:
        score, rounded = exact.translate(sentence)[0].score, made.translate(sentence)[0].score
        assert rounded == pytest.approx(score, abs=tolerance * abs(score))
        assert (rounded != score) == (weights != "float32")
    assert_stored_once(model)
    if weights == "int4":
        compiled = LiteRTModel(path, low_memory=True)
        for sentence in PHRASES:
            assert compiled.translate(sentence) == made.translate(sentence)


def test_options_are_clamped_and_status_reports_it(paper: LiteRTExport) -> None:
    text = PHRASES[0]
    ids = paper.model.source_ids(text)
    source_ids, *_ = paper.translator.source_ids(tf.constant([text]))
    search = tf.function(paper.translator.translate_ids, autograph=False)
    for alpha in (0.0, 2.0):
        inputs = SearchInputs(paper.translator.max_lengths(source_ids), alpha=tf.constant([alpha]))
        found = paper.model.translate_ids(ids, length_penalty=alpha)
        np.testing.assert_allclose(found.scores, search(source_ids, inputs).scores[0], atol=1e-4)
        assert found.status == 0
    short = paper.model.translate_ids(ids, max_length=4)
    assert short.lengths.max() <= 4
    assert short.status == 0
    own = paper.model.translate_ids(ids)
    for arguments, status in [
        ({"max_length": -1}, Status.MAX_LENGTH_CHANGED),
        ({"max_length": 10**6}, Status.MAX_LENGTH_CHANGED),
    ]:
        found = paper.model.translate_ids(ids, **arguments)
        assert found.status == status
        np.testing.assert_array_equal(found.scores, own.scores)
    assert paper.model.translate_ids(ids, length_penalty=-1.0).status == (
        Status.LENGTH_PENALTY_CHANGED
    )
    np.testing.assert_array_equal(paper.model.translate_ids(ids[:-1]).scores, own.scores)
    strange = paper.model.translate_ids([*ids[:-1], 10**6, -5])
    assert strange.status == Status.IDS_REPLACED
    unknown = paper.model.vocabulary._source.unk_id()
    np.testing.assert_array_equal(
        strange.scores, paper.model.translate_ids([*ids[:-1], unknown, unknown]).scores
    )
    cut = paper.model.translate_ids(ids[:3] * 40)
    assert cut.status == Status.SOURCE_CUT


def test_ids_after_the_length_are_ignored(paper: LiteRTExport) -> None:
    ids = paper.model.source_ids(PHRASES[0])
    own = paper.model.translate_ids(ids)
    run = Interpreter(str(paper.path)).get_signature_runner("translate_ids")
    padded = np.full([1, 40], 10**6, np.int32)
    padded[0, : len(ids)] = ids
    for length, status in ((len(ids), 0), (-1, Status.LENGTHS_CHANGED)):
        outputs = run(
            ids=padded,
            lengths=np.array([length], np.int32),
            max_length=np.array([0], np.int32),
            length_penalty=np.array([math.nan], np.float32),
        )
        assert outputs["status"] == status
        assert np.array_equal(outputs["scores"][0], own.scores) == (length > 0)


@pytest.fixture(scope="module")
def in_graph(paper: LiteRTExport) -> Callable[[bytes], tuple[list[str], np.ndarray]]:
    return convert.load_text_signature(paper.path)


@hypothesis.settings(max_examples=60)
@hypothesis.given(text=st.text(max_size=60))
@hypothesis.example("\0")
@hypothesis.example("a" * 5000)
@hypothesis.example("e" + "\u0301" * 300)
@hypothesis.example("\u202eabc \U0001f468\u200d\U0001f469\u200d\U0001f467")
def test_any_text_is_translated_as_by_the_run_and_by_both_signatures(paper, in_graph, text):
    model, tensor = paper.model, tf.constant([text.encode()])
    result = model.translate_ids(model.source_ids(text))
    expected = paper.translator.translate(tensor)["scores"][0].numpy()
    is_found = expected > NEG_INF / 2
    np.testing.assert_allclose(result.scores[is_found], expected[is_found], atol=1e-4)
    texts, scores = in_graph(model.truncate(text))
    assert (texts, scores.tolist()) == (model.texts(result), result.scores.tolist())
    counts = paper.translator.lengths(tensor)
    assert model.lengths(text) == tuple(
        counts[name].numpy()[0] for name in ("tokens", "used", "unknown")
    )


def test_the_manifest_describes_the_signatures(paper: LiteRTExport) -> None:
    signatures = check_manifest(paper.version)["signatures"]
    translations = signatures["translate"]["outputs"]["translations"]
    assert translations == {"dtype": "string", "shape": [1, 2]}
    inputs = signatures["translate_ids"]["inputs"]
    assert inputs["ids"] == {"dtype": "int32", "shape": [1, 40]}
    assert set(inputs) == {"ids", "lengths", "max_length", "length_penalty"}


def test_load_model_accepts_litert_models(paper: LiteRTExport, tmp_path: Path) -> None:
    for path in (paper.path, paper.version, paper.version.parent):
        model = loading.load_model(path)
        results = translate.translate_lines(model, [*PHRASES, ""])
        assert [len(result) for result in results] == [2] * len(PHRASES) + [1]
        assert results[0][0].text == paper.model.translate(PHRASES[0])[0].text
    renamed = Path(shutil.copy(paper.path, tmp_path / "renamed.bin"))
    assert loading.load_model(renamed).n_best == 2
    renamed.write_bytes(b"PK\3\4 another format")
    refuses(loading.load_model, (renamed,), "renamed.bin", "another export")
    refuses(loading.load_model, (tmp_path / "none.tflite",), "none.tflite", "No such file")
    refuses(translate.translate_verbose, (model, PHRASES), "details", "prefixes")
    _, (empty, cut), _ = translate.translate_to_text(model, ["", "ball " * 100])
    assert tells(empty, "line 1", "empty") and tells(cut, "line 2", "201 tokens", 40)
    short = loading.load_model(paper.path, {"decoding.max_length": 2, "decoding.length_penalty": 0})
    assert short.with_settings({"decoding.length_penalty": 1.0})._max_length == 2
    score = translate.translate_lines(short, PHRASES[:1])[0][0].score
    expected = paper.model.translate(PHRASES[0], max_length=2, length_penalty=0.0)[0].score
    assert score == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"settings": {"decoding.beam_size": 2}}, ("export", "decoding.beam_size")),
        ({"settings": {"decoding.max_length": 10**4}}, ("decoding.max_length", 10000)),
        ({"precision": "bfloat16"}, ("LiteRT", "precision")),
        ({"jit_compile": True}, ("LiteRT", "jit_compile=True")),
    ],
)
def test_settings_that_were_fixed_at_export(paper, arguments, facts):
    refuses(loading.load_model, {"model_dir": paper.path, **arguments}, *facts)


def test_searches_that_litert_lacks_are_refused(paper: LiteRTExport, tmp_path: Path) -> None:
    settings = {"decoding.sample": True}
    with pytest.raises(InputError, match=mentions("decoding.sample", "outputs")):
        export(paper.run, tmp_path, SENTENCES, format="litert", settings=settings)


@pytest.mark.long
def test_an_ensemble_and_an_unsupported_vocabulary_have_only_translate_ids(tmp_path: Path) -> None:
    lines = [phrase.encode() for phrase in PHRASES]
    bpe = Tokenizer(learn_vocabulary(lines, 60, model_type="bpe"))
    run = make_run(tmp_path / "run", tokenizer=bpe).path
    given: dict[str, Any] = {"format": "litert", "settings": SETTINGS}
    exported = export(f"{run},{run}", tmp_path / "export", SENTENCES, **given)
    made = LiteRTExport(f"{run},{run}", exported.path)
    assert set(passes.describe_signatures(made.content)) == {"translate_ids"}
    warning = str(exported.warning)
    assert tells(warning, "only", "translate_ids", "bpe")
    assert check_manifest(made.version)["warning"] == warning
    card = (made.version / "README.md").read_text("utf-8")
    assert warning in card and "`joint.model`" in card
    for sentence in SENTENCES:
        outputs = made.translator.translate(tf.constant([sentence]))
        texts = [text.decode() for text in outputs["translations"][0].numpy()]
        found = [translation.text for translation in made.model.translate(sentence)]
        assert found == texts[: len(found)]


def compare(made: LiteRTExport) -> ExportResult:
    """Compares the version once more, as `export` does before it publishes it."""
    opened = exporter.EXPORTER.open_for_comparison(made.version)
    probes = exporter.EXPORTER.probes(made.translator, PHRASES)
    return exporter.EXPORTER.compare(made.translator, opened, PHRASES, probes, ExportOptions())


def test_runtimes_and_tokenizers_that_differ_are_not_published(
    paper: LiteRTExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compare(paper).ties == []
    source_ids = LiteRTModel.source_ids
    with monkeypatch.context() as patch:
        patch.setattr(
            LiteRTModel,
            "source_ids",
            lambda self, text: source_ids(self, text.replace("\u3000", "")),
        )
        refuses(compare, (paper,), r"'a\u3000b'", "tokens")
        patch.setattr(LiteRTModel, "source_ids", source_ids)
        patch.setattr(convert, "load_text_signature", lambda _: lambda _: (["another"], [0.0]))
        refuses(compare, (paper,), "translate", "'another'", "translate_ids")
    compiled = litert._compiled

    def short(path: Path) -> litert.Runtime:
        run = compiled(path)
        return lambda **inputs: run(**{**inputs, "max_length": np.array([2], np.int32)})

    monkeypatch.setattr(litert, "_compiled", short)
    refuses(compare, (paper,), "CompiledModel", "Interpreter")


@pytest.mark.parametrize("first", ["unknown", "space", "spaces and unknown"])
def test_texts_that_begin_with_special_pieces(paper: LiteRTExport, first: str) -> None:
    """The graph's detokenizer drops other spaces at the beginning than SentencePiece."""
    vocabulary = paper.translator.tokenizer.vocabulary
    space = vocabulary.target_spaces().index(True)
    words = vocabulary.encode_target([b"das Haus"])[0]
    begin = {
        "unknown": [vocabulary.unknown_id],
        "space": [space],
        "spaces and unknown": [space, space, vocabulary.unknown_id, vocabulary.unknown_id],
    }[first]
    ids = [*begin, *words]
    signatures = LiteRTSignatures(paper.translator, with_text=True, for_cpu=False, is_int8=False)
    scores = tf.constant([[-1.0, -2.0]])
    result = SearchResult(
        ids=tf.constant([[[*ids, 0], [*words, *[0] * (len(ids) + 1 - len(words))]]]),
        scores=scores,
        lengths=tf.constant([[len(ids), len(words)]]),
        finished=tf.fill([1, 2], True),
        log_probs=scores,
    )
    texts = [text.decode() for text in signatures._texts(result)[0].numpy()]
    assert texts == [vocabulary.target_text(ids), "das Haus"]
