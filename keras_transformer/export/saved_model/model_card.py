"""The model card: what a person who meets an exported version has to know of it.

In the form of Hugging Face's model cards (Mitchell et al., 2019): a front matter in YAML,
then Markdown. What no file tells is "not known", never guessed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sentencepiece

from keras_transformer.errors import InputError
from keras_transformer.export.manifest import Member, Provenance, at, bytes_of
from keras_transformer.export.saved_model.signature_defs import describe, read_signature_defs

_TAGS = ("transformer", "tensorflow", "saved-model", "tf-serving")
_METRICS = {"bleu": ("BLEU", "signature"), "chrf": ("chrF", "chrf_signature")}
_VALIDATION = {"val_bleu": "BLEU", "val_perplexity": "perplexity", "val_accuracy": "accuracy"}


@dataclasses.dataclass(frozen=True)
class TaskCard:
    """What the model card says about the task of a model.

    Attributes:
        name: the task, as a tag of Hugging Face.
        pipeline_tag: the same as a pipeline of Hugging Face, or None if there is none.
        description: a verb phrase, made of the codes of the languages, or of None if they are
            not known.
        result: a clause about input and output.
        outputs: the plural of an output.
        limit: a sentence about the quality of outputs.
        request: the body of an example request.
        usage: a paragraph about the signatures, or None.
    """

    name: str
    pipeline_tag: str | None
    description: Callable[[tuple[str, str] | None], str]
    result: str
    outputs: str
    limit: str
    request: Mapping[str, Any]
    usage: str | None = None


def _describe_translation(languages: tuple[str, str] | None) -> str:
    if languages is None:
        return "translates text between languages, which are not known"
    return f"translates text from {languages[0]} to {languages[1]}"


TRANSLATION = TaskCard(
    name="translation",
    pipeline_tag="translation",
    description=_describe_translation,
    result="text goes in and comes out",
    outputs="translations",
    limit="It translates what is most probable after its training data, with what they had of "
    "errors and bias. Fluent output may be wrong, leave out, or add. Nothing is filtered for "
    "safety, and names, numbers and negations are not checked.",
    request={"inputs": {"text": ["A sentence to translate."]}},
)


@dataclasses.dataclass(frozen=True)
class About:
    """What only its maker knows of a model.

    * `languages` are codes, source before target, as in ("en", "de").
    * `license` is an SPDX identifier in small letters, as in "cc-by-4.0".
    * `evaluation` is what bin/evaluate.py prints, `bleu` or `chrf` with their signatures,
      and `dataset`, the name of the test set.
    * `task` is what the model does.
    """

    languages: tuple[str, str] | None = None
    license: str | None = None
    evaluation: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    task: TaskCard = TRANSLATION

    def __post_init__(self) -> None:
        for code in self.languages or ():
            if not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]+)*", code):
                raise InputError(f"{code!r} is no language; expected a code, as in en or pt-BR")
        if self.license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", self.license):
            raise InputError(
                f"{self.license!r} is no licence; expected an identifier, as in cc-by-4.0"
            )
        for name in _METRICS:
            value = self.evaluation.get(name, 0.0)
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                raise InputError(f"the score {name} is {value!r}; expected a number")

    @property
    def scores(self) -> dict[str, float]:
        """The scores that are known, by name."""
        return {name: float(self.evaluation[name]) for name in _METRICS if name in self.evaluation}

    @property
    def test_set(self) -> str:
        return str(self.evaluation.get("dataset", "a test set whose name is not known"))


def model_card(path: Path, name: str, provenance: Provenance, about: About) -> str:
    """Returns the model card of a version.

    Args:
        path: directory of the SavedModel.
        name: the model's.
        provenance: what it was made of.
        about: what its maker says of it.
    """
    sections = {
        "Use": _use(path, name, about.task),
        "Evaluation": _evaluation(provenance, about),
        "Data": "\n\n".join(_data(member) for member in provenance.members),
        "Training": "\n\n".join(_training(member) for member in provenance.members),
        "Search": _search(provenance),
        "Size": _size(path, provenance),
        "Limits": _limits(provenance, about.task),
        "Licence": _licence(about),
    }
    body = "".join(f"\n## {title}\n\n{text}\n" for title, text in sections.items())
    return (
        f"{_front_matter(name, about)}\n# {name}\n\nA Transformer (Vaswani et al., 2017) "
        f"that {about.task.description(about.languages)}. It is a TensorFlow SavedModel made with "
        f"keras_transformer: {about.task.result}, the tokenizer and the search are inside, "
        f"and TF Serving serves it as it is. `manifest.json` has every setting and hash.\n{body}"
    )


def _front_matter(name: str, about: About) -> str:
    """YAML, of which JSON's values are a part."""
    fields: dict[str, Any] = {
        "language": list(dict.fromkeys(about.languages or ())),
        "license": about.license or "unknown",
        "pipeline_tag": about.task.pipeline_tag,
        "tags": [about.task.name, *_TAGS],
        "metrics": list(about.scores),
    }
    if about.scores:
        metrics = [
            {"type": metric, "value": round(score, 2), "name": _METRICS[metric][0]}
            for metric, score in about.scores.items()
        ]
        result = {
            "task": {"type": "translation"},
            "dataset": {"type": about.test_set, "name": about.test_set},
            "metrics": metrics,
        }
        fields["model-index"] = [{"name": name, "results": [result]}]
    lines = (f"{field}: {json.dumps(value)}\n" for field, value in fields.items() if value)
    return f"---\n{''.join(lines)}---\n"


def _use(path: Path, name: str, task: TaskCard) -> str:
    rows = []
    for signature, each in read_signature_defs(path).items():
        inputs, outputs = (_tensors(describe(part)) for part in (each.inputs, each.outputs))
        rows.append((f"`{signature}`", inputs, outputs))
    return (
        f"    curl -d '{json.dumps(task.request)}' "
        f"http://localhost:8501/v1/models/{name}:predict\n\n"
        f"{_table(('signature', 'inputs', 'outputs'), rows)}\n\n"
        "B is the number of sentences of a request. `translations` are best first; a place that "
        "no translation fills has an empty text and the score -1e9."
        + (f"\n\n{task.usage}" if task.usage else "")
    )


def _tensors(tensors: Mapping[str, Mapping[str, Any]]) -> str:
    described = []
    for name, tensor in tensors.items():
        first, *rest = tensor["shape"] or [None]
        dims = ["B" if first is None else str(first)]
        dims += ["any" if dim is None else str(dim) for dim in rest]
        described.append(f"{name}: {tensor['dtype']}[{', '.join(dims)}]")
    return ", ".join(described)


def _evaluation(provenance: Provenance, about: About) -> str:
    parts = []
    if about.scores:
        rows = []
        for metric, score in about.scores.items():
            title, signature = _METRICS[metric]
            signature = str(about.evaluation.get(signature, "signature not known"))
            rows.append((title, f"{score:.2f}", f"`{signature}`"))
        sentences = about.evaluation.get("sentences")
        count = f", {sentences:,} sentences" if isinstance(sentences, int) else ""
        parts.append(
            f"On {about.test_set}{count}:\n\n{_table(('metric', 'score', 'by sacreBLEU'), rows)}"
        )
    else:
        parts.append("Scores on a test set: not known.")
    for member in provenance.members:
        measured = member.validation()
        known = [
            f"{title} {measured[key]:.4g}" for key, title in _VALIDATION.items() if key in measured
        ]
        if known:
            parts.append(f"Validation while `{member.name}` was trained: {', '.join(known)}.")
    return "\n\n".join(parts)


def _data(member: Member) -> str:
    facts = [("fingerprint", f"`{member.run.data_fingerprint}`")]
    reports = member.data_reports() or [{}]
    for number, report in enumerate(reports, start=1):
        facts += _corpus(report, f" {number}" if len(reports) > 1 else "")
    kind = at(reports[0], "vocabulary", "type")
    model = member.run.config.model
    sizes = f"{model.source_vocab_size:,} source and {model.target_vocab_size:,} target pieces"
    facts.append(("vocabulary", f"SentencePiece, {f'{kind}, ' if kind else ''}{sizes}"))
    return _table((f"of `{member.name}`", ""), facts)


def _corpus(report: dict[str, Any], number: str) -> list[tuple[str, str]]:
    """Returns what is told of the corpus of a report, one of several with its number."""
    facts = []
    for split, title in (("train", f"training{number}"), ("valid", f"validation{number}")):
        pairs, *tokens = (
            at(report, split, *keys)
            for keys in (("pairs",), ("source", "tokens"), ("target", "tokens"))
        )
        counts = zip(("pairs", "source tokens", "target tokens"), (pairs, *tokens), strict=True)
        known = [f"{count:,} {what}" for what, count in counts if isinstance(count, int)]
        facts.append((title, ", ".join(known) or "not known"))
        inputs = at(report, "inputs", split)
        for entry in inputs if isinstance(inputs, list) else ():
            files = " + ".join(Path(part).name for part in str(at(entry, "name")).split(" + "))
            facts.append((f"{title} corpus", f"{files}, SHA-256 `{at(entry, 'sha256')}`"))
    return facts


def _training(member: Member) -> str:
    training = member.run.config.training
    step = "not known" if member.step is None else f"{member.step:,}"
    optimizer = f"{training.optimizer}, β {training.beta_1:g} and {training.beta_2:g}"
    meaning = "factor" if training.schedule == "paper" else "peak"
    rate = (
        f"schedule {training.schedule}, {meaning} {training.learning_rate:g}, "
        f"{training.warmup_steps:,} steps of warm-up"
    )
    facts = [
        ("weights", f"`{member.weights}`"),
        ("step", step),
        ("batch", f"{training.batch_tokens:,} target tokens"),
        ("optimizer", optimizer),
        ("learning rate", rate),
        ("label smoothing", f"{training.label_smoothing:g}"),
        ("seed", str(training.seed)),
        ("began from", f"`{member.run.init_from}`" if member.run.init_from else "random weights"),
    ]
    return _table((f"of `{member.name}`", ""), facts)


def _search(provenance: Provenance) -> str:
    decoding = provenance.decoding
    how = (
        f"Outputs are drawn at temperature {decoding.temperature:g}"
        if decoding.sample
        else f"Beam search with {decoding.beam_size} hypotheses and length penalty "
        f"{decoding.length_penalty:g}"
    )
    ensemble = (
        f" The probabilities of {len(provenance.members)} models are averaged."
        if len(provenance.members) > 1
        else ""
    )
    return f"{how}; {decoding.n_best} for each sentence.{ensemble}"


def _size(path: Path, provenance: Provenance) -> str:
    parameters = sum(member.run.config.model.num_parameters() for member in provenance.members)
    facts = [
        ("parameters", f"{parameters:,}"),
        ("precision", provenance.precision),
        ("weights on disk", f"{bytes_of(path / 'variables'):,} bytes"),
        ("graph on disk", f"{(path / 'saved_model.pb').stat().st_size:,} bytes"),
    ]
    return _table(("", ""), facts)


def _limits(provenance: Provenance, task: TaskCard) -> str:
    decoding = provenance.decoding
    trained = [member.run.trained_tokens for member in provenance.members]
    seen = min((count for count in trained if count), default=None)
    longest = "not known" if seen is None else f"{seen:,} tokens"
    limits = [
        f"A text counts as one sentence. Beyond {provenance.max_source_tokens:,} tokens, the end "
        f"token included, or {decoding.max_source_bytes:,} bytes of UTF-8, it is cut. The longest "
        f"source in training: {longest}; translations of longer ones are worse.",
        f"A translation has at most its source's tokens and {decoding.max_extra_tokens:,} more, "
        f"and never more than {provenance.max_output_tokens:,}; at that length it ends as it is.",
        _unknown_characters(provenance),
        task.limit,
        "Text unlike its training data (other languages, domains, casing, markup) gives poor "
        f"{task.outputs} without a warning; a low score is a hint, not a "
        "measure.",
    ]
    return "\n".join(f"- {limit}" for limit in limits)


def _unknown_characters(provenance: Provenance) -> str:
    member = provenance.members[0]
    model = sentencepiece.SentencePieceProcessor(
        model_proto=member.run.tokenizer().vocabulary.source_model
    )
    if any(model.is_byte(i) for i in range(model.get_piece_size())):
        return "Characters that its vocabulary lacks are read byte by byte."
    found = (at(report, "valid", "source", "unknown_rate") for report in member.data_reports())
    rates = [rate for rate in found if isinstance(rate, (int, float))]
    most = "at most " if len(rates) > 1 else ""
    share = f" ({most}{100 * max(rates):.3f} % of the validation source's tokens)" if rates else ""
    return f"Characters that its vocabulary lacks are unknown to it and are lost{share}."


def _licence(about: About) -> str:
    model = f"`{about.license}`" if about.license else "not stated"
    return (
        f"Of the model: {model}. It depends on the data it was trained on, too. Of the code, "
        "keras_transformer: Apache-2.0."
    )


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
