"""Pictures of 32 x 32 weights as PNG files, in the colors of `regard.plot`."""

import struct
import zlib
from base64 import b64encode

import numpy as np
from torch import Tensor

from regard.mechanisms.weight_matrices import COLOR_LEVELS, color_levels
from regard.plot.style import PARTIAL_COLOR, VISIBLE_COLOR

ZERO_COLOR = "#f6f5f1"
POSITIVE_COLORS = "#dce9f3", PARTIAL_COLOR, VISIBLE_COLOR, "#062b47"
NEGATIVE_COLORS = "#fbe6d8", "#eba375", "#b34d00"


def picture_uri(weights: Tensor) -> str:
    """Return the picture of a matrix of weights as a data URI."""
    return f"data:image/png;base64,{b64encode(png(color_levels(weights), PALETTE)).decode()}"


def _ramp(colors: tuple[str, ...]) -> np.ndarray:
    stops = np.array([list(bytes.fromhex(color[1:])) for color in colors])
    positions = np.linspace(0, len(colors) - 1, COLOR_LEVELS)
    channels = [np.interp(positions, range(len(colors)), stops[:, channel]) for channel in range(3)]
    return np.rint(np.stack(channels, axis=1)).astype(np.uint8)


PALETTE = np.concatenate([_ramp((ZERO_COLOR,))[:1], _ramp(POSITIVE_COLORS), _ramp(NEGATIVE_COLORS)])


def png(indices: np.ndarray, palette: np.ndarray) -> bytes:
    """Return a PNG file of palette indices of shape (height, width)."""
    height, width = indices.shape
    rows = np.pad(indices, ((0, 0), (1, 0)))  # each row starts with its filter, 0 for none
    chunks = (
        (b"IHDR", struct.pack(">2I5B", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette.tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
