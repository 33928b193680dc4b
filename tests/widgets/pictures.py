"""Look into a PNG: its size, and how much there is to see."""

import io

import numpy as np
from matplotlib.image import imread


def size_and_colours(png: bytes) -> tuple[tuple[int, int], int]:
    """((width, height), how many different colours cover at least 20 pixels each, white included)."""
    pixels = (imread(io.BytesIO(png), format="png")[..., :3] * 255).round().astype(int)
    codes = pixels[..., 0] * 65536 + pixels[..., 1] * 256 + pixels[..., 2]
    _, counts = np.unique(codes, return_counts=True)
    return (codes.shape[1], codes.shape[0]), int((counts >= 20).sum())
