"""python -m tools.slides [NAME ...]: dist/slides/NAME.html, the pictures of a notebook as slides.

A slide is a picture that the committed notebook has, under the heading of its section, with its finding in words below;
a prediction is a slide of its own, before the picture that answers it. One file without links: show it full screen in a
browser (space or an arrow goes on), or print it as a PDF. Nothing is written by hand, so nothing can be out of date.
"""

import argparse
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tools.minutes import NOTEBOOKS, ROOT
from tools.teaching import polls_in

STYLE = """<style>
html { scroll-snap-type: y mandatory; font-family: sans-serif; }
section { scroll-snap-align: start; min-height: 100vh; box-sizing: border-box; padding: 3vh 5vw; break-after: page;
          display: flex; flex-direction: column; justify-content: center; }
h2 { margin: 0 0 2vh; } img { max-width: 90vw; max-height: 70vh; object-fit: contain; align-self: flex-start; }
p { font-size: 1.3rem; margin: 2vh 0 0; } .ask p { font-size: 2rem; }
</style>"""
KEYS = """<script>
addEventListener("keydown", (event) => {
  const step = {ArrowRight: 1, ArrowDown: 1, " ": 1, PageDown: 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1}[event.key];
  if (!step) return;
  event.preventDefault();
  scrollBy({top: step * innerHeight, behavior: "instant"});
});
</script>"""


@dataclass(frozen=True)
class Slide:
    """`picture` is a PNG in base64, "" for a question."""

    heading: str
    text: str
    picture: str = ""

    def __str__(self) -> str:
        image = f'<img alt="{html.escape(self.text)}" src="data:image/png;base64,{self.picture}">' * bool(self.picture)
        return (f'<section{"" if self.picture else " class=ask"}><h2>{html.escape(self.heading)}</h2>{image}'
                f"<p>{html.escape(self.text)}</p></section>")


def slides_of(path: Path) -> Iterator[Slide]:
    """Pictures and predictions of a notebook, in order."""
    notebook, heading = nbformat.read(path, as_version=4), path.stem
    questions = {poll.question: str(poll) for poll in polls_in(path)}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            heading = (re.findall(r"^#+ (.*)$", cell.source, re.MULTILINE) or [heading])[-1]
            continue
        asked = [words for question, words in questions.items() if question in joined_strings(cell.source)]
        yield from (Slide(heading, words) for words in asked)
        for output in cell.get("outputs", []):
            picture = output.get("data", {}).get("image/png", "")
            if picture and not asked:
                yield Slide(heading, finding(output), "".join(picture).strip())


def joined_strings(source: str) -> str:
    """The source with strings that go on in the next line joined: a question may be written in two."""
    return re.sub(r'"\s*\n\s*"', "", source)


def finding(output: NotebookNode) -> str:
    """What the picture says in words."""
    return " ".join("".join(output["data"].get("text/plain", "")).split())


def write_slides(path: Path, folder: Path) -> Path:
    """The slides of the notebook at `path`, as one file in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{path.stem}.html"
    body = "\n".join(map(str, slides_of(path)))
    head = f"<!DOCTYPE html>\n<html lang=en><meta charset=utf-8><title>{path.stem}</title>{STYLE}"
    target.write_text(f"{head}\n{body}\n{KEYS}</html>\n", encoding="utf-8")
    return target


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.slides", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as 02_collectives; all by default")
    asked = parser.parse_args()
    if unknown := {*asked.names} - {path.stem for path in NOTEBOOKS}:
        parser.error(f"there is no notebook {', '.join(sorted(unknown))}: expected such as 02_collectives")
    for path in NOTEBOOKS:
        if not asked.names or path.stem in asked.names:
            print(write_slides(path, ROOT / "dist" / "slides").relative_to(ROOT))


if __name__ == "__main__":
    main()
