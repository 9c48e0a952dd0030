"""Models for the playground: a run, an export or a server, called through signatures."""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.export.request_params import Status
from keras_transformer.extensions.pages import visible_model
from keras_transformer.extensions.pages.attention import (
    Ask,
    Attention,
    Inputs,
    attention,
    decode_texts,
)
from keras_transformer.extensions.serving.client import connect, is_address
from keras_transformer.inference import translations_of
from keras_transformer.inference.loading import members
from keras_transformer.inference.tags import (
    add_missing_tag,
    check_tag,
    missing_tags,
    served_tags,
)
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.schema import nested

_NEEDED = ("translate", "attention")
_READY_SECONDS, _ANSWER_SECONDS = 5.0, 15.0
MAX_CHARACTERS = 10_000  # longer texts are refused before they are sent to a server


class Hypothesis(NamedTuple):
    """One translation.

    Attributes:
        text: the translation.
        score: the log-probability divided by the length penalty.
        tokens: the pieces, with the end token if there is one.
        log_probs: the log-probability of each token.
        alignment: for each token, the position of the source token with the most attention.
    """

    text: str
    score: float
    tokens: list[str]
    log_probs: list[float]
    alignment: list[int]


class Translated(NamedTuple):
    """The translations of a text.

    Attributes:
        source_tokens: the pieces of the source.
        hypotheses: the translations, best first.
        remarks: a sentence for each problem.
    """

    source_tokens: list[str]
    hypotheses: list[Hypothesis]
    remarks: list[str]


class PlaygroundModel:
    """A model that translates and returns its attention.

    Args:
        examples: sentences to try; None if none are known.
    """

    def __init__(
        self,
        place: str,
        ask: Mapping[str, Ask],
        examples: Sequence[str] | None = None,
        source_tag: str | None = None,
    ):
        missing = [name for name in _NEEDED if name not in ask]
        if missing:
            raise InputError(
                f"{place} lacks the signatures {' and '.join(missing)}, as LiteRT models and older "
                "exports do. Use a run directory, a new SavedModel, or a server with one."
            )
        self.place = place
        self.examples = list(examples or ())
        self._ask = ask
        self._tags = served_tags(ask)
        self._source_tag = source_tag or ""
        check_tag(source_tag, self._tags.symbols, place)

    @property
    def name(self) -> str:
        """A short name for the page."""
        return visible_model.model_name(self.place)

    def warm_up(self) -> None:
        """Traces all graphs, so that the first user does not wait for them."""
        self.attention("a", "a")
        self.translate("a")

    def translate(
        self, source: str, prefix: str = "", length_penalty: float | None = None
    ) -> Translated:
        """Translates one text.

        Args:
            length_penalty: the exponent of the length penalty, or None for the model's default.
        """
        if not source.strip():
            raise InputError("There is nothing to translate. Enter a sentence.")
        for name, text in (("text", source), ("beginning", prefix)):
            _check_text(name, text)
        remark = missing_tags(
            [source], self._tags.symbols, self._source_tag or self._tags.source_tag
        )
        source = self._tagged(source)
        # NaN is the model's default. The page returns integers for texts like "1".
        alpha = math.nan if length_penalty is None else float(length_penalty)
        inputs: Inputs = {
            "text": [source], "prefix": [prefix], "max_length": [0], "length_penalty": [alpha]
        }  # fmt: skip
        row = {name: np.asarray(each)[0] for name, each in self._ask["translate"](inputs).items()}
        count = len(translations_of(row["translations"], row["scores"]))
        status = Status(int(row["status"]))
        if length_penalty is None:
            status &= ~Status.LENGTH_PENALTY_CHANGED
        tokens = [text for text in decode_texts(row["source_tokens"]) if text]
        sentences = {
            Status.SOURCE_CUT: f"The source is too long. Only its first {len(tokens)} tokens are "
            "used.",
            Status.LENGTH_PENALTY_CHANGED: "The length penalty is out of range. The nearest valid "
            "value is used.",
            Status.PREFIX_CUT: "The beginning of the translation is too long.",
            Status.NOT_TRANSLATED: "The model finds no translation.",
        }
        return Translated(
            tokens,
            [_hypothesis(row, i) for i in range(count)],
            [sentence for bit, sentence in sentences.items() if bit in status]
            + ([remark] if remark else []),
        )

    def attention(self, source: str, target: str) -> Attention:
        """Returns the attention of a source and a target text."""
        return attention(self._ask["attention"], self._tagged(source), target)

    def _tagged(self, source: str) -> str:
        return add_missing_tag(source, self._source_tag, self._tags.symbols)


def open_playground_model(
    place: str, settings: Mapping[str, Any] | None = None, source_tag: str | None = None
) -> PlaygroundModel:
    """Opens a model.

    Args:
        place: a run, `RUN@WEIGHTS`, an ensemble `RUN,RUN`, a SavedModel, or the address of a server
            such as `localhost:8501/MODEL`.
    """
    path = Path(place)
    settings = dict(settings or {})
    if is_address(place) and not path.exists():
        if settings:
            raise InputError(
                f"{place} is a server, and {' and '.join(settings)} were fixed when its model was "
                "exported. Remove them, or use a run directory."
            )
        client = connect(place, timeout=_ANSWER_SECONDS)
        client.wait_until_ready(_READY_SECONDS)
        names = client.metadata()
        ask = {name: functools.partial(client.predict, signature=name) for name in names}
        return PlaygroundModel(place, ask, source_tag=source_tag)
    examples = None
    if RunDirectory.is_run(path) or not path.exists():
        run, _ = members(place)[0]
        examples = _examples(run)
        beam = settings.get("decoding.beam_size", run.config.decoding.beam_size)
        settings.setdefault("decoding.n_best", beam)
    model = visible_model.open_visible_model(place, settings)
    return PlaygroundModel(model.place, model.signatures, examples, source_tag)


def _examples(run: RunDirectory) -> list[str]:
    """Returns validation sentences from the reports of the data of a run."""
    found: list[Any] = []
    for path in run.data_reports():
        with contextlib.suppress(OSError, ValueError, RecursionError):  # they are optional
            found += nested(json.loads(path.read_bytes()), "examples") or []
    return [each for each in found if isinstance(each, str) and each.strip()][:3]


def _check_text(name: str, text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise InputError(
            f"The {name} has {len(text):,} characters, but the limit is {MAX_CHARACTERS:,}. Enter "
            "one sentence at a time."
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair in JSON
        raise InputError(f"The {name} cannot be encoded in UTF-8 ({error.reason}).") from None


def _hypothesis(row: Mapping[str, np.ndarray], i: int) -> Hypothesis:
    length = int(row["lengths"][i])
    return Hypothesis(
        decode_texts([row["translations"][i]])[0],
        float(row["scores"][i]),
        decode_texts(row["tokens"][i][:length]),
        [float(each) for each in row["token_scores"][i][:length]],
        [int(each) for each in row["alignments"][i][:length]],
    )
