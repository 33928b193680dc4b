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


def scene_with(kind, parameters):
    """What there is to see with `parameters`; those not given are as in a new widget, which nobody makes for it."""
    traits = {name: kind.class_traits()[name] for name in kind.controls}
    return kind.draw(kind.check_settings({name: parameters.get(name, trait.default_value)
                                          for name, trait in traits.items()}))


def values_of(widget):
    """The values of each control of the widget, by parameter, where the others stay as they are."""
    return {name: list(dict.fromkeys(choice.change[name] for choice in control.choices if name in choice.change))
            for control in widget.list_controls(widget.settings()) for name in control.names}
