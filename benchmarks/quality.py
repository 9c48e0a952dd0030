#!/usr/bin/env python3
r"""Whether the quality of translations finds faults, and whether it is calibrated, as JSON.

Example:
    benchmarks/quality.py --model_dir=build/run --valid_source=val.en --valid_target=val.de \
        --source=test.en --reference=test.de

The quality is learned from the validation text, as by `export`. Then words of the model's
translations of --source, and of their references, are changed. The area under the ROC curve is the
probability that an intact text has a higher quality than one with a fault. It is compared with that
of the log-probability divided by the length. `hole`, a text without a third in its middle, is a
fault that the quality has not learned, and `noise` of words and letters is another one than that of
tokens, which it has learned.

For translations without added faults: their chrF by sentence and its correlation with the quality,
and the calibration error, which is the mean difference of quality and chrF in ten groups of equal
size, ordered by quality. `problems` has the share of them with each bit of `status`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import command
import numpy as np
from absl import flags
from sacrebleu.metrics.chrf import CHRF

from keras_transformer.data.reading import read_text
from keras_transformer.errors import require

FLAGS = flags.FLAGS
flags.DEFINE_string("model_dir", None, "run directory of a model", required=True)
flags.DEFINE_string("valid_source", None, "sources to learn the quality from", required=True)
flags.DEFINE_string("valid_target", None, "their translations", required=True)
flags.DEFINE_string("source", None, "sources of the test", required=True)
flags.DEFINE_string("reference", None, "their translations", required=True)

Words = list[str]


def hole(words: Words, random_: Random) -> Words:
    """Returns a text without a third in its middle."""
    size = max(1, len(words) // 3)
    start = random_.randint(1, max(1, len(words) - size - 1))
    return words[:start] + words[start + size :]


def noise(words: Words, random_: Random) -> Words:
    """Returns a text with a quarter of its words in other places, or without some letters."""
    changed = list[str]()
    for word in words:
        if random_.random() >= 0.25:
            changed.append(word)
        elif random_.random() < 0.5:
            changed.insert(random_.randint(0, len(changed)), word)
        else:
            changed.append("".join(c for c in word if random_.random() < 0.6))
    return changed


def with_faults(texts: Sequence[str]) -> dict[str, list[str]]:
    """Returns the texts with each fault."""
    from keras_transformer.export.quality import with_fault

    random_, words = Random(1), [text.split() for text in texts]
    changed = {name: with_fault(name, words, random_) for name in ("wrong", "cut", "repeat")}
    for change in (hole, noise):
        changed[change.__name__] = [change(one, random_) for one in words]
    return {name: [" ".join(one) for one in some] for name, some in changed.items()}


def area(good: np.ndarray, bad: np.ndarray) -> float:
    """Returns the area under the ROC curve."""
    above, equal = good[:, None] > bad, good[:, None] == bad
    return round(float(above.mean() + equal.mean() / 2), 4)


def assessor(translator: Any, sources: Sequence[str]) -> Callable[[Sequence[str]], dict[str, Any]]:
    """Returns a function from translations to `quality`, `status` and `mean` log-probability."""
    import tensorflow as tf

    from keras_transformer.inference.batching import outputs_by_line
    from keras_transformer.inference.scoring import Scorer

    scorer = Scorer(translator)

    @tf.function(reduce_retracing=True, autograph=False)
    def outputs(text: Any, target: Any) -> dict[str, Any]:
        source_ids, *_ = translator.source_ids(text)
        targets = translator.tokenizer.tokenize_target(target)
        lengths = tf.cast(targets.row_lengths(), tf.int32)
        result = scorer.search_result(source_ids, targets.to_tensor(), lengths)
        mean = result.log_probs[:, 0] / tf.cast(lengths, tf.float32)
        found = translator.assess(result, source_ids)
        return {"mean": mean, "quality": found["quality"][:, 0], "status": found["status"]}

    def assess(texts: Sequence[str]) -> dict[str, Any]:
        rows = outputs_by_line(outputs, sources, target=texts)
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}

    return assess


def main() -> int:
    """Prints the figures of a model."""
    from keras_transformer.export.quality import fit
    from keras_transformer.inference import PROBLEMS
    from keras_transformer.inference.engine import KerasEngine
    from keras_transformer.inference.loading import load_translator
    from keras_transformer.inference.translate import translate_lines

    names = ("valid_source", "valid_target", "source", "reference")
    *valid, sources, references = (read_text(FLAGS[name].value) for name in names)
    translator = load_translator(FLAGS.model_dir)
    model = fit(translator, *valid)
    require(model is not None, "There are too few sentences to learn the quality from.")
    translator = translator.with_options(quality=model)
    own = [best.text for best, *_ in translate_lines(KerasEngine(translator), sources)]
    assess, areas = assessor(translator, sources), dict[str, Any]()
    for name, texts in (("references", references), ("translations", own)):
        good = assess(texts)
        for fault, changed in with_faults(texts).items():
            bad = assess(changed)
            found = {key: area(good[key], bad[key]) for key in ("quality", "mean")}
            areas.setdefault(name, {})[fault] = found
    pairs = zip(own, references, strict=True)
    chrf = np.array([CHRF().sentence_score(text, [exact]).score / 100 for text, exact in pairs])
    quality = good["quality"]  # of the translations
    groups = np.array_split(np.argsort(quality), 10)
    errors = [abs(quality[rows].mean() - chrf[rows].mean()) for rows in groups]
    correlations = {key: np.corrcoef(good[key], chrf)[0, 1] for key in ("quality", "mean")}
    problems = {str(flag.name): np.mean(good["status"] & flag > 0) for flag in PROBLEMS}
    figures = {"chrf": chrf.mean(), "quality": quality.mean(), "calibration_error": np.mean(errors)}
    summary = {"sentences": len(sources), "areas": areas}
    for name, values in (("correlation", correlations), ("problems", problems), ("", figures)):
        rounded = {key: round(float(value), 4) for key, value in values.items()}
        summary |= {name: rounded} if name else rounded
    print(json.dumps(summary, indent=2))
    return 0


if __name__ == "__main__":
    command.run(main)
