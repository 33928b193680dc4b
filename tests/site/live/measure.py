"""How long a reader of a static page waits: python -m tests.site.live.measure. Prints a table in Markdown.

Cold: a browser that has never seen the site. Warm: the next page in the same browser. All on this machine, from a plain
server on this machine; the load of the machine is printed with it.
"""

import os
import tempfile
import time
from pathlib import Path
from statistics import median

from playwright.sync_api import Page, sync_playwright

from tests.site.live.page import EVERY, QUESTIONS, figure, question, served, write_page
from tools.harness.browser import CHROMIUM_FLAGS, find_chromium
from tools.site.live.build import build

FIRST = "RingAttentionSteps"
# Milliseconds from a slider's (or chooser's) change to the frame that shows what Python has drawn.
MOVE = """async ([name, number, place]) => {
    const figure = document.querySelector(`#${name}`);
    const control = figure.querySelectorAll(".controls input, .controls select")[number];
    const key = () => figure.querySelector(".picture > svg").dataset.key;
    const before = key();
    const began = performance.now();
    control.value = place;
    control.dispatchEvent(new Event(control.tagName === "SELECT" ? "change" : "input", { bubbles: true }));
    const frame = () => new Promise(requestAnimationFrame);
    while (key() === before && performance.now() - began < 5000) await frame();
    await frame();
    return key() === before ? null : performance.now() - began;
}"""
CONTROLS = """(name) => [...document.querySelectorAll(`#${name} .controls input, #${name} .controls select`)]
    .map((node) => (node.tagName === "SELECT" ? node.options.length : Number(node.max) + 1))"""


def first_move(page: Page, address: str) -> tuple[float, float, float]:
    """Seconds from opening to the widgets, to Python, to the first widget moved."""
    page.goto(address)
    page.locator(f"#{FIRST} input").first.press("ArrowRight")
    page.locator(f"#{FIRST} .course-live[data-waits=false]").wait_for(timeout=300_000)
    moved = page.evaluate("performance.now()")
    marks = dict(page.evaluate("performance.getEntriesByType('mark').map(({ name, startTime }) => [name, startTime])"))
    return marks["course: widget there"] / 1000, marks["course: Python there"] / 1000, moved / 1000


def latencies(page: Page) -> dict[str, list[float]]:
    """Milliseconds of up to four moves of each control, by widget."""
    found: dict[str, list[float]] = {}
    for name in EVERY:
        for number, choices in enumerate(page.evaluate(CONTROLS, name)):
            places = [place for place in (1, choices // 2, 2, 0) if place < choices]
            found.setdefault(name, []).extend(
                taken for place in places if (taken := page.evaluate(MOVE, [name, number, place])) is not None)
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))


def measure(folder: Path) -> None:
    """Print the table, with a site in `folder`."""
    began = time.perf_counter()
    build(folder / "course")
    print(f"built in {time.perf_counter() - began:.1f} s; load of the machine {os.getloadavg()[0]:.1f} "
          f"on {os.cpu_count()} cores")
    write_page(folder / "pages" / "all.html", *map(figure, EVERY), *(question(w, *q) for w, q in QUESTIONS.items()))
    write_page(folder / "pages" / "one.html", figure(FIRST))
    write_page(folder / "pages" / "planner.html", '<div class="course-planner"></div>')
    with served(folder) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
        context = browser.new_context()
        for how in ("cold", "warm", "warm"):
            page = context.new_page()
            print(f"{how}: widget after {{:.2f}} s, Python {{:.2f}} s, first move {{:.2f}} s".format(
                *first_move(page, f"{url}/pages/one.html")))
            heap = page.workers[0].evaluate("self.python._module.HEAPU8.byteLength")
            page.close()
        page = context.new_page()
        first_move(page, f"{url}/pages/all.html")
        rows = latencies(page)
        for name, taken in rows.items():
            print(f"| {name} | {len(taken)} | {median(taken):.0f} | {max(taken):.0f} |")
        every = [each for taken in rows.values() for each in taken]
        print(f"all: {len(every)} moves, median {median(every):.0f} ms, longest {max(every):.0f} ms")
        whole = page.workers[0].evaluate("self.python._module.HEAPU8.byteLength")
        print(f"memory of Python: {heap / 1e6:.0f} MB with one widget, {whole / 1e6:.0f} MB with all")
        page.goto(f"{url}/pages/planner.html")
        for _ in range(2):
            page.get_by_role("button", name="Plan").click()
            page.locator(".course-status", has_text="Answered in").wait_for(timeout=300_000)
            print(page.locator(".course-status").text_content())
        browser.close()


if __name__ == "__main__":
    main()
