"""The page: a sentence in, for each model its n-best, and of one of them what stands behind it."""

from __future__ import annotations

import importlib.resources
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when it is loaded: it calls home

import gradio as gr

from keras_transformer.config import MAX_LENGTH_PENALTY
from keras_transformer.errors import InputError
from keras_transformer.playground import answers
from keras_transformer.playground.models import PlaygroundModel, Translated

logger = logging.getLogger(__name__)

TITLE = "Playground"
# Fonts of the machine itself: those of Gradio's own themes are fetched from elsewhere.
_FONTS = ("system-ui", "sans-serif")
_MONOSPACED = ("ui-monospace", "monospace")


def build_page(models: Sequence[PlaygroundModel], examples: Sequence[str] = ()) -> gr.Blocks:
    """Returns the page.

    Args:
        models: one, or two that are compared, side by side.
        examples: sentences to choose from.
    """
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as page:
        source = gr.Textbox(label="Source", lines=2, max_lines=8, autofocus=True, elem_id="source")
        with gr.Accordion("Settings", open=False):
            prefix = gr.Textbox(label="The translation begins with", elem_id="prefix")
            penalty = gr.Number(
                label=f"Length penalty α, 0 to {MAX_LENGTH_PENALTY:g}; empty: the model's own",
                value=None, minimum=0, maximum=MAX_LENGTH_PENALTY, step=0.1, elem_id="penalty",
            )  # fmt: skip
        button = gr.Button("Translate", variant="primary", elem_id="translate")
        if examples:
            gr.Examples([[each] for each in examples], [source])
        with gr.Row():
            for number, model in enumerate(models):
                with gr.Column():
                    _add_model(
                        model, number, [source, prefix, penalty], [button.click, source.submit]
                    )
    return page


def serve(page: gr.Blocks, host: str, port: int, *, open_browser: bool, block: bool = True) -> str:
    """Serves the page, until it is interrupted if it is to block; returns its address.

    Raises:
        InputError: where the port cannot be had.
    """
    style = importlib.resources.files(__package__).joinpath("page.css").read_text("utf-8")
    page.queue(default_concurrency_limit=2)
    try:
        _, address, _ = page.launch(
            server_name=host, server_port=port or None, inbrowser=open_browser, quiet=True,
            prevent_thread_lock=not block, share=False, ssr_mode=False, footer_links=[],
            theme=gr.themes.Default(font=_FONTS, font_mono=_MONOSPACED), css=style,
        )  # fmt: skip
    except OSError as error:
        raise InputError(f"{host}:{port} cannot be listened at ({error})") from error
    return str(address)


def _add_model(model: PlaygroundModel, number: int, inputs: list[Any], triggers: list[Any]) -> None:
    """Adds what is seen of one model, and what fills it."""
    gr.Markdown(f"### {_escaped(model.place)}")
    said = gr.HTML(elem_id=f"said-{number}")
    n_best = gr.Radio(
        label="n-best, with scores", choices=[], elem_id=f"n-best-{number}", elem_classes="n-best"
    )
    with gr.Tabs():
        with gr.Tab("Alignment"):
            alignment = gr.HTML(elem_id=f"alignment-{number}")
        with gr.Tab("Attention"):
            attention = gr.HTML(elem_id=f"attention-{number}")
    state = gr.State(None)  # the source and what was found for it
    details = [alignment, attention]

    def translate(source: str, prefix: str | None, penalty: float | None) -> tuple[Any, ...]:
        start = time.perf_counter()
        translated = model.translate(source, prefix or "", penalty)
        took = f"{1000 * (time.perf_counter() - start):,.0f} ms"
        status = f'<p class="legend">{took}</p>{answers.remarks(translated.remarks)}'
        listed = answers.choices(translated)
        shown = gr.update(choices=listed, value=0 if listed else None)
        return status, shown, *_details(model, source, translated, 0), (source, translated)

    def choose(index: int | None, state: tuple[str, Translated] | None) -> tuple[Any, ...]:
        if state is None or index is None:
            return "", "", ""
        return "", *_details(model, *state, index)

    nothing = ("", gr.update(choices=[], value=None), "", "", None)
    gr.on(
        triggers, _in_words(translate, nothing), inputs, [said, n_best, *details, state],
        api_name=f"translate_{number}",
    )  # fmt: skip
    n_best.input(
        _in_words(choose, ("", "", "")), [n_best, state], [said, *details], api_visibility="private"
    )


def _details(
    model: PlaygroundModel, source: str, translated: Translated, index: int
) -> tuple[str, str]:
    """What stands behind one of the n-best: its alignment and its attention."""
    if not translated.hypotheses:
        return "", ""
    hypothesis = translated.hypotheses[index]
    attention = model.attention(source, hypothesis.text)
    return (
        answers.alignment(translated.source_tokens, hypothesis),
        answers.explorer(attention, model.place, source, hypothesis.text),
    )


def _in_words(
    function: Callable[..., tuple[Any, ...]], nothing: tuple[Any, ...]
) -> Callable[..., tuple[Any, ...]]:
    """Makes an error of `function` a sentence in its first output, and `nothing` of the others."""

    def guarded(*arguments: Any) -> tuple[Any, ...]:
        try:
            return function(*arguments)
        except InputError as error:
            return answers.failure(f"{error}"), *nothing[1:]
        except Exception:
            logger.exception("the page could not be answered")
            sentence = "something failed that should not have; the terminal says what"
            return answers.failure(sentence), *nothing[1:]

    return guarded


def _escaped(place: str) -> str:
    return "".join(f"\\{sign}" if sign in r"\`*_{}[]<>()#+-.!|~" else sign for sign in place)
