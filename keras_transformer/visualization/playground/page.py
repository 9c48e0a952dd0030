"""The page: a sentence in, for each model its n-best, and of one of them what stands behind it."""

from __future__ import annotations

import concurrent.futures
import importlib.resources
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when it is loaded: it calls home

import gradio as gr

from keras_transformer.config import MAX_LENGTH_PENALTY
from keras_transformer.errors import InputError
from keras_transformer.visualization.playground import answers
from keras_transformer.visualization.playground.models import PlaygroundModel, Translated

logger = logging.getLogger(__name__)

TITLE = "Playground"
# Fonts of the machine itself: those of Gradio's own themes are fetched from elsewhere.
_FONTS = ("system-ui", "sans-serif")
_MONOSPACED = ("ui-monospace", "monospace")


class _Shown(NamedTuple):
    """What the page shows of a model's answer, for when another of its n-best is chosen."""

    source: str
    translated: Translated
    said: str  # HTML


def build_page(models: Sequence[PlaygroundModel], examples: Sequence[str] = ()) -> gr.Blocks:
    """Returns the page.

    Args:
        models: one, or two that are compared, side by side.
        examples: sentences to choose from.
    """
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as page:
        source = gr.Textbox(label="Source", max_lines=8, autofocus=True, elem_id="source")
        with gr.Accordion("Settings", open=False):
            prefix = gr.Textbox(label="The translation begins with", elem_id="prefix")
            # Without bounds of its own: what cannot be is said beside the answer.
            penalty = gr.Number(
                label=f"Length penalty α, 0 to {MAX_LENGTH_PENALTY:g}; empty: the model's own",
                value=None, step=0.1, elem_id="penalty",
            )  # fmt: skip
        button = gr.Button("Translate", variant="primary", elem_id="translate")
        if examples:
            gr.Examples([[each] for each in examples], [source])
        with gr.Row():
            columns = [_Column(model, number) for number, model in enumerate(models)]

        def translate(source: str, prefix: str | None, penalty: float | None) -> list[Any]:
            # All are asked the same at once: events of their own would each read the page anew.
            with concurrent.futures.ThreadPoolExecutor(len(columns)) as pool:
                found = pool.map(lambda each: each.translate(source, prefix, penalty), columns)
                return [part for parts in found for part in parts]

        gr.on(
            [button.click, source.submit], translate, [source, prefix, penalty],
            [part for column in columns for part in column.parts],
            api_name="translate", trigger_mode="always_last",
            cancels=[column.choosing for column in columns],
        )  # fmt: skip
    return page


def serve(page: gr.Blocks, host: str, port: int, *, open_browser: bool) -> str:
    """Serves the page in threads of its own, and returns its address.

    Args:
        page: of `build_page`.
        host: address to listen at.
        port: of it; 0: the first free one from 7860 on.
        open_browser: whether to open one.

    Raises:
        InputError: where the port cannot be had.
    """
    style = importlib.resources.files(__package__).joinpath("page.css").read_text("utf-8")
    name = f"[{host}]" if ":" in host else host
    # It looks at itself before it says that it is there; a proxy would look elsewhere.
    direct = [os.environ.get("NO_PROXY", ""), host, "localhost", "127.0.0.1"]
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(filter(None, direct))
    page.queue(default_concurrency_limit=2)
    try:
        _, address, _ = page.launch(
            server_name=name, server_port=port or None, inbrowser=open_browser, quiet=True,
            prevent_thread_lock=True, share=False, ssr_mode=False, footer_links=[],
            run_history=False,  # it would keep what was typed
            theme=gr.themes.Default(font=_FONTS, font_mono=_MONOSPACED), css=style,
        )  # fmt: skip
    except OSError as error:
        raise InputError(f"{host}:{port} cannot be listened at ({error})") from error
    return str(address)


class _Column:
    """What is seen of one model, and what fills it.

    Attributes:
        parts: what `translate` fills.
        choosing: the event of choosing another of the n-best.
    """

    def __init__(self, model: PlaygroundModel, number: int) -> None:
        self._model = model
        with gr.Column():
            gr.HTML(answers.heading(model.place))
            said = gr.HTML(elem_id=f"said-{number}")
            n_best = gr.Radio(
                label="n-best, with scores", choices=[], elem_id=f"n-best-{number}",
                elem_classes="n-best",
            )  # fmt: skip
            with gr.Tabs():
                with gr.Tab("Alignment"):
                    alignment = gr.HTML(elem_id=f"alignment-{number}")
                with gr.Tab("Attention"):
                    attention = gr.HTML(elem_id=f"attention-{number}")
        state = gr.State(None)  # a _Shown
        self.parts = [said, n_best, alignment, attention, state]
        self.choosing = n_best.input(
            self._choose, [n_best, state], [said, alignment, attention],
            api_visibility="private", trigger_mode="always_last",
        )  # fmt: skip

    def translate(self, source: str, prefix: str | None, penalty: float | None) -> tuple[Any, ...]:
        """Returns what `parts` are to hold; of what fails, in words."""

        def answer() -> tuple[Any, ...]:
            start = time.perf_counter()
            translated = self._model.translate(source, prefix or "", penalty)
            seconds = time.perf_counter() - start
            said = answers.answered(source, seconds) + answers.remarks(translated.remarks)
            shown = _Shown(source, translated, said)
            listed = answers.choices(translated)
            choice = gr.update(choices=listed, value=0 if listed else None)
            return said, choice, *self._details(shown, 0), shown

        nothing = gr.update(choices=[], value=None)
        return _in_words(answer, lambda sentence: (sentence, nothing, "", "", None))

    def _choose(self, index: int | None, shown: _Shown | None) -> tuple[str, str, str]:
        if shown is None or index is None:
            return "", "", ""
        return shown.said, *self._details(shown, index)

    def _details(self, shown: _Shown, index: int) -> tuple[str, str]:
        """What stands behind one of the n-best: its alignment and its attention."""
        if not shown.translated.hypotheses:
            return "", ""
        hypothesis = shown.translated.hypotheses[index]

        def explore() -> str:
            if not hypothesis.text:
                return answers.remarks(["there are no tokens to read"])
            attention = self._model.attention(shown.source, hypothesis.text)
            read = attention.predicted_tokens
            remarks = []
            if read != hypothesis.tokens[: len(read)]:
                remarks = ["the text was read in other tokens than the model has written it in"]
            frame = answers.explorer(attention, self._model.place, shown.source, hypothesis.text)
            return answers.remarks(remarks) + frame

        aligned = answers.alignment(shown.translated.source_tokens, hypothesis)
        return aligned, _in_words(explore, lambda sentence: sentence)


def _in_words(function: Callable[[], Any], failed: Callable[[str], Any]) -> Any:
    """Returns what `function` does, or `failed` of a sentence that says why it does not."""
    try:
        return function()
    except InputError as error:
        return failed(answers.failure(str(error)))
    except Exception:
        logger.exception("the page could not be answered")
        sentence = "something failed that should not have; the terminal says what"
        return failed(answers.failure(sentence))
