"""The colours of ranks and of kinds of work, the ink on them, and what the roles of a scene's marks look like.

Roles are one table for both painters, and for paper of both themes. A colour is "#RRGGBB", the same everywhere, or the
name of one that depends on the paper: the matplotlib painter takes its value on white, the browser a variable of the
style sheet that `style_sheet` writes from the same table.
"""

from __future__ import annotations

from dataclasses import dataclass

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


FROM_THEME = {"ink": (INK, "--jp-content-font-color1"), "paper": (PAPER, "--jp-layout-color0")}
ON_LIGHT_AND_DARK = {"accent": (BLUE, "#2E9BE6"), "alarm": (RED, "#FF7A5C")}
ON_PAPER = {  # so much of a colour, the rest paper
    "quiet": ("ink", 0.74), "line": ("ink", 0.3), "other": ("ink", 0.3), "room": ("ink", 0.17), "trough": ("ink", 0.13),
    "hollow": ("ink", 0.06), "pale": ("alarm", 0.07), "stripe": ("alarm", 0.6), "pale-alarm": ("alarm", 0.55),
}


@dataclass(frozen=True)
class Role:
    """The look of rectangles, lines and texts of one role. Lengths are in the scene's units.

    fill: of rectangles and letters. stroke, stroke_width, dashed: of outlines and lines; with `striped` the stroke is
    that of stripes inside; a curve with `head` ends in one of an arrow. size, bold: of letters; `halo` keeps what lies
    behind them away.
    """

    fill: str = "none"
    stroke: str = "none"
    stroke_width: float = 0.0
    dashed: bool = False
    striped: bool = False
    head: bool = False
    size: float = 0.0
    bold: bool = False
    halo: bool = False


def box(fill: str) -> Role:
    """A filled box with a thin line of paper around it."""
    return Role(fill, "paper", 0.8)


def words(fill: str, size: float = 13.0, bold: bool = False, halo: bool = False) -> Role:
    """Text; `size` in units of the scene, `halo` draws paper around the letters."""
    return Role(fill, size=size, bold=bold, halo=halo)


ROLES = {
    # what a rank does
    "forward": box(BLUE), "backward": box(ORANGE), "weights": box(TEAL),
    "compute": box(BLUE), "work": box(ORANGE), "late": box(YELLOW), "message": box(MAGENTA),
    "idle": Role("pale", "stripe", 1.6, striped=True),
    "stuck": Role("paper", "quiet", 1.2, dashed=True), "wrong": Role("paper", "alarm", 2.0, dashed=True),
    "lane": Role("paper"),
    # what a device holds, and has
    "parameters": box(BLUE), "gradients": box(ORANGE), "optimizer state": box(TEAL), "activations": box(MAGENTA),
    "on the host": Role("hollow", "other", 1.6, striped=True), "room": Role("room"), "spare": Role("hollow"),
    # what belongs to a rank, or to an expert
    **{f"rank {rank}": box(colour) for rank, colour in enumerate(RANK_COLOURS)},
    **{f"buffer of rank {rank}": Role("paper", colour, 2.5) for rank, colour in enumerate(RANK_COLOURS)},
    # a place in a buffer, one with nothing in it, and what has just arrived
    "cell": Role("paper", "line", 1.0), "empty": Role("hollow", "line", 1.0), "arrived": Role("paper", "ink", 2.0),
    **{f"rank {rank} arrived": Role(colour, "ink", 2.0) for rank, colour in enumerate(RANK_COLOURS)},
    # bars beside one another, and more than there had to be
    "present": Role("accent"), "other": Role("other"), "trough": Role("trough"),
    "too much": Role("alarm"), "too much of other": Role("pale-alarm"),
    # lines
    "axis": Role(stroke="line", stroke_width=1.4), "limit": Role(stroke="alarm", stroke_width=2.0),
    "bound": Role(stroke="ink", stroke_width=1.2, dashed=True),
    "way": Role(), "track": Role(stroke="quiet", stroke_width=1.2, head=True),
    "arrow": Role(stroke="ink", stroke_width=1.4, head=True),
    # words
    "title": words("ink", 21, bold=True),
    "label": words("ink"), "small": words("ink", 11.5), "strong": words("ink", 11.5, bold=True),
    "verdict": words("ink", 12, bold=True, halo=True), "refusal": words("alarm", 12, halo=True),
    "quiet": words("quiet", 11.5), "finding": words("alarm", 12, bold=True), "alarm": words("alarm", 11.5),
    "on dark": words("#FFFFFF", 11), "on light": words(INK, 11),
}


def on_white(colour: str) -> str:
    """The colour as matplotlib takes it, on white paper."""
    if colour in ON_PAPER:
        name, share = ON_PAPER[colour]
        return mix(on_white(name), share)
    return {**FROM_THEME, **ON_LIGHT_AND_DARK}.get(colour, (colour,))[0]


def css(colour: str) -> str:
    """The colour as the browser takes it, under a style sheet of `style_sheet`."""
    return colour if colour.startswith("#") or colour == "none" else f"var(--{colour})"


def style_sheet(scope: str, in_dark: str) -> str:
    """Variables and one class for each role, below the selector `scope`; `in_dark` is the same in a dark theme."""
    variables = {name: f"var({theme}, {light})" for name, (light, theme) in FROM_THEME.items()}
    variables |= {name: light for name, (light, _) in ON_LIGHT_AND_DARK.items()}
    variables |= {name: f"color-mix(in srgb, {css(colour)} {100 * share:g}%, var(--paper))"
                  for name, (colour, share) in ON_PAPER.items()}
    dark = {name: dark for name, (_, dark) in ON_LIGHT_AND_DARK.items()}
    rules = [rule(scope, {f"--{name}": value for name, value in variables.items()}),
             rule(in_dark, {f"--{name}": value for name, value in dark.items()})]
    return "\n".join(rules + [rule(f"{scope} svg .{css_class(name)}", declarations(role))
                              for name, role in ROLES.items()])


def for_javascript() -> dict[str, dict[str, str | float]]:
    """What painter.js has to know of each role beyond its class: the fill that a tint lightens, stripes and heads."""
    return {name: {"class": css_class(name), "fill": css(role.fill),
                   **({"stripes": css(role.stroke), "stripesWidth": role.stroke_width} if role.striped else {}),
                   **({"head": css(role.stroke)} if role.head else {})}
            for name, role in ROLES.items()}


def css_class(role: str) -> str:
    """The class that a mark of this role has in the browser."""
    return f"role-{role.replace(' ', '-')}"


def declarations(role: Role) -> dict[str, str]:
    """The CSS of a role, property by property; {} for stripes, which painter.js makes."""
    if role.striped:  # painter.js makes the stripes: a pattern has to lie in the picture that it fills
        return {}
    look = {"fill": css(role.fill)}
    if role.stroke != "none":
        look |= {"stroke": css(role.stroke), "stroke-width": f"{role.stroke_width:g}px"}
    if role.dashed:
        look["stroke-dasharray"] = "4 3"
    if role.size:
        look |= {"font-size": f"{role.size:g}px", "font-weight": "700" if role.bold else "400"}
    if role.halo:
        look |= {"paint-order": "stroke", "stroke": "var(--paper)", "stroke-width": "4px"}
    return look


def rule(selector: str, look: dict[str, str]) -> str:
    """One CSS rule as text."""
    return f"{selector} {{ {' '.join(f'{name}: {value};' for name, value in look.items())} }}"
