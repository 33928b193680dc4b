"""Widgets in a real JupyterLab: from the key to new pixels, and the frames of an animation.

Ours and theirs are cells of the same notebook on the same page. Times are the page's own clock. The page wants no
motion but where frames are counted: the first picture after a key is the whole new one.
"""

import atexit
import tempfile
from functools import cache
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import sync_playwright

from benchmarks.harness import Work, benchmark
from tools.harness.browser import CHROMIUM_FLAGS, LabNotebook, LabServer, find_chromium
from tools.notebooks import METADATA

SLIDERS = {  # a slider of each widget, and the parameter that it sets
    "RingAllReduce": ("ranks", "num_ranks"), "CollectiveExplorer": ("ranks", "num_ranks"),
    "FitsOrNot": ("devices", "num_devices"), "ZeroMemory": ("devices", "num_devices"),
    "BucketOverlap": ("bucket size", "bucket_cap_mb"), "Stragglers": ("slowdown", "slowdown"),
    "PipelineSchedule": ("ranks", "p"),
}
IMPORTS = f"""\
import ipywidgets
from IPython.display import Image, display
from course_lib.pictures.painter import to_png
from course_lib.widgets import {", ".join(SLIDERS)}

def redrawn(kind, name):
    values = kind().parameters()[name]
    draw = lambda place: display(Image(to_png(kind(**{{name: values[place]}}).picture())))
    slider = ipywidgets.IntSlider(2, 0, len(values) - 1)
    display(slider, ipywidgets.interactive_output(draw, {{"place": slider}}))"""
CELLS = [IMPORTS, *(f"{name}()" for name in SLIDERS),
         *(f'redrawn({name}, "{parameter}")' for name, (_, parameter) in SLIDERS.items())]

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
    """A notebook with all of these cells, run, in a page that lives as long as this process."""
    folder, state = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
    cells = [new_code_cell(source) for source in CELLS]
    nbformat.write(new_notebook(cells=cells, metadata=METADATA), folder / "widgets.ipynb")
    server = LabServer(folder, state)
    atexit.register(server.stop)
    playwright = sync_playwright().start()
    atexit.register(playwright.stop)
    browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
    atexit.register(browser.close)
    context = browser.new_context(viewport={"width": 1100, "height": 2400}, reduced_motion="reduce")
    notebook = LabNotebook(context.new_page())
    notebook.open(f"{server.url}/doc/tree/widgets.ipynb?reset")
    notebook.run_all()
    for number in range(1, 1 + 2 * len(SLIDERS)):
        notebook.cell(number).locator(".explorable svg, img").first.wait_for()
    return notebook


def seconds_to_pixels(cell: int, handle: str, keys: dict[str, str]) -> float:
    """From an arrow key on the control to the new picture; `keys` remembers the way back."""
    notebook = opened()
    root = notebook.cell(cell)
    keys[handle] = "ArrowLeft" if keys.get(handle) == "ArrowRight" else "ArrowRight"
    notebook.ask("")  # what the other side left to do in the kernel is not this one's
    root.evaluate(TIME_TO_PIXELS)
    root.locator(handle).focus()
    notebook.page.keyboard.press(keys[handle])
    notebook.page.wait_for_function("window.took !== null", timeout=30_000)
    return notebook.page.evaluate("window.took") / 1000


def slider_to_pixels(name: str) -> None:
    """Register it: one key on a slider, against ipywidgets' interactive_output with the same picture as a PNG."""
    number, label, keys = [*SLIDERS].index(name), SLIDERS[name][0], {}

    def make() -> tuple[Work, Work]:
        opened()
        return (lambda: seconds_to_pixels(1 + number, f"input[aria-label='{label}']", keys),
                lambda: seconds_to_pixels(1 + number + len(SLIDERS), ".noUi-handle", keys))

    make.__name__ = f"slider_to_pixels_{name}"
    make.__doc__ = f"One key on the slider {label!r} of {name}, against interactive_output with its picture as a PNG."
    benchmark(runs=15)(make)


for each in SLIDERS:
    slider_to_pixels(each)


@benchmark(runs=15)
def step_to_pixels() -> tuple[Work, Work]:
    """One step of the ring by arrow key, which asks no kernel, against one more rank in it, which does."""
    opened()
    keys: dict[str, str] = {}
    return tuple(lambda control=control: seconds_to_pixels(1, f"input[aria-label={control}]", keys)
                 for control in ("step", "ranks"))


@benchmark(runs=5)
def ring_animation_frame() -> tuple[Work, Work]:
    """Seconds a frame while the ring of 8 plays, against the same page at rest: what the browser can do at all."""
    notebook = opened()
    notebook.page.emulate_media(reduced_motion="no-preference")
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
