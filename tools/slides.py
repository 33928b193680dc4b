"""python -m tools.slides [NAME ...]: dist/slides/NAME.html, the pictures of a notebook as slides.

A slide is a picture that the committed notebook has, under the heading of its section, with its finding in words below;
a prediction is a slide of its own, before the picture that answers it. One file without links: show it full screen in a
browser (space or an arrow goes on), or print it as a PDF. Nothing is written by hand, so nothing can be out of date.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import nbformat

from tools.minutes import NOTEBOOKS, ROOT
from tools.pages import polls_in, rendered


class Slide(NamedTuple):
    """`picture` is a PNG in base64, "" for a question."""

    heading: str
    text: str
    picture: str = ""


def slides_of(path: Path) -> Iterator[Slide]:
    """Pictures and predictions of a notebook, in order."""
    heading, polls = path.stem, list(polls_in(path))
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            heading = (re.findall(r"^#+ (.*)$", cell.source, re.MULTILINE) or [heading])[-1]
            continue
        source = re.sub(r'"\s*\n\s*"', "", cell.source)  # a question may be written in two lines
        asked = [poll for poll in polls if poll.question in source]
        yield from (Slide(heading, str(poll)) for poll in asked)
        for data in (output.get("data", {}) for output in cell.get("outputs", [])):
            if "image/png" in data and not asked:
                yield Slide(heading, " ".join(data.get("text/plain", "").split()), data["image/png"].strip())


def write_slides(path: Path, folder: Path) -> Path:
    """The slides of the notebook at `path`, as one file in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{path.stem}.html"
    target.write_text(rendered("slides.html", title=path.stem, slides=slides_of(path)), encoding="utf-8")
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
