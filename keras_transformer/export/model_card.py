"""The model card (Mitchell et al., 2019) of an exported version, in the form of Hugging Face.

The front matter is YAML, the rest Markdown. Unknown facts are "not known", never guessed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.evaluation.metrics import Scores
from keras_transformer.runs.run_directory import RunDirectory
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

Weights: {weights}. Files of the model: {model_bytes:,} bytes. Search: {search}.

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
        test_set: name of the sentences and references of the export.

    Example:
    >>> ModelCardData(languages=("en", "de"), license="cc-by-4.0").license
    'cc-by-4.0'
    """

    languages: tuple[str, str] | None = None
    license: str | None = None
    test_set: str = "the sentences of the export"

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
class VersionFacts:
    """What an exporter tells about a version, for the model card and the manifest.

    Attributes:
        about: sentences about the files. Without them, the version gets no model card.
        use: Markdown, how to use the model.
        tags: tags of Hugging Face.
        library: the `library_name` of Hugging Face, if there is one.
        signatures: `{name: {"inputs": ..., "outputs": ...}}`.
        warning: a limitation of this export.

    Example:
    >>> VersionFacts("A SavedModel.", "    curl ...", ("tensorflow",)).library is None
    True
    """

    about: str = ""
    use: str = ""
    tags: tuple[str, ...] = ()
    library: str | None = None
    signatures: Mapping[str, Any] = MappingProxyType({})
    warning: str | None = None


def model_card(
    name: str,
    manifest: Mapping[str, Any],
    runs: Iterable[RunDirectory],
    facts: VersionFacts,
    *,
    task: TaskCard = TRANSLATION,
    data: ModelCardData = ModelCardData(),
    scores: Scores | None = None,
    model_bytes: int = 0,
) -> str:
    """Returns the model card of a version.

    Args:
        name: name of the model.
        manifest: the origin and the settings, from `describe_version`.
        runs: the runs of `manifest["members"]`.
        facts: the texts about the format.
        task: the texts about the task.
        data: facts that the run does not contain.
        scores: scores of `data.test_set`.
        model_bytes: size of the files that an engine needs.
    """
    decoding, longest = manifest["decoding"], manifest["max_train_source_length"]
    search = f"beam search with {decoding['beam_size']} hypotheses, "
    search += f"α = {decoding['length_penalty']:g}"
    if decoding["length_penalty_formula"] == "power":
        search += " (log-probabilities are divided by length^α)"
    if decoding["sample"]:
        search = f"sampling at temperature {decoding['temperature']:g}"
    members = [_member(*member) for member in zip(runs, manifest["members"], strict=True)]
    if len(members) > 1:
        search += f", averaging the probabilities of {len(members)} models"
    front_matter = {
        "model_name": name,
        "language": list(dict.fromkeys(data.languages or ())),
        "license": data.license or "unknown",
        "library_name": facts.library,
        "pipeline_tag": task.pipeline_tag,
        "tags": [task.name, *facts.tags],
        "metrics": ["bleu", "chrf"] if scores else [],
    }
    return _CARD.format(
        front_matter="\n".join(  # JSON values are valid YAML
            f"{field}: {json.dumps(value)}" for field, value in front_matter.items() if value
        ),
        name=name,
        description=task.description,
        languages=" to ".join(data.languages) if data.languages else "not known",
        about=facts.about,
        use=facts.use,
        scores=_scores(scores, data.test_set),
        members="\n\n".join(members),
        weights=manifest["weights"],
        model_bytes=model_bytes,
        search=search,
        trained="not known" if longest is None else f"{longest:,} tokens",
        limit=task.limit,
        license=f"`{data.license}`" if data.license else "not stated",
        max_source_tokens=manifest["max_source_tokens"],
        max_source_bytes=decoding["max_source_bytes"],
        max_extra_tokens=decoding["max_extra_tokens"],
        max_output_tokens=manifest["max_output_tokens"],
    )


def model_name(output_dir: Path) -> str:
    """Returns the last name of a directory in a form that can be part of a URL.

    Example:
    >>> model_name(Path("build/en de"))
    'en_de'
    """
    return re.sub(r"[^\w.-]", "_", output_dir.resolve().name, flags=re.ASCII) or "model"


def _scores(scores: Scores | None, test_set: str) -> str:
    if scores is None:
        return "Scores on a test set: not known."
    rows = [
        ("BLEU", f"{scores.bleu:.2f}", f"`{scores.signature}`"),
        ("chrF", f"{scores.chrf:.2f}", f"`{scores.chrf_signature}`"),
    ]
    return f"On {test_set}:\n\n{table(('metric', 'score', 'signature of sacreBLEU'), rows)}"


def _member(run: RunDirectory, described: Mapping[str, Any]) -> str:
    """Returns a table about a run: its data, its vocabulary, its training."""
    config, training = run.config.model, run.config.training
    facts = [("parameters", f"{config.num_parameters():,}")]
    reports: list[Any] = []
    for path in run.data_reports():
        with contextlib.suppress(OSError, ValueError):
            reports.append(json.loads(path.read_bytes()))
    for report in reports or [None]:
        pairs, inputs = nested(report, "train", "pairs"), nested(report, "inputs", "train")
        facts.append(("training pairs", f"{pairs:,}" if isinstance(pairs, int) else "not known"))
        for entry in inputs if isinstance(inputs, list) else ():
            # Only the names of files, because a published card must not show directories.
            hashes = nested(entry, "sha256")
            for file, digest in hashes.items() if isinstance(hashes, dict) else ():
                facts.append(("training corpus", f"{Path(str(file)).name}, SHA-256 `{digest}`"))
    step, init_from = described["step"], described["init_from"]
    facts += [
        ("data fingerprint", f"`{described['data_fingerprint']}`"),
        ("vocabulary", f"{config.source_vocab_size:,} to {config.target_vocab_size:,} pieces"),
        ("weights", f"`{described['weights']}`"),
        ("step", "not known" if step is None else f"{step:,}"),
        ("batch", f"{training.batch_tokens:,} target tokens"),
        ("optimizer", f"{training.optimizer}, learning rate schedule {training.schedule}"),
        ("initial weights", f"`{'random' if init_from is None else Path(init_from).name}`"),
    ]
    return table((f"`{described['run']}`", ""), facts)


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
