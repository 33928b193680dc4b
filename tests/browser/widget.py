"""One widget on a page, as the browser tests drive it and look at it. No pytest here."""

import io
import json
from dataclasses import dataclass

import numpy as np
from matplotlib.image import imread
from playwright.sync_api import Locator

from course_lib.pictures.palette import contrast
from tools.harness.browser import LabNotebook

# The marks of a painted scene as scene.py has them, in the order of painting.
PAINTED = r"""(picture) => [...picture.querySelectorAll(":scope > [data-key]")].map((node) => {
    const numbers = { rect: ["x", "y", "width", "height"], line: ["x1", "y1", "x2", "y2"], text: ["x", "y"],
        path: ["d"] };
    const title = node.querySelector("title")?.textContent ?? "";
    const at = numbers[node.tagName].flatMap((name) => node.getAttribute(name).match(/[-.0-9]+/g).map(Number));
    return { kind: node.tagName === "path" ? "curve" : node.tagName, key: node.dataset.key, at,
        class: node.getAttribute("class"), shares: /-shares-(\d+)/.exec(node.style.fill)?.[1] ?? "",
        text: node.tagName === "text" ? node.textContent : "", anchor: node.getAttribute("text-anchor") ?? "start",
        hint: title, tinted: node.style.fill.startsWith("color-mix") };
})"""
# [colour of the words, colour below them] as [r, g, b], of every word in the widget.
COLOURS = """(root) => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgb = (colour) => {
        canvas.fillStyle = "white";
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const paper = getComputedStyle(root).backgroundColor;
    const boxes = [...root.querySelectorAll("svg rect")].map((node) => [node, node.getBoundingClientRect()]);
    const below = (node) => {
        const word = node.getBoundingClientRect();
        const [x, y] = [(word.left + word.right) / 2, (word.top + word.bottom) / 2];
        const under = boxes.filter(([box, at]) => at.left <= x && x <= at.right && at.top <= y && y <= at.bottom
            && node.compareDocumentPosition(box) & Node.DOCUMENT_POSITION_PRECEDING
            && !["none", "transparent"].includes(getComputedStyle(box).fill));
        const fill = under.length ? getComputedStyle(under.at(-1)[0]).fill : paper;
        return fill.startsWith("url") ? paper : fill;
    };
    const words = [...root.querySelectorAll("svg text")].filter((node) => node.textContent)
        .map((node) => [getComputedStyle(node).fill, below(node)]);
    const rest = [...root.querySelectorAll(".headline, .detail, label, output")]
        .map((node) => [getComputedStyle(node).color, paper]);
    return [...new Set([...words, ...rest].map((pair) => pair.join(" on ")))]
        .map((pair) => pair.split(" on ").map(rgb));
}"""
# The name of a control as its label or the control itself says it.
NAME = '(node) => node.labels?.[0]?.textContent.trim() || node.getAttribute("aria-label")'
# Ids that stand twice; labels whose control, and fills whose pattern, are missing or another widget's.
TWO_IDS = """() => {
    const ids = [...document.querySelectorAll(".explorable [id]")].map((node) => node.id);
    return ids.filter((id) => document.querySelectorAll(`[id="${id}"]`).length > 1);
}"""
ASTRAY = """(root) => {
    const labels = [...root.querySelectorAll("label")].filter((label) => !root.contains(label.control));
    const fills = [...root.querySelectorAll("svg *")].map((node) => [node, /url\\("?#(.*?)"?\\)/.exec(node.style.fill)])
        .filter(([node, found]) => found && !node.closest("svg").contains(document.getElementById(found[1])));
    return [...labels.map((label) => label.textContent), ...fills.map(([, found]) => found[1])];
}"""
# The smallest letters of the picture in pixels of the screen.
SMALLEST = """(picture) => {
    const scale = picture.getBoundingClientRect().width / picture.viewBox.baseVal.width;
    const sizes = [...picture.querySelectorAll("text")].filter((node) => node.textContent)
        .map((node) => scale * parseFloat(getComputedStyle(node).fontSize));
    return Math.min(...sizes);
}"""
# What moves a slider or a chooser, by whether it stands at its end.
KEYS = {"input": {False: "ArrowRight", True: "ArrowLeft"}, "select": {False: "ArrowDown", True: "ArrowUp"}}
AT_ITS_END = """(node) => (node.tagName === "SELECT" ? node.selectedIndex + 1 >= node.options.length
    : Number(node.value) >= Number(node.max))"""
# Words of the picture that reach beyond its edges, and pairs of words that cover one another.
CROWDED = """(picture) => {
    const frame = picture.getBoundingClientRect();
    const words = [...picture.querySelectorAll("text")].filter((node) => node.textContent)
        .map((node) => [node.textContent, node.getBoundingClientRect()]);
    const outside = words.filter(([, at]) => at.left < frame.left - 1 || at.right > frame.right + 1
        || at.top < frame.top - 1 || at.bottom > frame.bottom + 1).map(([text]) => text);
    const pairs = words.flatMap(([text, a], number) => words.slice(number + 1)
        .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top + 3 < b.bottom - 3
            && b.top + 3 < a.bottom - 3)
        .map(([other]) => `${text} / ${other}`));
    return [...outside, ...pairs];
}"""


@dataclass
class Widget:
    """The widget that the cell at `number` shows, counted from the cell after the imports. Pictures go by their key.

    root: where it is, where several notebooks are open.
    """

    notebook: LabNotebook
    number: int
    root: Locator | None = None

    def __post_init__(self) -> None:
        self.page = self.notebook.page
        self.root = self.root or self.notebook.cell(1 + self.number).locator(".explorable")
        self.root.wait_for()

    @property
    def picture(self) -> Locator:
        return self.root.locator(".picture > svg")

    def control(self, name: str) -> Locator:
        return self.root.get_by_label(name, exact=True)

    def press(self, name: str, key: str) -> None:
        self.control(name).focus()
        self.page.keyboard.press(key)

    def type(self, name: str, text: str) -> None:
        self.control(name).focus()
        self.page.keyboard.type(text)

    def move(self, name: str, kind: str) -> None:
        """A slider ("input") or chooser ("select") one step on, or back from its end, by a key."""
        self.press(name, KEYS[kind][self.control(name).evaluate(AT_ITS_END)])

    def wait_for(self, key: str) -> None:
        """Until this picture stands still."""
        self.root.locator(f"svg[data-key={json.dumps(key)}]:not([data-moving])").wait_for(timeout=20_000)

    def key(self) -> str:
        return self.picture.get_attribute("data-key")

    def wait_for_another(self, key: str) -> None:
        other = f":not([data-key={json.dumps(key)}])"
        self.root.locator(f".picture > svg{other}:not([data-moving])").wait_for(timeout=20_000)

    def texts(self) -> list[str]:
        return self.root.locator("svg text").all_text_contents()

    def headline(self) -> str:
        return self.root.locator(".headline").text_content()

    def tab_order(self, first: str, number: int) -> list[str]:
        """The names of what Tab reaches from the control `first` on, that one included; all keep their keys."""
        self.control(first).focus()
        reached = []
        for _ in range(number):
            reached.append(self.page.evaluate(f"({NAME})(document.activeElement)"))
            assert self.page.evaluate("'lmSuppressShortcuts' in document.activeElement.dataset"), reached[-1]
            self.page.keyboard.press("Tab")
        return reached

    def painted(self) -> list[dict]:
        return self.picture.evaluate(PAINTED)

    def crowded(self) -> list[str]:
        return self.picture.evaluate(CROWDED)

    def contrasts(self) -> list[float]:
        """Contrast of words with what lies below them (WCAG 2)."""
        return [contrast(*("#{:02X}{:02X}{:02X}".format(*colour) for colour in pair))
                for pair in self.root.evaluate(COLOURS)]

    def stripes_are_painted(self) -> bool:
        """Whether the largest idle place has stripes on the screen: several colours, and not nearly white."""
        boxes = [box.bounding_box() for box in self.root.locator(".picture .role-idle").all()]
        largest = max(boxes, key=lambda box: box["width"] * box["height"])
        inner = {"x": largest["x"] + 3, "y": largest["y"] + 3, "width": largest["width"] - 6,
                 "height": largest["height"] - 6}
        pixels = imread(io.BytesIO(self.page.screenshot(clip=inner)))[..., :3]
        return len(np.unique(pixels.reshape(-1, 3), axis=0)) > 2 and pixels.min(axis=2).mean() < 0.97


def controls_of(widget: Widget) -> list[tuple[str, str]]:
    """(name, whether it is a slider, a chooser or a button) of what can be used, in the order of the page."""
    return widget.root.locator(".controls").evaluate(f"""(controls) =>
        [...controls.querySelectorAll("input, select, button")]
            .filter((node) => !node.disabled && node.checkVisibility())
            .map((node) => [({NAME})(node), node.tagName.toLowerCase()])""")
