"""Widgets in a real JupyterLab: from the key to new pixels, and the frames of an animation.

Ours and theirs are cells of the same notebook on the same page. Times are the page's own clock.
"""

import atexit
import tempfile
from functools import cache
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import sync_playwright

from benchmarks.harness import Work, benchmark
from tests.browser.lab import CHROMIUM_FLAGS, LabNotebook, LabServer, find_chromium
from tools.notebooks import METADATA

IMPORTS = """\
import ipywidgets
from IPython.display import Image, display
from course_lib.pictures.figures import to_png
from course_lib.widgets import RingAllReduce"""
OURS = "RingAllReduce(num_ranks=4)"
THEIRS = """\
def draw(num_ranks):
    display(Image(to_png(RingAllReduce(num_ranks=num_ranks).picture())))

slider = ipywidgets.IntSlider(4, 2, 8)
display(slider, ipywidgets.interactive_output(draw, {"num_ranks": slider}))"""

# Resolves to the milliseconds from the next keydown inside `root` until another picture is there and painted.
TIME_TO_PIXELS = """(root) => {
    const shown = () => root.querySelector(".picture svg")?.dataset.key ?? root.querySelector("img")?.src;
    const before = shown();
    let pressed = null;
    window.took = null;
    root.addEventListener("keydown", () => { pressed = performance.now(); }, { capture: true, once: true });
    const observer = new MutationObserver(async () => {
        if (shown() === before || shown() === undefined || pressed === null) return;
        observer.disconnect();
        await root.querySelector("img")?.decode();
        requestAnimationFrame(() => setTimeout(() => { window.took = performance.now() - pressed; }));
    });
    observer.observe(root, { childList: true, subtree: true, attributes: true, attributeFilter: ["src", "data-key"] });
}"""
# Milliseconds a frame, over two seconds.
TIME_FRAMES = """() => new Promise((resolve) => {
    let first = null;
    let frames = 0;
    const next = (now) => {
        first ??= now;
        if (now - first >= 2000) resolve((now - first) / frames);
        else { frames += 1; requestAnimationFrame(next); }
    };
    requestAnimationFrame(next);
})"""


@cache
def opened() -> LabNotebook:
    """A notebook with both widgets, run, in a page that lives as long as this process."""
    folder, state = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
    cells = [new_code_cell(source) for source in (IMPORTS, OURS, THEIRS)]
    nbformat.write(new_notebook(cells=cells, metadata=METADATA), folder / "widgets.ipynb")
    server = LabServer(folder, state)
    atexit.register(server.stop)
    playwright = sync_playwright().start()
    atexit.register(playwright.stop)
    browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
    atexit.register(browser.close)
    notebook = LabNotebook(browser.new_context(viewport={"width": 1100, "height": 2400}).new_page())
    notebook.open(f"{server.url}/doc/tree/widgets.ipynb?reset")
    notebook.run_all()
    notebook.cell(1).locator(".explorable svg").wait_for()
    notebook.cell(2).locator("img").wait_for()
    return notebook


@benchmark(runs=15)
def slider_to_pixels() -> tuple[Work, Work]:
    """One more or one less rank by arrow key, against ipywidgets' interactive_output with the same picture as a PNG."""
    notebook, keys = opened(), {}

    def seconds(cell: int, handle: str) -> float:
        root = notebook.cell(cell)
        keys[cell] = "ArrowLeft" if keys.get(cell) == "ArrowRight" else "ArrowRight"
        notebook.ask("")  # what the other side left to do in the kernel is not this one's
        root.evaluate(TIME_TO_PIXELS)
        root.locator(handle).focus()
        notebook.page.keyboard.press(keys[cell])
        notebook.page.wait_for_function("window.took !== null", timeout=30_000)
        return notebook.page.evaluate("window.took") / 1000

    return lambda: seconds(1, "input[aria-label=ranks]"), lambda: seconds(2, ".noUi-handle")


@benchmark(runs=15)
def step_to_pixels() -> tuple[Work, Work]:
    """One step by arrow key, which asks no kernel, against one more rank in the same widget, which does."""
    notebook, keys = opened(), {}

    def seconds(control: str) -> float:
        root = notebook.cell(1)
        keys[control] = "ArrowLeft" if keys.get(control) == "ArrowRight" else "ArrowRight"
        root.evaluate(TIME_TO_PIXELS)
        root.locator(f"input[aria-label={control}]").focus()
        notebook.page.keyboard.press(keys[control])
        notebook.page.wait_for_function("window.took !== null", timeout=30_000)
        return notebook.page.evaluate("window.took") / 1000

    return lambda: seconds("step"), lambda: seconds("ranks")


@benchmark(runs=5)
def ring_animation_frame() -> tuple[Work, Work]:
    """Seconds a frame while the ring of 8 plays, against the same page at rest: what the browser can do at all."""
    notebook = opened()
    ring = notebook.cell(1)

    def playing() -> float:
        ring.get_by_label("ranks", exact=True).focus()
        notebook.page.keyboard.press("End")
        ring.locator("svg[data-key^='n=8']").wait_for()
        ring.get_by_label("Back to step 0").click()
        ring.get_by_label("Play").click()
        ring.locator("svg[data-key$='moving']").wait_for()
        return stopped(notebook.page.evaluate(TIME_FRAMES))

    def stopped(milliseconds: float) -> float:
        ring.get_by_label("Pause").click()
        return milliseconds / 1000

    return playing, lambda: notebook.page.evaluate(TIME_FRAMES) / 1000
