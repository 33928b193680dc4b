"""One palette for every picture: the colours of ranks and of kinds of work, and the ink on them."""

# Paul Tol's vibrant scheme, safe for colour-blind readers: https://personal.sron.nl/~pault/
BLUE, ORANGE, TEAL, RED = "#0077BB", "#EE7733", "#009988", "#CC3311"
MAGENTA, CYAN, GREY = "#EE3377", "#33BBEE", "#BBBBBB"
# Two more, of his bright and high-contrast schemes, where eight ranks need a colour each.
PURPLE, YELLOW, DARK_GREY = "#AA3377", "#DDAA33", "#777777"
RANK_COLOURS = (BLUE, ORANGE, TEAL, RED, PURPLE, YELLOW, CYAN, DARK_GREY)
INK, PAPER = "#212121", "#FFFFFF"  # as JupyterLab's light theme has them


def ink_on(colour: str) -> str:
    """The colour of text on `colour`."""
    return INK if colour in (GREY, CYAN, ORANGE, YELLOW) else "white"


def rank_colour(rank: int) -> str:
    """The colour of `rank` in every picture; from the ninth on they repeat."""
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def mixed(colour: str, share: float, with_colour: str = PAPER) -> str:
    """`share` (0 to 1) of `colour`, the rest of the other."""
    parts = [(int(colour[i:i + 2], 16), int(with_colour[i:i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(share * one + (1 - share) * other):02X}" for one, other in parts)
