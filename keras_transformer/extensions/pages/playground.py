"""The playground: a page that translates a sentence, with scores, alignment and attention."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # Gradio reads it when it is imported

import gradio as gr
import numpy as np

from keras_transformer.config import MAX_LENGTH_PENALTY
from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.attention import (
    Ask,
    Attention,
    attention,
    attention_page,
    decode_texts,
    label_pieces,
    open_visible_model,
    status_remarks,
)
from keras_transformer.extensions.pages.page import macros
from keras_transformer.extensions.serving.client import LOADER, ServerEngine, served_tags
from keras_transformer.inference import Languages, Status, translations_of
from keras_transformer.inference.loading import members
from keras_transformer.inference.tags import add_missing_tag, check_tag, missing_tags
from keras_transformer.inference.translate import with_languages
from keras_transformer.runs.run_directory import RunDirectory

logger = logging.getLogger(__name__)
_PARTS = macros("playground")
_NEEDED = ("translate", "attention")
_ANSWER_SECONDS = 15.0
_MAX_CHARACTERS = 10_000


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


class Answer(NamedTuple):
    """The translations of a text, best first, its tokens, and a remark for each problem."""

    source: str
    source_tokens: list[str]
    hypotheses: list[Hypothesis]
    remarks: list[str]


class PlaygroundModel:
    """A run, an export or a server, called through its signatures `translate` and `attention`."""

    def __init__(
        self,
        label: str,
        ask: Mapping[str, Ask],
        examples: Sequence[str] = (),
        source_tag: str | None = None,
    ):
        missing = [name for name in _NEEDED if name not in ask]
        if missing:
            raise InputError(
                f"{label} lacks the signatures {' and '.join(missing)}, as LiteRT models and older "
                "exports do. Use a run directory, a new SavedModel, or a server with one."
            )
        self.label = label
        self.examples = list(examples)
        self._ask = ask
        self._symbols, added_tag = served_tags(ask)
        self._source_tag = source_tag or ""
        self._any_tag = source_tag or added_tag
        check_tag(source_tag, self._symbols, label)

    def warm_up(self) -> None:
        """Traces all graphs, so that the first user does not wait for them."""
        self.attention("a", "a")
        self.translate("a")

    def translate(
        self, source: str, prefix: str = "", length_penalty: float | None = None
    ) -> Answer:
        """Translates one text. Without a length penalty, uses the model's default."""
        if not source.strip():
            raise InputError("There is nothing to translate. Enter a sentence.")
        # The page returns integers for texts like "1".
        alpha = math.nan if length_penalty is None else float(length_penalty)
        inputs: dict[str, list[Any]] = {
            "text": [self._tagged(source)],
            "prefix": [prefix],
            "max_length": [0],
            "length_penalty": [alpha],
        }
        row = {name: np.asarray(rows)[0] for name, rows in self._ask["translate"](inputs).items()}
        tokens = [text for text in decode_texts(row["source_tokens"]) if text]
        hypotheses = []
        for i, translation in enumerate(translations_of(row["translations"], row["scores"])):
            n = int(row["lengths"][i])
            columns = [row[name][i][:n].tolist() for name in ("token_scores", "alignments")]
            pieces = decode_texts(row["tokens"][i][:n])
            hypotheses.append(Hypothesis(translation.text, translation.score, pieces, *columns))
        remarks = status_remarks(Status(int(row["status"])), len(tokens))
        if untagged := missing_tags([source], self._symbols, self._any_tag):
            remarks.append(untagged)
        return Answer(source, tokens, hypotheses, remarks)

    def attention(self, source: str, target: str) -> Attention:
        """Returns the attention of a source and a target text."""
        return attention(self._ask["attention"], self._tagged(source), target)

    def _tagged(self, source: str) -> str:
        return add_missing_tag(source, self._source_tag, self._symbols)


def open_playground_model(
    label: str,
    settings: Mapping[str, Any] | None = None,
    source_tag: str | None = None,
    languages: Languages = (None, None),
) -> PlaygroundModel:
    """Opens a run, `RUN@WEIGHTS`, an ensemble `RUN,RUN`, an export, or the address of a server."""
    path, settings = Path(label), dict(settings or {})
    if LOADER.find(label):
        server = ServerEngine(label)
        server.with_settings(settings)  # refuses any
        server.client.timeout = _ANSWER_SECONDS
        ask = {name: signature.call for name, signature in server.client.metadata().items()}
        tag = source_tag or with_languages(server, *languages).source_tag
        return PlaygroundModel(label, ask, source_tag=tag)
    examples: list[str] = []
    if RunDirectory.is_run(path) or not path.exists():
        run, _ = members(label)[0]
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):  # damaged reports
            reports = [json.loads(report.read_bytes()) for report in run.data_reports()]
            examples = [str(text) for report in reports for text in report.get("examples", ())][:3]
        beam = settings.get("decoding.beam_size", run.config.decoding.beam_size)
        settings.setdefault("decoding.n_best", beam)
    model = open_visible_model(label, settings, languages)
    return PlaygroundModel(model.label, model.signatures, examples, source_tag)


def build_page(
    models: Sequence[PlaygroundModel], examples: Sequence[str] | None = None
) -> gr.Blocks:
    """Returns the page; the default examples are those of the first model."""
    examples = examples or models[0].examples
    outputs: list[gr.components.Component] = []
    selections = []
    with gr.Blocks(title="Playground", analytics_enabled=False, fill_width=True) as page:
        gr.HTML(_PARTS.title(f"Playground: {' and '.join(model.label for model in models)}", 1))
        source = gr.Textbox(
            label="Source", max_lines=8, max_length=_MAX_CHARACTERS, autofocus=True,
            elem_id="source",
        )  # fmt: skip
        with gr.Accordion("Settings", open=False):
            prefix = gr.Textbox(
                label="The translation begins with", max_length=_MAX_CHARACTERS, elem_id="prefix"
            )
            # Gradio would clamp numbers silently, so the model checks the range.
            penalty = gr.Number(
                label=f"Length penalty, 0 to {MAX_LENGTH_PENALTY:g} (empty: the model's default)",
                value=None, step=0.1, elem_id="penalty",
            )  # fmt: skip
        button = gr.Button("Translate", variant="primary", elem_id="translate")
        if examples:
            gr.Examples([[example] for example in examples], [source])
        with gr.Row():
            for number, model in enumerate(models):
                with gr.Column():
                    gr.HTML(_PARTS.title(model.label, 2))
                    summary = gr.HTML(elem_id=f"said-{number}")
                    n_best = gr.Radio(
                        label="Translations, with scores", choices=[], elem_id=f"n-best-{number}",
                        elem_classes="n-best",
                    )  # fmt: skip
                    with gr.Tab("Alignment"):
                        alignment = gr.HTML(elem_id=f"alignment-{number}")
                    with gr.Tab("Attention"):
                        explorer = gr.HTML(elem_id=f"attention-{number}")
                kept = gr.State(None)  # the Answer whose translations the user selects
                outputs += [summary, n_best, alignment, explorer, kept]
                select = n_best.input(
                    functools.partial(_details, model), [kept, n_best], [alignment, explorer],
                    api_visibility="private", trigger_mode="always_last",
                )  # fmt: skip
                selections.append(select)

        def translate(source: str, prefix: str | None, penalty: float | None) -> list[Any]:
            # One event for all models: separate events could read the page at different times.
            with concurrent.futures.ThreadPoolExecutor(len(models)) as pool:
                found = pool.map(lambda m: _answer(m, source, prefix or "", penalty), models)
                return [part for parts in found for part in parts]

        gr.on(
            [button.click, source.submit], translate, [source, prefix, penalty], outputs,
            api_name="translate", trigger_mode="always_last", cancels=selections,
        )  # fmt: skip
    return page


def serve(page: gr.Blocks, host: str, port: int, *, open_browser: bool) -> str:
    """Serves the page in threads, and returns its address. Port 0 is a free one, 7860 or above."""
    style = Path(__file__).with_name("templates").joinpath("playground.css").read_text("utf-8")
    # Gradio requests its own page before it reports that it serves. A proxy would not find it.
    direct = [os.environ.get("NO_PROXY", ""), host, "localhost", "127.0.0.1"]
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(filter(None, direct))
    page.queue(default_concurrency_limit=2)
    try:
        _, address, _ = page.launch(
            server_name=f"[{host}]" if ":" in host else host, server_port=port or None,
            inbrowser=open_browser, quiet=True, prevent_thread_lock=True, share=False,
            ssr_mode=False, footer_links=[], css=style,
            max_file_size=1,  # the page has no files, but Gradio would store uploads
            run_history=False,  # would store the texts
            # The default fonts of Gradio would be downloaded.
            theme=gr.themes.Default(
                font=("system-ui", "sans-serif"), font_mono=("ui-monospace", "monospace")
            ),
        )  # fmt: skip
    except OSError as error:
        raise InputError(
            f"The playground cannot listen on {host}:{port} ({error}). Choose another port."
        ) from error
    return str(address)


def _answer(
    model: PlaygroundModel, source: str, prefix: str, penalty: float | None
) -> tuple[Any, ...]:
    """Returns the summary, the translations, the alignment and the attention as HTML."""
    start = time.perf_counter()
    answer = _or_message(lambda: model.translate(source, prefix, penalty))
    if isinstance(answer, str):
        return answer, gr.update(choices=[], value=None), "", "", None
    summary = _PARTS.summary(source, time.perf_counter() - start, answer.remarks)
    choices = [
        (f"{hypothesis.score:.3f}   {hypothesis.text or '(empty)'}", index)
        for index, hypothesis in enumerate(answer.hypotheses)
    ]
    update = gr.update(choices=choices, value=0 if choices else None)
    return summary, update, *_details(model, answer, 0), answer


def _details(model: PlaygroundModel, answer: Answer | None, index: int | None) -> tuple[str, str]:
    """Returns the alignment and the attention of one translation as HTML."""
    if answer is None or index is None or not answer.hypotheses:
        return "", ""
    hypothesis = answer.hypotheses[index]

    def explore() -> str:
        if not hypothesis.text:
            return str(_PARTS.remarks(["The translation is empty."]))
        pair = model.attention(answer.source, hypothesis.text)
        read = pair.predicted_tokens
        notes = []
        if read != hypothesis.tokens[: len(read)]:
            notes = ["The tokens of this text differ from those that the model generated."]
        known = {"Model": model.label, "Source": answer.source, "Target": hypothesis.text}
        page = attention_page(pair, known)
        return str(_PARTS.remarks(notes) + _PARTS.explorer(page))

    return show_alignment(answer.source_tokens, hypothesis), _or_message(explore)


def show_alignment(source_tokens: Sequence[str], hypothesis: Hypothesis) -> str:
    """Returns each target token, with the source token that it attends to and its probability."""
    sources = label_pieces(source_tokens)
    aligned = [sources[i] if 0 <= i < len(sources) else "–" for i in hypothesis.alignment]
    probabilities = [math.exp(min(log_prob, 0.0)) for log_prob in hypothesis.log_probs]
    tokens = label_pieces(hypothesis.tokens)
    return str(_PARTS.alignment(zip(tokens, aligned, probabilities, strict=True)))


def _or_message(function: Callable[[], Any]) -> Any:
    """Returns the result of `function`, or an error message in HTML."""
    try:
        return function()
    except InputError as error:
        message = str(error)
    except Exception:
        logger.exception("The playground could not answer.")
        message = "An unexpected error occurred. The terminal shows the details."
    return str(_PARTS.remarks([message], "alert"))
