"""Translations and exports have the symbols of their source, for models that were not trained."""

import random
import re
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.export import ExportOptions, export
from keras_transformer.extensions.litert.engine import LiteRTModel
from keras_transformer.inference.translation_module import TranslationModule, compiled_translation
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.symbols import SPAN_SYMBOLS, SYMBOLS, TAG_SYMBOLS
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import learn_vocabulary
from tests.builders import PHRASES, weekly
from tests.conftest import random_shortlist
from tests.export.model_variants import SEARCH_OPTIONS, make_run

WORDS = " ".join(PHRASES).split()
SYMBOL = re.compile("｟[be]?[0-9]｠")


def random_source(random_: random.Random) -> str:
    """Returns words with 0 to 10 spans and 0 to 5 nested pairs of tags. Some spans repeat."""
    parts = random_.choices(WORDS, k=random_.randint(0, 4))
    parts += random_.sample(SPAN_SYMBOLS, random_.randint(0, 10))
    parts += random_.choices(parts, k=random_.randint(0, 1)) if parts else []
    random_.shuffle(parts)
    for begin, end in random_.sample(TAG_SYMBOLS, random_.randint(0, 5)):
        first, last = sorted(random_.choices(range(len(parts) + 1), k=2))
        inside = parts[first:last]
        # Pairs that are only half inside would cross.
        if all((b in inside) == (e in inside) for b, e in TAG_SYMBOLS):
            parts[first:last] = [begin, *inside, end]
    return random_.choice(["", " "]).join(parts)


def keeps_symbols(source: str, translation: str) -> bool:
    """Returns whether a translation has the symbols of its source, well nested."""
    found = SYMBOL.findall(translation)
    text = "".join(symbol for symbol in found if symbol not in SPAN_SYMBOLS)
    while text != (text := re.sub("｟b(.)｠｟e\\1｠", "", text)):
        pass
    return not text and Counter(found) == Counter(SYMBOL.findall(source))


SOURCES = [random_source(random.Random(seed)) for seed in range(40)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    lines = [phrase.encode() for phrase in PHRASES]
    source, target = (learn_vocabulary(lines[i : i + 3], 70, symbols=SYMBOLS) for i in (0, 3))
    path, tokenizer = tmp_path_factory.mktemp("symbols") / "run", Tokenizer(source, target)
    return make_run(
        path, tokenizer=tokenizer, model__tie_embeddings="target", decoding__max_source_tokens=100
    )


def translator_of(run: RunDirectory, **changes: object) -> TranslationModule:
    model = Transformer(run.config.model, dtype="float32")
    model.build()
    model.assign_weights(run.named_weights())
    return TranslationModule(model, run.tokenizer(), run.config.updated(**changes).decoding)


def assert_kept(sources: list[str], translations: tf.Tensor, scores: tf.Tensor) -> None:
    assert translations.shape[0] == len(sources)
    for source, texts, row in zip(sources, translations.numpy(), scores.numpy(), strict=True):
        assert row[0] > -1e8
        for text, score in zip(texts, row, strict=True):
            assert score < -1e8 or keeps_symbols(source, text.decode())


@pytest.mark.parametrize(
    "options",
    [
        weekly({"n_best": 3}),  # every change: ensembles, and constraints
        weekly({"beam_size": 1}),
        {"sample": True, "n_best": 2, "temperature": 2.0, "top_k": 5},
        weekly({"max_length": 1}),
        {"max_length": 6, "min_length": 6, "no_repeat_ngram": 1, "banned": "｟0｠|｟b1｠ ｟1｠|a"},
    ],
)
def test_translations_have_all_symbols(run: RunDirectory, options: dict[str, object]) -> None:
    translator = translator_of(run, **{f"decoding__{name}": v for name, v in options.items()})
    outputs = translator.translate(tf.constant(SOURCES))
    assert_kept(SOURCES, outputs["translations"], outputs["scores"])
    for source, row in zip(SOURCES[:5], outputs["translations"][:5], strict=True):
        alone = translator.translate(tf.constant([source]))
        np.testing.assert_array_equal(alone["translations"][0], row)


def test_prefixes_shortlists_and_ensembles_keep_all_symbols(run: RunDirectory) -> None:
    translator = translator_of(run, decoding__n_best=2)
    models = [*translator.transformers, *translator_of(run).transformers]
    shortlist = random_shortlist(run, 2)
    ensemble = TranslationModule(models, run.tokenizer(), translator.config, shortlist)
    details = ensemble.translate_verbose(
        tf.constant(SOURCES), tf.constant(["das", "", "ein ", "am"] * 10)
    )
    assert_kept(SOURCES, details["translations"], details["scores"])


@pytest.mark.long
def test_a_search_that_xla_compiles_keeps_all_symbols(run: RunDirectory) -> None:
    translator = translator_of(run)
    outputs = compiled_translation(translator)(tf.constant(SOURCES))
    expected = translator.translate(tf.constant(SOURCES))
    np.testing.assert_array_equal(outputs["translations"], expected["translations"])


@pytest.mark.parametrize("format", ["ids", *map(weekly, ("litert", "saved_model", "cpu"))])
def test_exports_keep_all_symbols(run: RunDirectory, tmp_path, format: str) -> None:
    format, extra = ("litert", {"text_signature": False}) if format == "ids" else (format, {})
    settings = {"decoding.n_best": 2, "decoding.max_length": 25, **SEARCH_OPTIONS}
    options = ExportOptions(weights="float32", extra=extra)
    exported = export(run, tmp_path, SOURCES, options, format=format, settings=settings)
    assert len(exported.translations) == len(SOURCES)  # those of the export are the run's
    for source, translation in zip(SOURCES, exported.translations, strict=True):
        assert keeps_symbols(source, translation)
    if format == "litert":
        model = LiteRTModel(exported.path / "model.tflite")
        assert exported.warning is None
        for source in SOURCES[:10]:
            ids = model.source_ids(source)
            found = model.translate_ids(ids, max_length=1)
            assert found.lengths[0] > sum(ids.count(i) for i in run.tokenizer().symbol_ids[0])
    if format == "saved_model":
        serve = tf.saved_model.load(str(exported.path)).signatures["translate"]
        count = len(SOURCES)
        outputs = serve(
            text=tf.constant(SOURCES), max_length=tf.fill([count], 2),
            length_penalty=tf.fill([count], 0.5), prefix=tf.fill([count], ""),
        )  # fmt: skip
        assert_kept(SOURCES, outputs["translations"], outputs["scores"])


def test_a_vocabulary_keeps_symbols_in_text() -> None:
    lines = [phrase.encode() for phrase in PHRASES]
    vocabulary = Tokenizer(learn_vocabulary(lines, 80, symbols=SYMBOLS)).vocabulary
    text = "｟0｠｟b4｠ball ｟e4｠, ⦅"
    assert vocabulary.rewritten("source", [text]) == {}
    source_ids, target_ids = vocabulary.symbol_ids
    (ids,) = vocabulary.encode_source([text.encode()])
    assert [i for i in ids if i in source_ids] == [source_ids[i] for i in (0, 14, 19)]
    assert source_ids == target_ids
    without = Tokenizer(learn_vocabulary(lines, 60), vocabulary.target_model)
    assert without.symbol_ids is None
