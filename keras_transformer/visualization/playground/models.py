"""A model that answers the page: of a run, an export or a server, all asked by signatures."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.export.request_params import Status
from keras_transformer.inference import translations_of
from keras_transformer.inference.loading import members
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.serving.client import connect
from keras_transformer.visualization.attention import Ask, Attention, Inputs, attention
from keras_transformer.visualization.visible_model import open_signatures

_NEEDED = ("translate", "attention")
_ADDRESS = re.compile(r"((https?|grpc)://)?[^/@,\s]+:\d+(/.*)?", re.IGNORECASE)
_READY_SECONDS, _ANSWER_SECONDS = 5.0, 15.0
MAX_CHARACTERS = 10_000  # of a text: what is longer is refused before it is sent anywhere


class Hypothesis(NamedTuple):
    """One of the n-best."""

    text: str
    score: float  # log P and the length penalty, as it was ranked by
    tokens: list[str]  # pieces, the end token included where there is one
    log_probs: list[float]  # of each token
    alignment: list[int]  # the place of the source token that each attends to most


class Translated(NamedTuple):
    """What a model says to a source; best first, nothing where it finds nothing."""

    source_tokens: list[str]
    hypotheses: list[Hypothesis]
    remarks: list[str]  # a sentence for each thing that is not as was asked for


class PlaygroundModel:
    """A model, opened.

    Args:
        place: where it is, as the page says.
        ask: its signatures by name.
    """

    def __init__(self, place: str, ask: Mapping[str, Ask]):
        missing = [name for name in _NEEDED if name not in ask]
        if missing:
            raise InputError(
                f"{place} has no signature {' and no '.join(missing)}, as LiteRT models and older "
                "exports; expected a run directory, a new SavedModel, or a server of one"
            )
        self.place = place
        self._ask = ask

    def warm_up(self) -> None:
        """Answers once, so that the first who asks does not wait for graphs to be traced."""
        self.attention("a", "a")
        self.translate("a")

    def translate(
        self, source: str, prefix: str = "", length_penalty: float | None = None
    ) -> Translated:
        """Translates one text.

        Args:
            source: text.
            prefix: what the translations begin with.
            length_penalty: α, or None for the model's own.

        Raises:
            InputError: for a blank or very long source, or where a server fails.
        """
        if not source.strip():
            raise InputError("there is nothing to translate; expected a sentence")
        for name, text in (("text", source), ("beginning", prefix)):
            _check_text(name, text)
        # NaN stands for its own. A float: what is typed as 1 comes as an integer.
        alpha = math.nan if length_penalty is None else float(length_penalty)
        inputs: Inputs = {
            "text": [source], "prefix": [prefix], "max_length": [0], "length_penalty": [alpha]
        }  # fmt: skip
        row = {name: np.asarray(each)[0] for name, each in self._ask["translate"](inputs).items()}
        count = len(translations_of(row["translations"], row["scores"]))
        status = Status(int(row["status"]))
        if length_penalty is None:
            status &= ~Status.LENGTH_PENALTY_CHANGED
        source_tokens = [text for text in _texts(row["source_tokens"]) if text]
        return Translated(
            source_tokens,
            [_hypothesis(row, i) for i in range(count)],
            _remarks(status, len(source_tokens)),
        )

    def attention(self, source: str, target: str) -> Attention:
        """Returns who attends to whom while `target` is read."""
        return attention(self._ask["attention"], source, target)


def open_model(place: str, settings: Mapping[str, Any] | None = None) -> PlaygroundModel:
    """Opens a model.

    Args:
        place: a run, RUN@WEIGHTS, an ensemble RUN,RUN, a SavedModel, or a server as
            `client.connect` takes it.
        settings: of a run's `decoding.` configuration; without `decoding.n_best` all of its beam
            is shown. What is exported or served takes none.

    Raises:
        InputError: where there is none, or one that does not tell enough.
    """
    path = Path(place)
    if _ADDRESS.fullmatch(place) and not path.exists():
        if settings:
            raise InputError(
                f"{place} is a server, in whose model {' and '.join(settings)} were fixed at "
                "export; expected none of them, or a run directory"
            )
        return _served(place)
    settings = dict(settings or {})
    if RunDirectory.is_run(path) or not path.exists():  # an export takes no settings
        run, _ = members(place)[0]
        beam = settings.get("decoding.beam_size", run.config.decoding.beam_size)
        settings.setdefault("decoding.n_best", beam)
    opened = open_signatures(place, settings)
    return PlaygroundModel(opened.place, opened.signatures)


def _served(address: str) -> PlaygroundModel:
    client = connect(address, timeout=_ANSWER_SECONDS)
    client.wait_until_ready(_READY_SECONDS)

    def asking(signature: str) -> Ask:
        return lambda inputs: client.predict(inputs, signature)

    return PlaygroundModel(address, {name: asking(name) for name in client.metadata()})


def _check_text(name: str, text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise InputError(
            f"the {name} has {len(text):,} characters; expected at most {MAX_CHARACTERS:,}, and a "
            "sentence at a time"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half a sign, as JSON can hold it
        raise InputError(
            f"the {name} cannot be written in UTF-8 ({error.reason}); expected text"
        ) from None


def _hypothesis(row: Mapping[str, np.ndarray], i: int) -> Hypothesis:
    length = int(row["lengths"][i])
    return Hypothesis(
        _texts([row["translations"][i]])[0],
        float(row["scores"][i]),
        _texts(row["tokens"][i][:length]),
        [float(each) for each in row["token_scores"][i][:length]],
        [int(each) for each in row["alignments"][i][:length]],
    )


def _remarks(status: Status, source_tokens: int) -> list[str]:
    said = {
        Status.SOURCE_CUT: f"the source is longer; its first {source_tokens} tokens were taken",
        Status.LENGTH_PENALTY_CHANGED: "the length penalty is one that cannot be; the nearest that "
        "can was taken",
        Status.PREFIX_CUT: "what the translation is to begin with is longer than it may be",
        Status.NOT_TRANSLATED: "the model finds no translation",
    }
    return [sentence for bit, sentence in said.items() if bit in status]


def _texts(values: Any) -> list[str]:
    return [value.decode("utf-8", "replace") for value in values]
