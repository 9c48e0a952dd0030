"""Scores equal sacreBLEU and BLEU computed by hand. Comparisons of systems, invalid input."""

import dataclasses
import json
import math
import random
import re
import subprocess
import sys
import unicodedata

import pytest
import sacremoses
from sacrebleu.metrics.bleu import BLEU

from keras_transformer.evaluation.metrics import (
    _PACKAGES,
    blind_score,
    choose_tokenizer,
    evaluate,
    paper_bleu,
)
from keras_transformer.evaluation.test_sets import EvaluationSet
from tests.builders import refuses
from tests.messages import tells

REFERENCES = ["Two young men are outside .", "A dog runs on the beach ."]


def bleu_by_hand(matches, totals, brevity_penalty=1.0):
    """The formula of Papineni et al. (2002) for numbers of clipped and of all n-grams."""
    precisions = (m / t for m, t in zip(matches, totals, strict=True))
    return pytest.approx(100 * brevity_penalty * math.exp(sum(map(math.log, precisions)) / 4))


def test_bleu_is_the_papers_formula():
    hypothesis = "the dog runs on the beach"  # "the" occurs twice, the reference has it once
    scores = evaluate([hypothesis], ["a dog runs on the beach now"], tokenize="none")
    assert scores.bleu == bleu_by_hand((5, 4, 3, 2), (6, 5, 4, 3), math.exp(1 - 7 / 6))


def test_case_and_tokenization_are_in_the_signature():
    hypotheses = [line.upper() for line in REFERENCES]
    cased = evaluate(hypotheses, REFERENCES)
    lowered = evaluate(hypotheses, REFERENCES, lowercase=True)
    assert cased.bleu < 10 and cased.chrf < 50 and cased.exact_match == 0
    assert lowered.bleu == pytest.approx(100) and lowered.chrf == pytest.approx(100)
    assert lowered.exact_match == 1
    assert "case:mixed" in cased.signature and "tok:13a" in cased.signature
    assert "case:lc" in lowered.signature and "case:lc" in lowered.chrf_signature
    assert "tok:none" in evaluate(hypotheses, REFERENCES, tokenize="none").signature
    assert 0 < evaluate(["", REFERENCES[1]], REFERENCES).bleu < 100  # empty ones are scored
    attached = [line.replace(" .", ".") for line in REFERENCES]  # 13a splits the full stop off
    assert evaluate(attached, REFERENCES).bleu == pytest.approx(100)
    assert evaluate(attached, REFERENCES, tokenize="none").bleu < 99


@pytest.mark.parametrize(
    ("hypotheses", "references", "tokenize", "facts"),
    [
        (["a"], ["a", "b"], "13a", ("1", "hypotheses", "2", "references")),
        ([], [], "13a", ("hypotheses", "sentence")),
        (["a"], ["a"], "13b", ("13b", "13a")),
        (["a"], ["a"], "ja-mecab", ("ja-mecab", "sacrebleu[ja]")),  # its package is missing
    ],
)
def test_bad_input_is_refused(monkeypatch, hypotheses, references, tokenize, facts):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    sys.modules.pop("sacrebleu.tokenizers.tokenizer_ja_mecab", None)
    arguments = {"hypotheses": hypotheses, "references": references, "tokenize": tokenize}
    refuses(evaluate, arguments, *facts)


# The output of tensor2tensor's get_ende_bleu.sh with the Moses of 2017.
TOKENIZED = {
    "Der US-Präsident sagt: 'Gut', z.B. 3,5 Mio. Euro.":
        "Der US ##AT##-##AT## Präsident sagt : &apos; Gut &apos; , z.B. 3,5 Mio. Euro .",
    "100-Euro-Schein; 3-D-Druck-Kosten": "100 ##AT##-##AT## Euro ##AT##-##AT## Schein ; "
        "3 ##AT##-##AT## D-Druck ##AT##-##AT## Kosten",
    'Er sagte "ja" & ging (am 3. Mai) ...':
        "Er sagte &quot; ja &quot; &amp; ging ( am 3. Mai ) ...",
    "x-ö-y und a-b-c [1]":
        "x ##AT##-##AT## ö ##AT##-##AT## y und a ##AT##-##AT## b-c &#91; 1 &#93;",
}  # fmt: skip


def test_paper_tokens_equal_those_of_perl(monkeypatch):
    counted, corpus_score = [], BLEU.corpus_score

    def record(self, hypotheses, references):
        counted.append([list(hypotheses), *map(list, references)])
        return corpus_score(self, hypotheses, references)

    monkeypatch.setattr(BLEU, "corpus_score", record)
    paper_bleu(list(TOKENIZED), list(TOKENIZED))
    paper_bleu(["„Geht’s“…"], ["„Geht’s“…"])
    # Typographic punctuation is only replaced in hypotheses.
    quoted = [["„ Geht &apos; s &quot; ..."], ["„ Geht ’ s “ …"]]
    assert counted == [[list(TOKENIZED.values())] * 2, quoted]


def test_paper_bleu_equals_bleu_by_hand():
    hypothesis, reference = "der US-Senator kam gestern an", "der US-Präsident kam gestern an"
    assert paper_bleu([hypothesis], [reference])[0] == 0  # no 4-gram; nothing is smoothed
    assert evaluate([hypothesis], [reference]).bleu > 0
    hypothesis, reference = (f"{line} es war der letzte Zug" for line in (hypothesis, reference))
    score = paper_bleu([hypothesis], [reference])  # the fourth of 12 tokens is wrong
    assert score[0] == bleu_by_hand((11, 9, 7, 5), (12, 11, 10, 9))
    # 13a has one token for the compound, the second of 10.
    assert evaluate([hypothesis], [reference]).bleu == bleu_by_hand((9, 7, 6, 5), (10, 9, 8, 7))
    assert score[1] == (
        f"nrefs:1|case:mixed|eff:no|tok:get_ende_bleu-sacremoses-{sacremoses.__version__}|"
        f"smooth:none|version:{evaluate(['a'], ['a']).signature.rpartition(':')[2]}"
    )


def test_paper_bleu_needs_german_and_sacremoses(monkeypatch):
    german = EvaluationSet([["ja"]], name="wmt14/full", language_pair="en-de")
    assert "|test:wmt14/full|lang:en-de|" in paper_bleu(["ja"], german)[1]
    french = dataclasses.replace(german, language_pair="en-fr")
    refuses(paper_bleu, {"hypotheses": ["oui"], "references": french}, "German", "en-fr")
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    refuses(paper_bleu, {"hypotheses": ["ja"], "references": ["ja"]}, "sacremoses", "[moses]")


def systems(sentences=200):
    """Returns references, a better system and a worse system."""
    generator = random.Random(0)
    references = [" ".join(generator.choices("abcdefghij", k=12)) for _ in range(sentences)]

    def wrong(share):
        return [
            " ".join("x" if generator.random() < share else word for word in line.split())
            for line in references
        ]

    return references, wrong(0.1), wrong(0.15)


def compare(hypotheses, baseline, references):
    return evaluate(hypotheses, references, baseline=baseline).comparison


def test_comparisons_equal_the_sacrebleu_command(tmp_path):
    references, better, worse = systems()
    for name, lines in (("references", references), ("better", better), ("worse", worse)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = "-m sacrebleu references -i worse better --paired-bs -m bleu -f json -q"
    process = subprocess.run(
        [sys.executable, *command.split()], cwd=tmp_path, capture_output=True, check=True
    )
    baseline, system = (result["BLEU"] for result in json.loads(process.stdout))
    result = compare(better, worse, references)
    assert (result.bleu, result.bleu_interval) == pytest.approx((system["score"], system["ci"]))
    assert result.baseline_bleu == pytest.approx(baseline["score"])
    assert result.baseline_interval == pytest.approx(baseline["ci"])
    assert result.p_value == system["p_value"] < 0.05
    assert result.comparison_signature.startswith("nrefs:1|bs:1000|seed:12345|case:mixed|")
    assert re.search(r"significantly better\b.*\b0\.0", result.summary())
    assert re.search(r"significantly worse\b.*\b0\.0", compare(worse, better, references).summary())


def test_small_differences_equal_systems_and_seeds(monkeypatch):
    references, system, _ = systems(20)
    other = [references[0], *system[1:]]
    result = compare(system, other, references)
    assert compare(system, other, references) == result
    assert result.p_value is not None and result.p_value > 0.05
    assert tells(result.summary(), "no significant difference", f"{result.p_value:.4f}")
    same = compare(system, system, references)  # sacreBLEU says p = 0.001
    assert same.p_value is None and same.bleu == same.baseline_bleu
    assert "the same score" in same.summary()
    for seed in ("7", "None"):
        monkeypatch.setenv("SACREBLEU_SEED", seed)
        seeded = compare(system, other, references)
        assert f"|seed:{seed.lower()}|" in seeded.comparison_signature
        assert seeded.bleu == result.bleu and seeded.bleu_interval != result.bleu_interval


def test_several_references():
    test = EvaluationSet([["a b c d e"], ["f g h i j"]])
    scores = evaluate(["f g h i j"], test)
    assert scores.bleu == pytest.approx(100) and scores.exact_match == 1
    assert scores.signature.startswith("nrefs:2|")
    assert paper_bleu(["f g h i j"], test)[0] == pytest.approx(100)


def test_requested_scores_are_added():
    references, system, other = systems(20)
    plain = evaluate(system, references)
    assert {"bleu", "chrf", "sentences"} < plain.fields().keys() and "\n" not in plain.summary()
    assert not {"paper_bleu", "comparison"} & plain.fields().keys()
    result = evaluate(system, references, baseline=other, as_in_paper=True, lowercase=True)
    fields = json.loads(json.dumps(result.fields()))
    assert len(result.summary().split("\n")) == 3
    assert (fields["paper_bleu"], fields["paper_signature"]) == paper_bleu(system, references)
    assert "case:lc" in fields["comparison"]["comparison_signature"]
    arguments = {"hypotheses": system, "references": references, "baseline": other[1:]}
    refuses(evaluate, arguments, "19", "baseline", "20", "references")


CHINESE = ["一只小狗在绿色的草地上奔跑。", "两个孩子在玩一个红色的球。"]


@pytest.mark.parametrize(
    ("text", "language", "tokenizer"),
    [
        ("A dog runs.", "", "13a"),
        ("1 + 1 = 2", "", "13a"),
        (CHINESE[0], "", "zh"),
        ("新しい家は川のそばに立っています。", "", "char"),  # the package of ja-mecab is missing
        ("개가 잔디 위를 달린다.", "", "char"),
        ("สุนัขวิ่งบนหญ้าสีเขียว", "", "char"),
        ("ໝາແລ່ນ ခွေးပြေးနေတယ် ឆ្កែរត់", "", "char"),
        ("The word 狗 means dog in Chinese.", "", "13a"),
        ("用 TensorFlow 训练一个模型，然后把它部署到手机上", "", "zh"),
        ("A dog runs.", "zh", "zh"),
        ("A dog runs.", "ja", "char"),
        ("A dog runs.", "de", "13a"),
    ],
)
def test_the_tokenizer_follows_the_language_or_the_script(text, language, tokenizer):
    assert choose_tokenizer([text], language) == tokenizer
    test = EvaluationSet([[text]], language_pair=f"en-{language}" if language else None)
    assert f"tok:{tokenizer}" in evaluate([text], test).signature


def test_the_same_text_in_another_form_is_remarked():
    vietnamese = [f"Tôi muốn mua {i} quyển sách tiếng Việt ở đây." for i in range(40)]
    other = [unicodedata.normalize("NFD", line) for line in vietnamese]
    for sides in ((vietnamese, other), (other, vietnamese)):
        scores = evaluate(*sides)
        assert scores.bleu < 60 and tells(scores.summary(), "BLEU 100.00", "40", "normalization")
    spaced = [line.replace(" ", "  ") + " " for line in vietnamese]
    assert tells(evaluate(vietnamese, other[:9] + spaced[9:]).summary(), "9 of 40 references")
    full_width = ["Is it 3 o'clock? No, it is 4.", "Half of the text: wide！"]
    assert tells(evaluate(["Half of the text: wide!"], full_width[1:]).summary(), "1 of 1")
    assert evaluate(full_width, full_width).remarks == ()
    assert evaluate(["103 kg, 1⁄2 of it now"], ["10³ kg, ½ of it now"]).remarks == ()
    scores = evaluate(["a small dog runs"], ["A Small Dog Runs"], normalize=str_lower)
    assert tells(scores.fields()["remarks"][0], "BLEU 100.00", "1 of 1 references")


def str_lower(texts):
    return [text.lower() for text in texts]


def test_characters_instead_of_words_are_remarked(monkeypatch):
    japanese = ["新しい家は川のそばに立っています。"]
    monkeypatch.setitem(_PACKAGES, "ja-mecab", "a_package_that_nobody_has")
    assert tells(evaluate(japanese, japanese).summary(), "characters", "sacrebleu[ja]")
    for tokenize, text in (("char", japanese), (None, ["สุนัขวิ่งบนหญ้าสีเขียว"]), (None, ["A dog."])):
        assert evaluate(text, text, tokenize=tokenize).remarks == ()


def test_text_without_spaces_has_a_score():
    scores = evaluate(CHINESE, CHINESE)
    assert (round(scores.bleu), scores.exact_match) == (100, 1.0)
    assert evaluate([CHINESE[0][:-3], CHINESE[1]], CHINESE).bleu < 95
    assert evaluate(CHINESE, CHINESE, tokenize="13a").bleu == 0
    assert blind_score(CHINESE) is None and blind_score(CHINESE, "13a") == 0
    assert blind_score(["Hello!", "Yes."]) == 0
