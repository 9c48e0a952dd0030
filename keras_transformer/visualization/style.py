"""What all pictures have in common: colours, fonts, measures, and how a file is written."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib.style
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from keras_transformer.errors import InputError

INK, MUTED, LINE = "#1d2126", "#6a727c", "#2f6db0"  # those of the pages
DPI = 110

# From white to dark blue in even steps of lightness (CIELAB's L*, from 100 to 21).
WEIGHTS = LinearSegmentedColormap.from_list(
    "weights",
    [
        (0.0, "#ffffff"), (0.171, "#c6dbef"), (0.265, "#9ecae1"), (0.402, "#6baed6"),
        (0.533, "#4292c6"), (0.68, "#2171b5"), (0.826, "#08519c"), (1.0, "#08306b"),
    ],
)  # fmt: skip
SIGNED = "PuOr"  # white at 0; told apart by those who see no red or no green

# For what DejaVu Sans, which matplotlib brings, has no signs for; those of them that are there.
_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "WenQuanYi Zen Hei",
    "IPAexGothic", "NanumGothic", "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Thai",
    "Noto Sans Hebrew", "Noto Sans Arabic", "Noto Sans Tamil", "FreeSans", "Unifont",
)  # fmt: skip


@functools.cache
def _families() -> list[str]:
    known = {entry.name for entry in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in _FONTS if name in known)]


@contextlib.contextmanager
def pictures() -> Iterator[None]:
    """Gives matplotlib the project's style, in the block or in the function that it decorates."""
    changes = {
        "font.family": _families(),
        "font.size": 8,
        "axes.edgecolor": MUTED,
        "axes.linewidth": 0.5,
        "axes.labelcolor": MUTED,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "text.color": INK,
        # A token may be of the signs that begin mathematics.
        "text.parse_math": False,
    }
    with matplotlib.style.context(["default", changes]):
        yield


def text_width(labels: Sequence[str], points: float) -> float:
    """Returns the inches of the widest label in a font of so many points."""
    renderer = FigureCanvasAgg(Figure(dpi=DPI)).get_renderer()
    font = font_manager.FontProperties(family=_families(), size=points)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # signs that no font has
        return max(
            (renderer.get_text_width_height_descent(label, font, False)[0] / DPI
             for label in labels if label), default=0.0,
        )  # fmt: skip


def axes_at(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Adds axes of a size, at a place from the upper left corner, all in inches."""
    w, h = figure.get_size_inches()
    return figure.add_axes((left / w, 1 - (top + height) / h, width / w, height / h))


def title(figure: Figure, text: str, note: str = "") -> None:
    """Writes a title and a line below it."""
    w, h = figure.get_size_inches()
    for line, inches, size, color, weight in (
        (text, 0.1, 10, INK, "bold"),
        (note, 0.3, 8, MUTED, "normal"),
    ):
        figure.text(
            0.1 / w, 1 - inches / h, line, fontsize=size, color=color, fontweight=weight, va="top"
        )


def color_bar(figure: Figure, image: AxesImage, left: float, top: float, height: float) -> Colorbar:
    """Adds a scale of an image's colours, at a place from the upper left corner in inches."""
    bar = figure.colorbar(image, cax=axes_at(figure, left, top, 0.1, height))
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2, labelsize=8)
    return bar


def write_png(figure: Figure, path: Path) -> set[str]:
    """Writes a picture, and returns the signs in it that no font here has.

    Raises:
        InputError: where it cannot be written.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            figure.savefig(path, dpi=DPI, metadata={"Software": None})
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror})") from error
    missing = set()
    for warning in caught:
        words = str(warning.message).split()
        if words[:1] != ["Glyph"]:  # "Glyph 22909 (\N{CJK …}) missing from font(s) DejaVu Sans."
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        else:
            missing.add(chr(int(words[1])))
    return missing
