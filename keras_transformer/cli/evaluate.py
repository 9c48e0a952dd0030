r"""Translates a test set and scores the translations: BLEU, chrF and exact matches.

Examples:
    keras-transformer evaluate --model_dir=build/run --source=test.en --reference=test.de
    keras-transformer evaluate --model_dir=build/run --test_set=wmt14/full --language_pair=en-de \
        --paper_bleu
    keras-transformer evaluate --hypothesis=new.de --baseline=old.de --reference=test.de
    keras-transformer evaluate --model_dir=build/run --source=test.en --reference=test.de \
        --robustness

sacreBLEU computes the scores. --output keeps the translations of the model. The last line of
standard output is one JSON object with the scores, their signatures, and the seconds taken.
--robustness also scores careless sources: in capitals, with typing errors, without full stops, and
others. The references have the same capitals and punctuation, except for sources without capitals.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer import console, plugins
from keras_transformer.cli import app, config_flags
from keras_transformer.errors import InputError

if TYPE_CHECKING:
    from keras_transformer.evaluation.metrics import Scores
    from keras_transformer.evaluation.test_sets import EvaluationSet
    from keras_transformer.inference.engine import Engine

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    config_flags.define_path_flags("model_dir", "source", "hypothesis", "output")
    config_flags.define_path_flags("reference", repeatable=True)
    flags.DEFINE_string("test_set", None, "test set of sacreBLEU, such as wmt14/full")
    flags.DEFINE_string("language_pair", None, "languages of --test_set, as in en-de")
    config_flags.define_option_flags("tokenize", "lowercase", "threads", "source_tag")
    config_flags.define_option_flags("source_language", "target_language")
    flags.DEFINE_boolean("paper_bleu", False, "also print BLEU as in the paper, for German")
    flags.DEFINE_boolean("robustness", None, "also score careless sources, see above")
    flags.DEFINE_string("baseline", None, "translations of another system, to compare BLEU")
    config_flags.define_precision_flag()
    config_flags.define_config_flags("beam_size", "length_penalty")
    flags.mark_flags_as_mutual_exclusive(["model_dir", "hypothesis"], required=True)
    flags.mark_flags_as_mutual_exclusive(["test_set", "reference"], required=True)
    flags.mark_flags_as_mutual_exclusive(["test_set", "source"])
    flags.mark_flags_as_mutual_exclusive(["reference", "language_pair"])
    flags.mark_flags_as_mutual_exclusive(["hypothesis", "output"])
    for name in ("source_tag", "robustness", "source_language", "target_language"):
        flags.mark_flags_as_mutual_exclusive(["hypothesis", name])


def _load(sources: Sequence[str]) -> Engine:
    from keras_transformer.inference import batching, loading, tags, translate

    batching.use_cores_for_batches(len(sources))
    options = {"precision": FLAGS.precision, "threads": FLAGS.threads}
    model = loading.load_model(FLAGS.model_dir, config_flags.config_settings(), **options)
    tags.check_tag(FLAGS.source_tag, model.symbols, model.label)
    return translate.with_languages(model, *config_flags.languages())


def _translate(model: Engine, sources: Sequence[str]) -> tuple[list[str], float]:
    """Writes and returns the translations, and the seconds they took."""
    from keras_transformer.inference import batching, tags, translate
    from keras_transformer.runs import atomic

    source_tag = FLAGS.source_tag or model.source_tag
    untagged = tags.missing_tags(sources, model.symbols, source_tag)
    sources = [tags.add_tag(source, FLAGS.source_tag or "") for source in sources]
    with atomic.output_file(FLAGS.output or os.devnull) as file:
        start = time.perf_counter()
        results = translate.translate_lines(model, sources)
        seconds = time.perf_counter() - start
        hypotheses = [best.text for best, *_ in results]
        file.writelines(f"{hypothesis}\n".encode() for hypothesis in hypotheses)
    counts = batching.token_counts(model.lengths, sources)
    remarks = [untagged, *translate.translation_warnings(model, counts, results)]
    for remark in filter(None, [*remarks, batching.unknown_token_remark(counts)]):
        console.warn(f"{FLAGS.source or FLAGS.test_set}: {remark}")
    return hypotheses, seconds


def _robustness(model: Engine, test: EvaluationSet, score: Any, clean: Scores) -> dict[str, Any]:
    """Prints and returns the scores of careless sources, with their differences from clean ones."""
    from keras_transformer.inference import tags, translate

    noise = plugins.find("augmentations", "noise")
    results = {}
    for kind in noise.test_kinds:
        sources, references = noise.test_set(
            kind, test.sources or (), test.references, model.symbols
        )
        lines = [tags.add_tag(source, FLAGS.source_tag or "") for source in sources]
        hypotheses = [best.text for best, *_ in translate.translate_lines(model, lines)]
        noisy = dataclasses.replace(test, references=references, sources=sources)
        scores = score(hypotheses, references=noisy, baseline=None, as_in_paper=False)
        print(
            f"{kind}: BLEU {scores.bleu:.2f} ({scores.bleu - clean.bleu:+.2f}), "
            f"chrF {scores.chrf:.2f} ({scores.chrf - clean.chrf:+.2f})"
        )
        results[kind] = {"bleu": scores.bleu, "chrf": scores.chrf}
    return results


def main() -> None:
    """Runs `metrics.evaluate` with the flags."""
    app.load_tensorflow()
    from keras_transformer.evaluation import metrics, test_sets

    if FLAGS.model_dir and not (FLAGS.source or FLAGS.test_set):
        raise InputError("--source is missing. --model_dir needs the source text.")
    test = (
        test_sets.sacrebleu_set(FLAGS.test_set, FLAGS.language_pair or "")
        if FLAGS.test_set
        else test_sets.read_files(FLAGS.reference, FLAGS.source)
    )
    score = functools.partial(
        metrics.evaluate,
        references=test,
        baseline=test_sets.read_translations(FLAGS.baseline, test) if FLAGS.baseline else None,
        as_in_paper=FLAGS.paper_bleu,
        tokenize=FLAGS.tokenize,
        lowercase=FLAGS.lowercase,
    )
    fields: dict[str, Any] = {"dataset": test.title} if test.title else {}
    normalize = None
    sources = test.sources or []
    if FLAGS.hypothesis:
        hypotheses = test_sets.read_translations(FLAGS.hypothesis, test)
    else:
        score(test.references[0])  # errors are reported before anything is translated
        model = _load(sources)
        hypotheses, seconds = _translate(model, sources)
        normalize = None if model.vocabulary is None else model.vocabulary.normalized_target
        fields["seconds"] = round(seconds, 3)
    scores = score(hypotheses, normalize=normalize)
    print(scores.summary())
    own = metrics.blind_score(test.references[0], FLAGS.tokenize, FLAGS.lowercase)
    if own is not None:
        console.warn(
            f"the reference scores BLEU {own:.2f} against itself, so this BLEU means nothing. "
            "The sentences have fewer than four tokens. Use chrF, or --tokenize."
        )
    if "seconds" in fields:
        a_second = len(sources) / max(seconds, 1e-9)
        print(f"translated in {seconds:.1f} s ({a_second:,.0f} sentences per second)")
    if FLAGS.robustness:
        fields["robustness"] = _robustness(model, test, score, scores)
    print(json.dumps({**scores.fields(), **fields}))


if __name__ == "__main__":
    from keras_transformer.cli.main import run

    run("evaluate")
