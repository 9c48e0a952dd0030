"""The playground: a page that translates a sentence, with alignment and attention."""

from __future__ import annotations

import concurrent.futures
import html
import importlib.resources
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # Gradio reads it when it is imported

import gradio as gr

from keras_transformer.config import MAX_LENGTH_PENALTY
from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.pages import attention_page
from keras_transformer.extensions.pages.playground.models import (
    Hypothesis,
    PlaygroundModel,
    Translated,
)
from keras_transformer.extensions.pages.report.elements import text

logger = logging.getLogger(__name__)


class _Answer(NamedTuple):
    """The answer of a model, kept for when the user selects another translation."""

    source: str
    translated: Translated
    summary: str  # HTML


def build_page(
    models: Sequence[PlaygroundModel], examples: Sequence[str] | None = None
) -> gr.Blocks:
    """Returns the page.

    Args:
        examples: sentences to choose from; by default, the examples of the first model.
    """
    examples = examples or models[0].examples
    names = [model.name for model in models]
    if len(set(names)) < len(names):  # two runs may have the same name
        names = [model.place for model in models]
    with gr.Blocks(title="Playground", analytics_enabled=False, fill_width=True) as page:
        gr.HTML(f"<h1>Playground: {text(' and '.join(names))}</h1>")
        source = gr.Textbox(label="Source", max_lines=8, autofocus=True, elem_id="source")
        with gr.Accordion("Settings", open=False):
            prefix = gr.Textbox(label="The translation begins with", elem_id="prefix")
            # Gradio would clamp numbers silently, so the model checks the range.
            penalty = gr.Number(
                label=f"Length penalty, 0 to {MAX_LENGTH_PENALTY:g} (empty: the model's default)",
                value=None, step=0.1, elem_id="penalty",
            )  # fmt: skip
        button = gr.Button("Translate", variant="primary", elem_id="translate")
        if examples:
            gr.Examples([[each] for each in examples], [source])
        with gr.Row():
            columns = [
                _Column(model, name, number)
                for number, (model, name) in enumerate(zip(models, names, strict=True))
            ]

        def translate(source: str, prefix: str | None, penalty: float | None) -> list[Any]:
            # One event for all models: separate events could read the page at different times.
            with concurrent.futures.ThreadPoolExecutor(len(columns)) as pool:
                found = pool.map(lambda each: each.translate(source, prefix, penalty), columns)
                return [part for parts in found for part in parts]

        gr.on(
            [button.click, source.submit], translate, [source, prefix, penalty],
            [part for column in columns for part in column.outputs],
            api_name="translate", trigger_mode="always_last",
            cancels=[column.selection for column in columns],
        )  # fmt: skip
    return page


def serve(page: gr.Blocks, host: str, port: int, *, open_browser: bool) -> str:
    """Serves the page in threads, and returns its address.

    Args:
        port: the port. 0 uses the first free port from 7860 on.
    """
    style = importlib.resources.files(__package__).joinpath("page.css").read_text("utf-8")
    # Gradio requests its own page before it reports that it serves. A proxy would not find it.
    direct = [os.environ.get("NO_PROXY", ""), host, "localhost", "127.0.0.1"]
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(filter(None, direct))
    page.queue(default_concurrency_limit=2)
    try:
        _, address, _ = page.launch(
            server_name=f"[{host}]" if ":" in host else host, server_port=port or None,
            inbrowser=open_browser, quiet=True, prevent_thread_lock=True, share=False,
            ssr_mode=False, footer_links=[], css=style,
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


class _Column:
    """The part of the page that shows one model.

    Attributes:
        outputs: the components that `translate` fills.
        selection: the event when the user selects another translation.
    """

    def __init__(self, model: PlaygroundModel, name: str, number: int) -> None:
        self._model = model
        self._name = name
        with gr.Column():
            gr.HTML(f'<h2 title="{html.escape(model.place)}">{text(name)}</h2>')
            summary = gr.HTML(elem_id=f"said-{number}")
            n_best = gr.Radio(
                label="Translations, with scores", choices=[], elem_id=f"n-best-{number}",
                elem_classes="n-best",
            )  # fmt: skip
            with gr.Tabs():
                with gr.Tab("Alignment"):
                    alignment = gr.HTML(elem_id=f"alignment-{number}")
                with gr.Tab("Attention"):
                    attention = gr.HTML(elem_id=f"attention-{number}")
        state = gr.State(None)  # an _Answer
        self.outputs = [summary, n_best, alignment, attention, state]
        self.selection = n_best.input(
            self._select, [n_best, state], [summary, alignment, attention],
            api_visibility="private", trigger_mode="always_last",
        )  # fmt: skip

    def translate(self, source: str, prefix: str | None, penalty: float | None) -> tuple[Any, ...]:
        """Returns the values of `outputs`. Errors are shown on the page."""

        def answer() -> tuple[Any, ...]:
            start = time.perf_counter()
            translated = self._model.translate(source, prefix or "", penalty)
            milliseconds = 1000 * (time.perf_counter() - start)
            shown = source if len(source) <= 200 else f"{source[:200]}…"
            summary = f'<p class="legend">“{text(shown)}” in {milliseconds:,.0f} ms</p>'
            kept = _Answer(source, translated, summary + remarks(translated.remarks))
            choices = [
                (f"{hypothesis.score:.3f}   {hypothesis.text or '(empty)'}", index)
                for index, hypothesis in enumerate(translated.hypotheses)
            ]
            update = gr.update(choices=choices, value=0 if choices else None)
            return kept.summary, update, *self._details(kept, 0), kept

        nothing = gr.update(choices=[], value=None)
        return _catch_errors(answer, lambda error: (error, nothing, "", "", None))

    def _select(self, index: int | None, answer: _Answer | None) -> tuple[str, str, str]:
        if answer is None or index is None:
            return "", "", ""
        return answer.summary, *self._details(answer, index)

    def _details(self, answer: _Answer, index: int) -> tuple[str, str]:
        """Returns the alignment and the attention of one translation."""
        if not answer.translated.hypotheses:
            return "", ""
        hypothesis = answer.translated.hypotheses[index]

        def explore() -> str:
            if not hypothesis.text:
                return remarks(["The translation is empty."])
            attention = self._model.attention(answer.source, hypothesis.text)
            read = attention.predicted_tokens
            notes = []
            if read != hypothesis.tokens[: len(read)]:
                notes = ["The tokens of this text differ from those that the model generated."]
            page = attention_page(attention, self._name, answer.source, hypothesis.text)
            return remarks(notes) + (
                '<iframe class="explorer" title="Interactive attention" sandbox="allow-scripts" '
                f'srcdoc="{html.escape(page)}"></iframe>'
            )

        aligned = alignment(answer.translated.source_tokens, hypothesis)
        return aligned, _catch_errors(explore, lambda error: error)


def remarks(sentences: Sequence[str], attributes: str = "") -> str:
    """Returns a highlighted paragraph for each sentence."""
    return "".join(f'<p class="remark"{attributes}>{text(each)}</p>' for each in sentences)


def alignment(source_tokens: Sequence[str], hypothesis: Hypothesis) -> str:
    """Returns each target token, with the source token that it attends to and its probability."""
    columns = []
    for token, position, log_prob in zip(
        hypothesis.tokens, hypothesis.alignment, hypothesis.log_probs, strict=True
    ):
        probability = math.exp(min(log_prob, 0.0))
        source = source_tokens[position] if 0 <= position < len(source_tokens) else "–"
        columns.append(
            f'<li style="--sure:{probability:.3f}"><b>{_piece(token)}</b>'
            f"<span>{_piece(source)}</span><small>{100 * probability:.0f} %</small></li>"
        )
    return (
        '<p class="legend">Each token of the translation, the source token with the most attention '
        "(mean of the last layer's heads), and the probability of the token.</p>"
        f'<ol class="alignment">{"".join(columns)}</ol>'
    )


def _piece(piece: str) -> str:
    return text(piece.replace("\N{LOWER ONE EIGHTH BLOCK}", "_"))


def _catch_errors(function: Callable[[], Any], failed: Callable[[str], Any]) -> Any:
    """Returns the result of `function`, or of `failed` with an error message in HTML."""
    try:
        return function()
    except InputError as error:
        message = str(error)
    except Exception:
        logger.exception("The playground could not answer.")
        message = "An unexpected error occurred. The terminal shows the details."
    return failed(remarks([message], ' role="alert"'))
