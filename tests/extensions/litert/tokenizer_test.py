"""LiteRT's tokenizer finds SentencePiece's tokens for every text, or a reason is given."""

import io
import re
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import sentencepiece
import tensorflow as tf
import tensorflow_text
from hypothesis import strategies as st

from keras_transformer.export.probes import probe_texts
from keras_transformer.extensions.litert.tokenizer import (
    fast_detokenizer_model,
    fast_model,
    text_problem,
)
from keras_transformer.text.model_proto import UNUSED, USER_DEFINED, ModelProto
from keras_transformer.text.vocabulary import Vocabulary, _make_sums_exact
from tests.conftest import PHRASES
from tests.messages import tells

NESTED = ["<", "<a", "<a>", "<a>>"]
INSIDE = ["ein", "all", "un", "xy"]
CONTROL = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]")
COMPOSED = [">", "e", "\xe9", "e\u0301", "\u2460", "\ufb01n", "A", "\U0001f44d"]
SUPPORTED: dict[str, dict[str, Any]] = {
    "plain": {},
    "case folded": {"normalization_rule_name": "nmt_nfkc_cf"},
    "tags": {"user_defined_symbols": ["<2de>", "<2fr>"]},
    "case-folded tags": {
        "user_defined_symbols": ["<2DE>", "<2fr>"],
        "normalization_rule_name": "nmt_nfkc_cf",
    },
    "full-width tags": {"user_defined_symbols": ["\uff1cx\uff1e"]},
    "symbols that begin with symbols": {"user_defined_symbols": NESTED},
    "symbols inside words": {"user_defined_symbols": INSIDE},
    "symbols that normalization composes": {"user_defined_symbols": COMPOSED},
    "many symbols": {"user_defined_symbols": [f"<{i:X}>" for i in range(300)]},
    "control symbols": {"control_symbols": ["<c>"]},
    "pieces across words": {"split_by_whitespace": False},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bpe": ({"model_type": "bpe"}, "bpe"),
    "word": ({"model_type": "word"}, "word"),
    "char": ({"model_type": "char"}, "char"),
    "byte fallback": ({"byte_fallback": True, "vocab_size": 330}, "byte fallback"),
    "suffix": ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix"),
    "spaces kept": ({"remove_extra_whitespaces": False}, "remove_extra_whitespaces"),
    "no prefix": ({"add_dummy_prefix": False}, "add_dummy_prefix"),
    "unknown text": ({"unk_surface": "?"}, "'?'"),
    "nfkc": ({"normalization_rule_name": "nfkc"}, "tabs"),
    "identity": ({"normalization_rule_name": "identity"}, "tabs"),
    "spaces in symbols": ({"user_defined_symbols": ["a\u2581b"]}, "contains a space"),
    "overlap": ({"user_defined_symbols": ["ab", "bc"]}, "'ab'"),
    "overlap with itself": ({"user_defined_symbols": ["xx"]}, "'xx'"),
}


def learn(options: dict[str, Any]) -> bytes:
    """Returns a model with SentencePiece's own options, which are more than this package has."""
    model = io.BytesIO()
    symbols = [*options.get("user_defined_symbols", ()), *options.get("control_symbols", ())]
    defaults = {
        "vocab_size": 60 + len(symbols), "hard_vocab_limit": False, "minloglevel": 2,
        "pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3,
    }  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([phrase.encode() for phrase in PHRASES] * 5),
        model_writer=model,
        **{**defaults, **options},
    )
    # As in each vocabulary of this package. Otherwise rounding decides between equal segmentations.
    proto = ModelProto.FromString(model.getvalue())
    _make_sums_exact(proto)
    return bytes(proto.SerializeToString(deterministic=True))


@pytest.fixture(scope="module", params=SUPPORTED)
def supported(request: pytest.FixtureRequest) -> Vocabulary:
    return Vocabulary(learn(SUPPORTED[request.param]))


@pytest.fixture(scope="module")
def fast_tokenizer(supported: Vocabulary) -> Any:
    return tensorflow_text.FastSentencepieceTokenizer(fast_model(supported.source_model))


def test_supported_vocabularies(supported: Vocabulary) -> None:
    assert text_problem(supported, probe_texts(supported, PHRASES)) is None


@hypothesis.settings(
    max_examples=50,
    suppress_health_check=[hypothesis.HealthCheck.differing_executors],
)
@hypothesis.given(data=st.data())
def test_any_bytes_have_the_tokens_of_sentencepiece(supported, fast_tokenizer, data):
    symbols = sorted(supported.source_symbols)[:20]
    parts = [st.text(st.characters(exclude_categories=["Cs"]), max_size=5).map(str.encode)]
    parts += [st.sampled_from([*map(str.encode, symbols), *" ".join(PHRASES).encode().split()])]
    parts += [st.binary(max_size=3)]
    texts = st.lists(st.lists(st.one_of(parts), max_size=6).map(b"".join), min_size=1, max_size=20)
    # FastSentencepiece removes control characters even inside of invalid UTF-8: b"\xc3\x01\xbc".
    lines = [CONTROL.sub(b"", line) for line in data.draw(texts)]
    found = fast_tokenizer.tokenize(tf.constant(lines, tf.string)).to_list()
    expected = supported.encode_source(lines)
    assert [[*ids, supported.end_id] for ids in found] == expected


@pytest.mark.parametrize("name", REFUSED)
def test_other_vocabularies_are_refused_with_a_reason(name: str) -> None:
    options, reason = REFUSED[name]
    assert tells(text_problem(Vocabulary(learn(options)), []) or "", reason)


def test_both_models_of_separate_vocabularies_are_checked() -> None:
    plain, bpe = learn({}), learn({"model_type": "bpe"})
    for models in ((plain, bpe), (bpe, plain)):
        assert tells(text_problem(Vocabulary(*models), []) or "", "bpe")


def test_unused_pieces_and_symbols_at_the_start_of_words() -> None:
    """The pieces of a converted Marian model that only the other language or a tag uses."""
    proto = ModelProto.FromString(learn({}))
    unused = next(i for i, piece in enumerate(proto.pieces) if len(piece.piece) > 2 and i > 3)
    text = proto.pieces[unused].piece.replace("\u2581", " ")
    proto.pieces[unused].type = UNUSED
    proto.pieces.add(piece="\u2581>>deu<<", type=USER_DEFINED)
    model = proto.SerializeToString()
    vocabulary = Vocabulary(model)
    lines = [f">>deu<< {text}{text}", f"{text} >>deu<<{text}>>deu<<", "a>>deu<<", "\u2603>>deu<<"]
    assert text_problem(vocabulary, lines) is None
    [ids, *_] = vocabulary.encode_source([line.encode() for line in lines])
    assert ids[0] == len(proto.pieces) - 1 and unused not in ids

    detokenizer = tensorflow_text.FastSentencepieceTokenizer(fast_detokenizer_model(model))
    written = [unused, ids[1], unused]
    found = detokenizer.detokenize(tf.ragged.constant([written])).numpy()[0].decode()
    assert found == vocabulary.target_text(written)


def test_models_of_other_tools_are_refused_with_a_reason() -> None:
    proto = ModelProto.FromString(learn({}))
    proto.pieces[-1].piece = "ab\u2603"
    assert tells(
        text_problem(Vocabulary(proto.SerializeToString()), []) or "", "character", "piece"
    )
    proto = ModelProto.FromString(learn({}))
    proto.normalizer_spec.escape_whitespaces = False
    assert tells(
        text_problem(Vocabulary(proto.SerializeToString()), []) or "", "escape_whitespaces"
    )


def test_rules_of_normalization_are_compared(tmp_path: Path) -> None:
    rules = {"\t": " ", "\n": " ", "\r": " ", "\u2581": " ", "a": "b ", "x": "", "yz": "  q"}
    file = tmp_path / "rules.tsv"
    file.write_text("".join(f"{_codes(key)}\t{_codes(text)}\n" for key, text in rules.items()))
    vocabulary = Vocabulary(learn({"normalization_rule_tsv": str(file)}))
    texts = [*probe_texts(vocabulary, PHRASES), "yza  x xyz", "ayz"]
    assert text_problem(vocabulary, texts) is None


def test_a_difference_names_the_text_and_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = Vocabulary(learn(SUPPORTED["case-folded tags"]))
    monkeypatch.setattr(
        "keras_transformer.extensions.litert.tokenizer.fast_model", lambda model: model
    )
    problem = text_problem(vocabulary, ["a", "<2DE> \xe9"])
    (ids,) = vocabulary.encode_source(["<2DE> \xe9".encode()])
    assert tells(problem or "", r"'<2DE> \xe9'", f"instead of {ids[1:]}")


def _codes(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)
