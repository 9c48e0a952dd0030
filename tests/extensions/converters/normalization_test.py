"""Punctuation is normalized in the graph as sacremoses does it outside."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf
import tensorflow_text

from keras_transformer.extensions.converters import make_options, read_model
from keras_transformer.extensions.converters.normalization import normalize_punctuation
from keras_transformer.extensions.litert.tokenizer import text_problem
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.builders import refuses
from tests.extensions.converters.toolkits import FIXTURES

sacremoses = pytest.importorskip("sacremoses")

TEXTS = [
    "“The cat”, she said, „sees the dog“.",
    "the cat ( a dog ) , and ' the « dog »: 5 % !",
    "the dog’s cat — a dog – the cat…”",
    "(the cat) . ((the dog)); ‘the cat’ ? the dog ;",
    "1\u00a0000\u00a0% of 20 % : the\u00a0cat\u00a0! the ``dog'' .",
    "the cat，the dog。 the「cat」？ （dog）１２％",
    'the "dog," the "cat.".. "the dog"... \'\'the cat\'\'',
    "the cat  ,  the dog )  ( the cat",
    "„The cat.“\u00a0– „The dog.“",
    "",
]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    lines = [*TEXTS, "éàü ½ ﬁ", "12345678 90 ,. !? :; () \" ' % - ..."]
    return Vocabulary(learn_vocabulary([line.encode() for line in lines], 140))


def moses(language: str) -> Callable[[str], str]:
    """Returns the function of sacremoses that a language stands for."""
    if language == "unicode":
        return sacremoses.MosesPunctNormalizer().replace_unicode_punct
    return sacremoses.MosesPunctNormalizer(language, pre_replace_unicode_punct=True).normalize


@pytest.mark.parametrize("language", ["en", "de", "unicode"])
def test_tokens_are_those_of_normalized_texts(vocabulary: Vocabulary, language: str) -> None:
    normalized = normalize_punctuation(vocabulary, language)
    expected = vocabulary.encode_source([moses(language)(text).encode() for text in TEXTS])
    lines = [text.encode() for text in TEXTS]
    assert normalized.encode_source(lines) == expected
    assert vocabulary.encode_source(lines) != expected
    # Other rules of the model still apply, and targets do not change.
    others = ["éàü ½ ﬁ".encode()]
    assert normalized.encode_source(others) == vocabulary.encode_source(others)
    assert normalized.encode_target(lines) == vocabulary.encode_target(lines)
    assert normalized.shares_ids and not normalized.joint
    # The tokenizers of SavedModels and LiteRT execute the rules, too.
    tokenizer = tensorflow_text.SentencepieceTokenizer(normalized.source_model, add_eos=True)
    assert tokenizer.tokenize(tf.constant(TEXTS)).to_list() == expected
    assert text_problem(normalized, TEXTS) is None
    # LiteRT's tokenizer applies them to the space that it puts before a text.
    problem = text_problem(normalized, [") the cat"])
    assert problem is None if language == "unicode" else "') the cat'" in str(problem)


@pytest.mark.parametrize("language", ["en", "de", "unicode"])
def test_tokens_of_real_texts(test_data: Path, language: str) -> None:
    text = (test_data / "tatoeba" / "deu.txt").read_text("utf-8")
    german = [line.split("\t")[1] for line in text.splitlines()]
    lines = [line.encode() for line in german if not line.rstrip(".!?,").isascii()][:20000:12]
    lines += [line.encode() for line in german if set("„“”–…:;()") & set(line)][::3]
    vocabulary = Vocabulary(learn_vocabulary(lines[::8], 500))
    normalize = moses(language)
    expected = vocabulary.encode_source([normalize(line.decode()).encode() for line in lines])
    found = normalize_punctuation(vocabulary, language).encode_source(lines)
    assert found == expected
    assert found != vocabulary.encode_source(lines)


def test_punctuation_is_an_option_of_a_conversion() -> None:
    path = FIXTURES / "marian" / "post_norm.npz"  # without other rules
    model = read_model(path, "marian", make_options(normalize_punctuation="en"))
    plain = read_model(path, "marian")
    assert model.config == plain.config
    found = model.vocabulary.encode_source([b">>deu<< the old tree .", b">>deu<< the old tree :"])
    normal = [b">>deu<< the old tree  .", b">>deu<< the old tree:"]
    assert found == plain.vocabulary.encode_source(normal)
    options = make_options(normalize_punctuation="English")
    given = {"path": path, "source_format": "marian", "options": options}
    refuses(read_model, given, "normalize_punctuation", "English", "unicode")
