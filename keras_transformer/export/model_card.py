"""The model card (Mitchell et al., 2019) of an exported version, in the form of Hugging Face.

The front matter is YAML, the rest Markdown. Unknown facts are "not known", never guessed.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.evaluation.metrics import Scores
from keras_transformer.export.manifest import Member, Provenance
from keras_transformer.schema import nested

_CARD = """\
---
{front_matter}
---

# {name}

A Transformer (Vaswani et al., 2017) that {description}. Languages: {languages}.
{about} `manifest.json` has every setting and hash.

## Use

{use}

## Evaluation

{scores}

## Model and training

{members}

Weights: {precision}, {weights_bytes:,} bytes. Search: {search}.

## Limits

- One text is one sentence. Texts of more than {max_source_tokens:,} tokens (including the end
  token) or {max_source_bytes:,} bytes are truncated. Longest source in training: {trained}.
  Translations of longer texts are worse.
- A translation has at most {max_extra_tokens:,} tokens more than its source, and at most
  {max_output_tokens:,} tokens. It is cut off there.
- Characters that are not in the vocabulary can be lost.
- Text unlike the training data (other languages, domains, casing, markup) gives poor results
  without a warning. A low score is only a hint.
- {limit}

## License

Model: {license}. The license may also depend on the training data. Code: Apache-2.0.
"""


@dataclasses.dataclass(frozen=True)
class TaskCard:
    """The texts of the model card that depend on the model's task.

    Attributes:
        name: the task, as a tag of Hugging Face.
        pipeline_tag: the corresponding pipeline of Hugging Face, if there is one.
        description: a verb phrase.
        limit: a sentence about the quality of outputs.
        request: the body of an example request.
        usage: a paragraph about further signatures.

    Example:
    >>> TRANSLATION.pipeline_tag
    'translation'
    """

    name: str
    pipeline_tag: str | None
    description: str
    limit: str
    request: Mapping[str, Any]
    usage: str | None = None


TRANSLATION = TaskCard(
    name="translation",
    pipeline_tag="translation",
    description="translates text",
    limit="Translations can be fluent and wrong, leave out or add content, and repeat errors and "
    "bias of the training data. Nothing is filtered. Check names, numbers and negations.",
    request={"inputs": {"text": ["A sentence to translate."]}},
)


@dataclasses.dataclass(frozen=True)
class ModelCardData:
    """Facts for the model card that the run does not contain.

    Attributes:
        languages: codes of the source and the target language.
        license: SPDX identifier in lower case.
        test_set: name of the test set of `scores`.
        scores: scores on the test set; the export computes them.

    Example:
    >>> ModelCardData(languages=("en", "de"), license="cc-by-4.0").license
    'cc-by-4.0'
    """

    languages: tuple[str, str] | None = None
    license: str | None = None
    test_set: str = "the sentences of the export"
    scores: Scores | None = None

    def __post_init__(self) -> None:
        for code in self.languages or ():
            if not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]+)*", code):
                raise InputError(
                    f"{code!r} is not a language code. Use a code such as en or pt-BR."
                )
        if self.license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", self.license):
            raise InputError(
                f"{self.license!r} is not a license identifier. Use one such as cc-by-4.0."
            )


@dataclasses.dataclass(frozen=True)
class FormatCard:
    """The texts of the model card that depend on the format of the export.

    Attributes:
        about: sentences about the files.
        use: Markdown, how to use the model.
        tags: tags of Hugging Face.
        weights_bytes: size of the weights.
        library: the `library_name` of Hugging Face, if there is one.

    Example:
    >>> FormatCard("A SavedModel.", "    curl ...", ("tensorflow",), 1000).library is None
    True
    """

    about: str
    use: str
    tags: tuple[str, ...]
    weights_bytes: int
    library: str | None = None


def model_card(
    name: str,
    provenance: Provenance,
    data: ModelCardData,
    format_card: FormatCard,
    task: TaskCard = TRANSLATION,
) -> str:
    """Returns the model card of a version.

    Args:
        name: name of the model.
        provenance: origin and settings.
        data: facts that the run does not contain.
        format_card: the texts about the format.
        task: the texts about the task.

    Example:
    >>> from keras_transformer.inference.loading import load_translator
    >>> provenance = Provenance.of("build/run", load_translator("build/run"), "float32")
    >>> format_card = FormatCard("A SavedModel.", "    curl ...", ("tensorflow",), 1000)
    >>> model_card("en-de", provenance, ModelCardData(), format_card).splitlines()[0]
    '---'
    """
    decoding = provenance.decoding
    trained = [member.run.max_train_source_length for member in provenance.members]
    longest = min((count for count in trained if count), default=None)
    search = f"beam search with {decoding.beam_size} hypotheses, α = {decoding.length_penalty:g}"
    if decoding.length_penalty_formula == "power":
        search += " (log-probabilities are divided by length^α)"
    if decoding.sample:
        search = f"sampling at temperature {decoding.temperature:g}"
    if len(provenance.members) > 1:
        search += f", averaging the probabilities of {len(provenance.members)} models"
    return _CARD.format(
        front_matter=_front_matter(name, data, format_card, task),
        name=name,
        description=task.description,
        languages=" to ".join(data.languages) if data.languages else "not known",
        about=format_card.about,
        use=format_card.use,
        scores=_scores(data),
        members="\n\n".join(_member(each) for each in provenance.members),
        precision=provenance.precision,
        weights_bytes=format_card.weights_bytes,
        search=search,
        trained="not known" if longest is None else f"{longest:,} tokens",
        limit=task.limit,
        license=f"`{data.license}`" if data.license else "not stated",
        max_source_tokens=provenance.max_source_tokens,
        max_source_bytes=decoding.max_source_bytes,
        max_extra_tokens=decoding.max_extra_tokens,
        max_output_tokens=provenance.max_output_tokens,
    )


def model_name(output_dir: Path) -> str:
    """Returns the last name of a directory in a form that can be part of a URL.

    Example:
    >>> model_name(Path("build/en de"))
    'en_de'
    """
    return re.sub(r"[^\w.-]", "_", output_dir.resolve().name, flags=re.ASCII) or "model"


def _front_matter(name: str, data: ModelCardData, format_card: FormatCard, task: TaskCard) -> str:
    """Returns YAML; JSON values are valid YAML."""
    fields: dict[str, Any] = {
        "model_name": name,
        "language": list(dict.fromkeys(data.languages or ())),
        "license": data.license or "unknown",
        "library_name": format_card.library,
        "pipeline_tag": task.pipeline_tag,
        "tags": [task.name, *format_card.tags],
        "metrics": ["bleu", "chrf"] if data.scores else [],
    }
    return "\n".join(f"{field}: {json.dumps(value)}" for field, value in fields.items() if value)


def _scores(data: ModelCardData) -> str:
    if data.scores is None:
        return "Scores on a test set: not known."
    rows = [
        ("BLEU", f"{data.scores.bleu:.2f}", f"`{data.scores.signature}`"),
        ("chrF", f"{data.scores.chrf:.2f}", f"`{data.scores.chrf_signature}`"),
    ]
    scores = table(("metric", "score", "signature of sacreBLEU"), rows)
    return f"On {data.test_set}:\n\n{scores}"


def _member(member: Member) -> str:
    """Returns a table about a run: its data, its vocabulary, its training."""
    config, training = member.run.config.model, member.run.config.training
    facts = [("parameters", f"{config.num_parameters():,}")]
    for report in member.data_reports() or [{}]:
        pairs, inputs = nested(report, "train", "pairs"), nested(report, "inputs", "train")
        facts.append(("training pairs", f"{pairs:,}" if isinstance(pairs, int) else "not known"))
        for entry in inputs if isinstance(inputs, list) else ():
            # Only the names of files, because a published card must not show directories.
            hashes = nested(entry, "sha256")
            for file, digest in hashes.items() if isinstance(hashes, dict) else ():
                facts.append(("training corpus", f"{Path(str(file)).name}, SHA-256 `{digest}`"))
    facts += [
        ("data fingerprint", f"`{member.run.data_fingerprint}`"),
        ("vocabulary", f"{config.source_vocab_size:,} to {config.target_vocab_size:,} pieces"),
        ("weights", f"`{member.weights}`"),
        ("step", "not known" if member.step is None else f"{member.step:,}"),
        ("batch", f"{training.batch_tokens:,} target tokens"),
        ("learning rate schedule", training.schedule),
        ("initial weights", f"`{_last_name(member.run.init_from)}`"),
    ]
    return table((f"`{member.name}`", ""), facts)


def _last_name(init_from: str | None) -> str:
    return "random" if init_from is None else Path(init_from).name


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Returns a Markdown table.

    Args:
        head: the titles of the columns.
        rows: the cells of each row.

    Example:
    >>> table(("metric", "score"), [("BLEU", "31.4")]).splitlines()[-1]
    '| BLEU | 31.4 |'
    """
    lines = [head, ("---",) * len(head), *rows]
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
