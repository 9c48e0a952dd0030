#!/usr/bin/env python3
r"""Whether the quality of translations finds faults, and whether it is calibrated, as JSON.

Example:
    benchmarks/quality.py --model_dir=build/run --valid_source=val.en --valid_target=val.de \
        --source=test.en --reference=test.de

The quality is learned from the validation text, as by `export`. Then words of the model's
translations of --source, and of their references, are changed. The area under the ROC curve is the
probability that an intact text has a higher quality than one with a fault. It is compared with that
of the log-probability divided by the length. `hole` is a fault that the quality has not learned.

For translations without added faults: their chrF by sentence and its correlation with the quality,
and the calibration error, which is the mean difference of quality and chrF in ten groups of equal
size, ordered by quality. `problems` has the shares of texts with each of the bits of `status`.
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
from keras_transformer.errors import InputError

FLAGS = flags.FLAGS
flags.DEFINE_string("model_dir", None, "run directory of a model", required=True)
flags.DEFINE_string(
    "valid_source", None, "sources from which the quality is learned", required=True
)
flags.DEFINE_string("valid_target", None, "their translations", required=True)
flags.DEFINE_string("source", None, "sources of the test", required=True)
flags.DEFINE_string("reference", None, "their translations", required=True)

Words = list[str]


def cut(words: Words, random_: Random) -> Words:
    """Returns the first 30 to 80 %."""
    return words[: max(1, int(len(words) * random_.uniform(0.3, 0.8)))]


def hole(words: Words, random_: Random) -> Words:
    """Returns a text without a third in its middle."""
    size = max(1, len(words) // 3)
    start = random_.randint(1, max(1, len(words) - size - 1))
    return words[:start] + words[start + size :]


def repeat(words: Words, random_: Random) -> Words:
    """Returns a text in which one to three words are repeated one to three times."""
    size = random_.randint(1, 3)
    start = random_.randrange(max(1, len(words) - size + 1))
    repeated = words[start : start + size] * random_.randint(1, 3)
    return words[: start + size] + repeated + words[start + size :]


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


FAULTS: dict[str, Callable[[Words, Random], Words]] = {
    "cut": cut,
    "hole": hole,
    "repeat": repeat,
    "noise": noise,
}


def with_faults(texts: Sequence[str], random_: Random) -> dict[str, list[str]]:
    """Returns the texts with each fault. `wrong` are the translations of other sentences."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i].split()))
    others = dict(zip(order, [*order[1:], order[0]], strict=True))
    faulty = {"wrong": [texts[others[i]] for i in range(len(texts))]}
    for name, change in FAULTS.items():
        faulty[name] = [" ".join(change(text.split(), random_)) for text in texts]
    return faulty


def area(good: np.ndarray, bad: np.ndarray) -> float:
    """Returns the area under the ROC curve."""
    above = good[:, None] > bad
    return round(float(above.mean() + (good[:, None] == bad).mean() / 2), 4)


def main() -> int:
    """Prints the figures of a model."""
    import tensorflow as tf

    from keras_transformer.export.quality import fit
    from keras_transformer.inference.batching import batches
    from keras_transformer.inference.engine import KerasEngine
    from keras_transformer.inference.loading import load_translator
    from keras_transformer.inference.scoring import Scorer
    from keras_transformer.inference.translate import PROBLEMS, translate_lines

    translator = load_translator(FLAGS.model_dir)
    model = fit(translator, read_text(FLAGS.valid_source), read_text(FLAGS.valid_target))
    if model is None:
        raise InputError("There is no quality, because there are too few sentences.")
    translator = translator.with_options(quality=model)
    sources, references = read_text(FLAGS.source), read_text(FLAGS.reference)
    scorer, vocabulary = Scorer(translator), translator.tokenizer.vocabulary

    @tf.function(reduce_retracing=True)
    def read(text: Any, ids: Any, lengths: Any) -> dict[str, Any]:
        source_ids, *_ = translator.source_ids(text)
        result = scorer.search_result(source_ids, ids, lengths)
        mean = result.log_probs / tf.cast(lengths[:, None], tf.float32)
        return {**translator.assess(result, source_ids), "mean": mean}

    def assess(texts: Sequence[str]) -> dict[str, np.ndarray]:
        targets = vocabulary.encode_target([text.encode() for text in texts])
        found: dict[str, np.ndarray] = {}
        for batch in batches(sources):
            rows = tf.ragged.constant([targets[i] for i in batch], tf.int32)
            lengths = tf.cast(rows.row_lengths(), tf.int32)
            text = tf.constant([sources[i] for i in batch])
            for name, value in read(text, rows.to_tensor(), lengths).items():
                column = found.setdefault(name, np.zeros(len(texts), value.numpy().dtype))
                column[batch] = value.numpy().reshape(-1)
        return found

    def share(values: dict[str, np.ndarray]) -> dict[str, float]:
        found = {flag.name: float(np.mean(values["status"] & flag > 0)) for flag in PROBLEMS}
        return {str(name): round(value, 4) for name, value in found.items()}

    own = [best.text for best, *_ in translate_lines(KerasEngine(translator), sources)]
    areas: dict[str, Any] = {}
    problems: dict[str, Any] = {"copies": share(assess(sources))}
    for name, texts in (("translations", own), ("references", references)):
        good = assess(texts)
        problems[name] = share(good)
        for fault, changed in with_faults(texts, Random(1)).items():
            bad = assess(changed)
            problems[f"{name}, {fault}"] = share(bad)
            both = {key: area(good[key], bad[key]) for key in ("quality", "mean")}
            both["mean_quality"] = round(float(bad["quality"].mean()), 3)
            areas.setdefault(name, {})[fault] = both
    values = assess(own)
    chrf = np.array(
        [
            CHRF().sentence_score(text, [reference]).score / 100
            for text, reference in zip(own, references, strict=True)
        ]
    )
    groups = np.array_split(np.argsort(values["quality"]), 10)
    errors = [abs(values["quality"][rows].mean() - chrf[rows].mean()) for rows in groups]
    summary = {
        "sentences": len(sources),
        "areas": areas,
        "chrf": round(float(chrf.mean()), 3),
        "quality": round(float(values["quality"].mean()), 3),
        "calibration_error": round(float(np.mean(errors)), 4),
        "correlation": {
            key: round(float(np.corrcoef(values[key], chrf)[0, 1]), 3)
            for key in ("quality", "mean")
        },
        "problems": problems,
    }
    print(json.dumps(summary, indent=2))
    return 0


if __name__ == "__main__":
    command.run(main)
