"""The style of all figures: one text size, the page width, and the colors of the explorer's light theme."""

import math
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cache import memoize
from regard.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

TEXT_SIZE_PT = 10.0
PAGE_WIDTH_IN = 6.0  # a figure of this width fills the text column of a page
PAGE_DPI = 120  # shows a figure of PAGE_WIDTH_IN with the 700 pixels of a text column

PAPER_COLOR = "#ffffff"
INK_COLOR, MUTED_COLOR, LINE_COLOR = "#1b1d22", "#5a606c", "#e3dfd6"

# The first four are distinct for color-blind readers. All differ in lightness or hue, and can be read as text.
CURVE_COLORS = ("#2456c7", "#c05c12", "#06452f", "#8f3f80", "#787d87", "#1b1d22", "#3f8fbf", "#8a7a10")
HIDDEN_COLOR, PARTIAL_COLOR, VISIBLE_COLOR = "#f1efe9", "#8fb3ef", "#2456c7"
NONFINITE_COLOR = "#c05c12"
OVERLAY_COLOR = "#ff8a1f"  # of weights over an image in gray
CELL_BORDER_COLOR = "#ffffff"
RAMP_SIZE = 256
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def require_matplotlib() -> None:
    """Raise `MissingDependencyError` if matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401  # only checks that it can be imported
    except ImportError as error:
        raise MissingDependencyError(
            f"regard.plot needs matplotlib; got: {error}. Install it with pip install 'regard[plot]'."
        ) from None


@memoize()
def sequential_colormap() -> "ListedColormap":
    """Return the colormap of weights: more is darker. It is the palette "ink" of the explorer."""
    from matplotlib.colors import ListedColormap

    return ListedColormap([_ink(n / (RAMP_SIZE - 1)) for n in range(RAMP_SIZE)], name="ink")


@memoize()
def diverging_colormap() -> "ListedColormap":
    """Return the colormap of signed values: blue below 0, orange above."""
    from matplotlib.colors import ListedColormap

    return ListedColormap([_difference(n / (RAMP_SIZE - 1)) for n in range(RAMP_SIZE)], name="difference")


def _ink(t: float) -> tuple[float, float, float]:
    chroma = 0.012 + 0.2 * math.sin(math.pi * t**0.85) * (1 - 0.35 * t) + 0.06 * t
    return _oklch_to_rgb(0.985 - 0.665 * t, chroma, 262)


def _difference(t: float) -> tuple[float, float, float]:
    distance = abs(2 * t - 1)
    return _oklch_to_rgb(0.985 + (0.45 - 0.985) * distance, 0.19 * distance**0.8, 255 if t < 0.5 else 50)


def _oklch_to_rgb(lightness: float, chroma: float, hue: float) -> tuple[float, float, float]:
    """Convert OKLCH (hue in degrees) to red, green and blue from 0 to 1 (Ottosson, 2020)."""
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3  # the cone responses l, m and s
    m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3
    return (
        _srgb(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
        _srgb(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
        _srgb(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
    )


def _srgb(x: float) -> float:
    encoded = 12.92 * x if x <= 0.0031308 else 1.055 * x ** (1 / 2.4) - 0.055
    return min(1.0, max(0.0, encoded))


def text_color_on(color: Any) -> str:
    """Return black or white, whichever is easier to read on a color (red, green, blue, ...)."""
    lightness = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2]
    return INK_COLOR if lightness > 0.55 else "#ffffff"


def new_figure(width: float, height: float, layout: str = "constrained") -> "Figure":
    """Return an empty figure of width x height inches. Opens no window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout, facecolor=PAPER_COLOR)  # type: ignore[arg-type]  # one of the allowed strings
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)  # type: ignore[union-attr,call-arg]  # both layouts have these parameters
    return figure


def save_for_page(figure: "Figure", path: Path) -> None:
    """Write a PNG for a page of the documentation. The text of all pictures has the same size there.

    A browser scales a picture of the full width to the column, so that it may have twice as many pixels. The file does
    not have the version of matplotlib, so that the same picture has the same bytes.
    """
    from PIL import Image

    is_full_width = figure.get_figwidth() >= PAGE_WIDTH_IN
    pixels = BytesIO()
    figure.savefig(pixels, dpi=PAGE_DPI * (2 if is_full_width else 1), metadata={"Software": None})
    image = Image.open(pixels).convert("RGB").quantize(256, dither=Image.Dither.NONE)  # a third of the bytes
    image.save(path, optimize=True)


def apply_style(figure: "Figure") -> "Figure":
    """Set the text size, the text colors, the ticks and the frames of all axes of a figure, and return the figure."""
    from matplotlib.text import Text

    for axes in figure.axes:
        axes.tick_params(which="both", labelsize=TEXT_SIZE_PT, labelcolor=MUTED_COLOR, color=LINE_COLOR)
        axes.xaxis.label.set_color(MUTED_COLOR)
        axes.yaxis.label.set_color(MUTED_COLOR)
        for spine in axes.spines.values():
            spine.set_color(LINE_COLOR)
    for text in figure.findobj(Text):
        text.set_fontsize(TEXT_SIZE_PT)
    return figure


def style_chart(axes: "Axes") -> None:
    """Draw a chart with two axis lines and a light grid behind the curves."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(color=LINE_COLOR, linewidth=0.6)
    axes.set_axisbelow(True)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            _style_log_axis(axis)
        elif axis.get_scale() == "linear":
            axis.get_major_locator().set_params(nbins=6)  # type: ignore[call-arg]  # of a linear axis


def _style_log_axis(axis: "Axis") -> None:
    """Label powers of ten only, or numbers between them if the axis spans less than two of them."""
    from matplotlib.ticker import FuncFormatter, LogFormatterMathtext, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    is_short = high / low < 100
    subs = (1,) if not is_short else (1, 3) if high / low > 12 else (1, 2, 5)
    axis.set_major_locator(LogLocator(subs=subs, numticks=8 if is_short else 6))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}") if is_short else LogFormatterMathtext())
    axis.set_minor_formatter(NullFormatter())


def set_title(axes: "Axes", title: str, width: float) -> None:
    """Set the title of one panel above its left end, in lines of at most `width` inches."""
    text = wrap_text(title, width, "bold")
    axes.set_title(text, x=0.0, ha="left", fontweight="bold", color=INK_COLOR, parse_math=False)


def wrap_text(text: str, width: float, weight: str = "normal") -> str:
    """Break a text into as few lines of at most `width` inches as possible, of about equal lengths."""
    unbroken = text.replace(" = ", "\u00a0=\u00a0").replace(" ± ", "\u00a0±\u00a0")
    lines = _break_lines(unbroken, width, weight)
    for fraction in (0.5, 0.6, 0.7, 0.8, 0.9):
        balanced = _break_lines(unbroken, fraction * width, weight)
        if len(balanced) == len(lines) and max(text_width(line, weight) for line in balanced) <= width:
            lines = balanced
            break
    return "\n".join(lines).replace("\u00a0", " ")


def _break_lines(text: str, width: float, weight: str) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        line = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(line, weight) > width:
            lines.append(word)
        else:
            lines[-1] = line
    return lines


def power_of_ten(value: float) -> str:
    """Return a number with one digit and a power of ten.

    >>> power_of_ten(2.3e-8), power_of_ten(41_000), power_of_ten(0.0)
    ('2·10⁻⁸', '4·10⁴', '0')
    """
    if value == 0:
        return "0"
    digit, exponent = f"{value:.0e}".split("e")
    return f"{digit}·10{str(int(exponent)).translate(SUPERSCRIPTS)}"


@memoize(max_entries=1024)
def text_width(text: str, weight: str = "normal") -> float:
    """Return the width of one line of text in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    if not text.strip():
        return 0.0
    font = FontProperties(weight=weight)
    return float(TextPath((0, 0), text.replace("$", r"\$"), size=TEXT_SIZE_PT, prop=font).get_extents().width) / 72
