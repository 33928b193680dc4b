"""Every page of a built site in a real browser: python -m tests.site.live.every_page build/site. Prints what it saw.

From a plain static server, each page: no error on the console, no file from elsewhere, axe-core without serious
findings in light and in dark, 360 pixels wide. Every widget on it: each control moved by keys, and what is drawn then
compared with Python's. Exit status 1 where something is not so.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, sync_playwright

from tests.site.live.page import Opened, served
from tests.site.live.widget_on_page import move_all_controls, require_what_python_draws
from tools.harness.browser import CHROMIUM_FLAGS, find_chromium

# Of those that need no Python to be there.
NAME_WIDGETS = """[...document.querySelectorAll("figure.course-widget:has(script, .course-live)")].map(
    (figure, number) => { figure.id = `${figure.dataset.class}-${number}`; return figure.id; })"""
WIDER = """[...document.querySelectorAll("main *, article *")]
    .filter((node) => node.getBoundingClientRect().right > innerWidth + 1).map((node) => node.outerHTML.slice(0, 80))"""


class Look:
    """What was seen on the pages: how many of each kind of thing, and what is wrong."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.context, self.address = context, address
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def at(self, path: str, with_axe: bool = True) -> None:
        """Open a page and try all that it has."""
        found = self.counts
        found["pages"] += 1

        def fault(column: str, words: object) -> None:
            found[column] += 1
            self.faults.append(f"{path}: {column}: {words}"[:600])

        opened = Opened(self.context, f"{self.address}/{path}", self.address)
        page = opened.page
        try:
            for name in page.evaluate(NAME_WIDGETS):
                found["widgets"] += 1
                try:
                    page.locator(f"#{name} .picture > svg").wait_for()
                    require_what_python_draws(page, name)
                    found["moves"] += move_all_controls(page, name)
                except AssertionError as error:
                    fault("differ from Python", f"{name}: {error}")
            found["predictions"] += page.locator("figure.course-prediction .prediction").count()
            found["pages seen by axe-core"] += with_axe
            for theme in ("light", "dark") if with_axe else ():
                page.evaluate(f"document.body.dataset.theme = '{theme}'")
                for each in Axe().run(page).response["violations"]:
                    if each["impact"] in ("serious", "critical"):
                        fault(f"axe {theme}", f"{each['id']}: {each['nodes'][0]['html']}")
            page.set_viewport_size({"width": 360, "height": 780})
            if page.evaluate("document.scrollingElement.scrollWidth") > 360:
                fault("wider than 360 px", page.evaluate(WIDER)[:3])
            for words in opened.errors:
                fault("console errors", words)
        finally:
            page.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.site.live.every_page", description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path, nargs="?", default=Path("build/site"), help="what `make site` has written")
    parser.add_argument("--only", default="**/*.html", help="pages to look at, as a pattern of files")
    parser.add_argument("--axe-every", type=int, default=1, metavar="N",
                        help="axe-core on every Nth page alone: it takes seconds for a long listing")
    chosen = parser.parse_args()
    paths = sorted(path.relative_to(chosen.site).as_posix() for path in chosen.site.glob(chosen.only))
    if not paths:
        parser.error(f"no page {chosen.only} in {chosen.site}: `make site` writes them")
    site = chosen.site.resolve()
    with served(site.parent) as host, sync_playwright() as playwright:  # so that the site lies below a path
        address = f"{host}/{site.name}"
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
        look = Look(browser.new_context(viewport={"width": 1200, "height": 1600}), address)
        for number, path in enumerate(paths, 1):
            print(f"\r[{number}/{len(paths)}] {path:60}", end="", file=sys.stderr)
            look.at(path, with_axe=number % chosen.axe_every == 0)
        browser.close()
    print("", *(f"{count:,} {what}" for what, count in sorted(look.counts.items())), *look.faults, sep="\n")
    sys.exit(bool(look.faults))


if __name__ == "__main__":
    main()
