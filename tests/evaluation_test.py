"""Scores: sacreBLEU's own numbers, a BLEU computed by hand, and bad input."""

import math
import subprocess
import sys

import pytest

from keras_transformer.errors import InputError
from keras_transformer.evaluation import TOKENIZERS, evaluate

REFERENCES = ["Two young men are outside .", "A dog runs on the beach ."]


def test_equal_texts_score_100():
    scores = evaluate(REFERENCES, REFERENCES, tokenize="none")
    assert scores.bleu == pytest.approx(100)
    assert scores.chrf == pytest.approx(100)
    assert scores.exact_match == 1
    assert scores.sentences == 2


def test_bleu_is_the_papers_formula():
    # Papineni et al. (2002): clipped n-gram precisions over the corpus, here counted by hand.
    hypothesis = "the dog runs on the beach"  # "the" occurs twice, the reference has it once
    reference = "a dog runs on the beach now"
    matches, totals = (5, 4, 3, 2), (6, 5, 4, 3)
    precision = math.exp(sum(math.log(m / t) for m, t in zip(matches, totals, strict=True)) / 4)
    brevity = math.exp(1 - 7 / 6)
    scores = evaluate([hypothesis], [reference], tokenize="none")
    assert scores.bleu == pytest.approx(100 * brevity * precision)


def test_scores_belong_to_the_corpus_not_to_the_mean_of_its_sentences():
    hypotheses = ["a b c d e f g h", "x y z w"]
    references = ["a b c d e f g h", "a b c d"]
    scores = evaluate(hypotheses, references, tokenize="none")
    expected = 100 * math.exp(sum(math.log((9 - n) / (14 - 2 * n)) for n in (1, 2, 3, 4)) / 4)
    assert scores.bleu == pytest.approx(expected)
    assert scores.exact_match == 0.5


def test_case_and_tokenization_are_in_the_signature_and_count():
    hypotheses = [line.upper() for line in REFERENCES]
    cased = evaluate(hypotheses, REFERENCES)
    lowered = evaluate(hypotheses, REFERENCES, lowercase=True)
    assert cased.bleu < 10 and cased.chrf < 50 and cased.exact_match == 0
    assert lowered.bleu == pytest.approx(100) and lowered.chrf == pytest.approx(100)
    assert lowered.exact_match == 1
    assert "case:mixed" in cased.signature and "tok:13a" in cased.signature
    assert "case:lc" in lowered.signature and "case:lc" in lowered.chrf_signature
    assert "tok:none" in evaluate(hypotheses, REFERENCES, tokenize="none").signature
    attached = [line.replace(" .", ".") for line in REFERENCES]  # 13a splits the full stop off
    assert evaluate(attached, REFERENCES).bleu == pytest.approx(100)
    assert evaluate(attached, REFERENCES, tokenize="none").bleu < 99


def test_scores_are_those_of_the_sacrebleu_command(tmp_path):
    hypotheses = ["Two men are outside.", "The dog runs along a beach."]
    reference_file = tmp_path / "references"
    reference_file.write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        str(reference_file),
        "-m",
        "bleu",
        "-b",
        "-w",
        "8",
    ]
    process = subprocess.run(
        command, input="\n".join(hypotheses), capture_output=True, text=True, check=True
    )
    assert evaluate(hypotheses, REFERENCES).bleu == pytest.approx(float(process.stdout), abs=1e-7)


def test_an_empty_hypothesis_is_scored_not_dropped():
    scores = evaluate(["", REFERENCES[1]], REFERENCES)
    assert 0 < scores.bleu < 100
    assert scores.sentences == 2


@pytest.mark.parametrize(
    ("hypotheses", "references", "tokenize", "message"),
    [
        (["a"], ["a", "b"], "13a", "1 hypotheses and 2 references"),
        ([], [], "13a", "at least one sentence"),
        (["a"], ["a"], "13b", "'13b'.*expected one of .*13a"),
    ],
)
def test_bad_input_is_named(hypotheses, references, tokenize, message):
    with pytest.raises(InputError, match=message):
        evaluate(hypotheses, references, tokenize=tokenize)


def test_a_tokenizer_that_is_not_installed_is_one_sentence(monkeypatch):
    assert "ja-mecab" in TOKENIZERS
    monkeypatch.setitem(sys.modules, "MeCab", None)
    sys.modules.pop("sacrebleu.tokenizers.tokenizer_ja_mecab", None)
    with pytest.raises(InputError, match=r"'ja-mecab' cannot be had here: .*sacrebleu\[ja\]") as e:
        evaluate(["a"], ["a"], tokenize="ja-mecab")
    assert "\n" not in str(e.value)
