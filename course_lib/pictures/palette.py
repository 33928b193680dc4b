"""One palette for every picture: the colours of ranks and of kinds of work, and the ink on them."""

# Paul Tol's vibrant scheme, safe for colour-blind readers: https://personal.sron.nl/~pault/
BLUE, ORANGE, TEAL, RED = "#0077BB", "#EE7733", "#009988", "#CC3311"
MAGENTA, CYAN, GREY = "#EE3377", "#33BBEE", "#BBBBBB"
# Two more, of his bright and high-contrast schemes, where eight ranks need a colour each.
PURPLE, YELLOW, DARK_GREY = "#AA3377", "#DDAA33", "#767676"
RANK_COLOURS = (BLUE, ORANGE, TEAL, RED, PURPLE, YELLOW, CYAN, DARK_GREY)
INK, PAPER = "#212121", "#FFFFFF"  # as JupyterLab's light theme has them
LIGHTEST = 0.5  # how much white is in the colour of a rank's last chunk of layers


def ink_on(colour: str) -> str:
    """The colour of text on `colour`: of ink and white what can be told from it better."""
    return max((INK, "white"), key=lambda ink: contrast(PAPER if ink == "white" else ink, colour))


def contrast(one: str, other: str) -> float:
    """1 to 21; words need 4.5 (WCAG 2, relative luminance)."""
    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance of "#rrggbb" from 0, black, to 1, white (WCAG 2), from which contrast is computed."""
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def rank_colour(rank: int) -> str:
    """The colour of `rank` in every picture; from the ninth on they repeat."""
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def mix(colour: str, share: float) -> str:
    """`share` (0 to 1) of `colour`, the rest paper."""
    return "#" + "".join(f"{round(share * int(colour[i:i + 2], 16) + (1 - share) * 255):02X}" for i in (1, 3, 5))
