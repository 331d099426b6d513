"""Colours: of series, as classes of the style sheet (so that light and dark pages have their own), and of a scale."""

import numpy as np

# Classes of the style sheet.
FIRST, SECOND, THIRD, BAD, MUTED = "s1", "s2", "s3", "bad", "muted"
# Cells of a map above this quantile have the brightest colour.
_BRIGHTEST = 0.995

# Viridis (van der Walt and Smith 2015) at equal distances: even to the eye, and readable for the colour-blind.
_VIRIDIS = np.array(
    [
        (68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141),
        (39, 173, 129), (92, 200, 99), (170, 220, 50), (253, 231, 37),
    ],
    np.float64,
)  # fmt: skip


def scale_colours(shares: np.ndarray) -> np.ndarray:
    """The colours at shares of the scale from 0 to 1. Shape of `shares` plus (3,), uint8; NaN is at the bottom."""
    place = np.clip(np.nan_to_num(shares, nan=0.0), 0.0, 1.0) * (len(_VIRIDIS) - 1)
    known = np.arange(len(_VIRIDIS))
    channels = [np.interp(place, known, _VIRIDIS[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def hex_colours(shares: np.ndarray) -> list[str]:
    """The colours at shares of the scale, as `#rrggbb`."""
    return [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in scale_colours(shares).reshape(-1, 3).tolist()]


def map_pixels(density: np.ndarray) -> tuple[np.ndarray, float]:
    """A density (ny, nx), y upwards, as a picture (ny, nx, 3) uint8, and the density of its brightest colour.

    Colours go by the square root, so that low parts show; the brightest cells share a colour, so that no spike leaves
    all others dark.
    """
    positive = density[density > 0]
    top = float(np.quantile(positive, _BRIGHTEST)) if len(positive) else 1.0
    return scale_colours(np.sqrt(density[::-1] / top)), top  # the first row of a picture is its top
