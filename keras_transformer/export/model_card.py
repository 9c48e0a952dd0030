"""The model card (Mitchell et al., 2019) of an exported version, in the form of Hugging Face.

The front matter is YAML, the rest Markdown. Unknown facts are "not known", never guessed.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer.errors import InputError

if TYPE_CHECKING:
    from keras_transformer.evaluation.metrics import Scores
    from keras_transformer.runs.run_directory import RunDirectory

# The card, with the names of its facts in braces.
_CARD = importlib.resources.files(__package__).joinpath("model_card.txt").read_text("utf-8")


def check_codes(languages: Iterable[str], license: str | None) -> None:
    """Refuses invalid codes of languages, and an invalid SPDX identifier of a license."""
    for code in languages:
        if not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]+)*", code):
            raise InputError(f"{code!r} is not a language code. Use a code such as en or pt-BR.")
    if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license):
        raise InputError(f"{license!r} is not a license identifier. Use one such as cc-by-4.0.")


class VersionFacts(NamedTuple):
    """Facts about a version, for the model card and the manifest.

    Attributes:
        about: sentences about the files.
        use: Markdown, how to use the model.
        tags: tags of Hugging Face.
        library: the `library_name` of Hugging Face, if there is one.
        signatures: `{name: {"inputs": ..., "outputs": ...}}`.
        warning: a limitation of this export.
        task: the task of the model, as a tag of Hugging Face.
        description: a verb phrase about the task.
        limit: a sentence about the quality of outputs.

    Example:
    >>> VersionFacts("A SavedModel.", "    curl ...", ("tensorflow",)).library is None
    True
    """

    about: str = ""
    use: str = ""
    tags: tuple[str, ...] = ()
    library: str | None = None
    signatures: Mapping[str, Any] = {}
    warning: str | None = None
    task: str = "translation"
    description: str = "translates text"
    limit: str = (
        "Translations can be fluent and wrong, leave out or add content, and repeat errors and "
        "bias of the training data. Nothing is filtered. Check names, numbers and negations."
    )


def model_card(
    name: str,
    manifest: Mapping[str, Any],
    runs: Iterable[RunDirectory],
    facts: VersionFacts,
    *,
    scores: Scores | None = None,
    test_set: str = "",
) -> str:
    """Returns the model card of a version.

    The manifest has the result of `describe_version`, `languages` and `license`, which may be None,
    and `bytes`, the size of the model. The scores are of the translations of `test_set`.
    """
    decoding, longest = manifest["decoding"], manifest["max_train_source_length"]
    languages, license = manifest["languages"], manifest["license"]
    extra = decoding["max_extra_tokens"]
    relative = f"n + {extra}" if (extra or 0) >= 0 else f"{1 - extra}n"
    search = "beam search with {beam_size} hypotheses, α = {length_penalty:g}".format(**decoding)
    if decoding["length_penalty_formula"] == "power":
        search += " (log-probabilities are divided by length^α)"
    if decoding["sample"]:
        search = f"sampling at temperature {decoding['temperature']:g}"
    members = [_member(*member) for member in zip(runs, manifest["members"], strict=True)]
    if len(members) > 1:
        search += f", averaging the probabilities of {len(members)} models"
    front_matter = {
        "model_name": name,
        "language": list(dict.fromkeys(languages or ())),
        "license": license or "unknown",
        "library_name": facts.library,
        # Hugging Face has no pipeline for other tasks of these models.
        "pipeline_tag": "translation" if facts.task == "translation" else None,
        "tags": [facts.task, *facts.tags],
        "metrics": ["bleu", "chrf"] if scores else [],
    }
    return _CARD.format(
        front_matter="\n".join(  # JSON values are valid YAML
            f"{field}: {json.dumps(value)}" for field, value in front_matter.items() if value
        ),
        name=name,
        description=facts.description,
        languages=" to ".join(languages) if languages else "not known",
        about=facts.about,
        use=facts.use,
        scores=_scores(scores, test_set),
        members="\n\n".join(members),
        weights=manifest["weights"],
        model_bytes=manifest["bytes"],
        search=search,
        trained="not known" if longest is None else f"{longest:,} tokens",
        limit="\n- ".join(filter(None, (facts.limit, manifest.get("agreement")))),
        license=f"`{license}`" if license else "not stated",
        max_source_tokens=manifest["max_source_tokens"],
        max_source_bytes=manifest["max_source_bytes"],
        longest_output="min(n + 50, 3n + 10)" if extra is None else relative,
        max_output_tokens=manifest["max_output_tokens"],
    )


def model_name(output_dir: Path) -> str:
    """Returns the last name of a directory, with a _ for characters that a URL cannot have."""
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
    corpora: list[tuple[str, str]] = []
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):  # a damaged report
        for report in (json.loads(path.read_bytes()) for path in run.data_reports()):
            pairs = report.get("train", {}).get("pairs")
            corpora.append(("training pairs", "not known" if pairs is None else f"{pairs:,}"))
            for entry in report.get("inputs", {}).get("train", ()):
                # A published card has only names of files, because it must not show directories.
                for file, digest in entry.get("sha256", {}).items():
                    corpora.append(("training corpus", f"{Path(file).name}, SHA-256 `{digest}`"))
    facts = [("parameters", f"{config.num_parameters():,}")]
    facts += corpora or [("training pairs", "not known")]
    step, init_from = described["step"], described["init_from"]
    facts += [
        ("data fingerprint", f"`{described['data_fingerprint']}`"),
        ("vocabulary", f"{config.source_vocab_size:,} to {config.target_vocab_size:,} pieces"),
        ("weights", f"`{described['weights']}`"),
        ("step", "not known" if step is None else f"{step:,}"),
        ("batch", f"{training.batch_tokens:,} target tokens"),
        ("learning rate schedule", training.schedule),
        ("initial weights", f"`{'random' if init_from is None else Path(init_from).name}`"),
    ]
    return table((f"`{described['run']}`", ""), facts)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Returns a Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
