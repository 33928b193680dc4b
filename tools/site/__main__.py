"""python -m tools.site: the course as static pages in build/site, checked; see tools/site/__init__.py.

    python -m tools.site                  build what has changed; what is gone stays there until --fresh
    python -m tools.site --fresh          build all again
    python -m tools.site --linkcheck      look whether outside links answer; needs the network
"""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from tools.site.check import faults
from tools.site.live.build import build as live
from tools.site.sources import EXTRA, ROOT, write_sources

HERE = Path(__file__).parent
SOURCE, TARGET, CACHE = ROOT / "build/site_source", ROOT / "build/site", ROOT / "build/site_cache"


def build(source: Path, target: Path, cache: Path, builder: str = "html") -> int:
    """Pages from `source`; Sphinx's exit status, which is not 0 where it warned."""
    os.environ["SITE_EXTRA"] = str(source / EXTRA)
    return sphinx(["-b", builder, "-c", str(HERE), "-d", str(cache), "--quiet", "--fail-on-warning", str(source),
                   str(target)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__.splitlines()[0])
    parser.add_argument("--fresh", action="store_true", help="build all again")
    parser.add_argument("--linkcheck", action="store_true", help="look whether outside links answer")
    given = parser.parse_args()
    started = time.perf_counter()
    for folder in (SOURCE, TARGET, CACHE) if given.fresh else ():
        shutil.rmtree(folder, ignore_errors=True)
    write_sources(SOURCE)
    if given.linkcheck:
        raise SystemExit(build(SOURCE, ROOT / "build/site_links", CACHE, "linkcheck"))
    live(SOURCE / EXTRA / "course")
    status = build(SOURCE, TARGET, CACHE)
    wrong = list(faults(TARGET))
    print(*wrong, sep="\n", end="\n" * bool(wrong), file=sys.stderr)
    files = [path for path in TARGET.rglob("*") if path.is_file()]
    pages = sum(path.suffix == ".html" for path in files)
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    print(f"{TARGET.relative_to(ROOT)}: {pages} pages, {megabytes:.1f} MB in {time.perf_counter() - started:.0f} s, "
          f"{len(wrong)} faults")
    raise SystemExit(status or bool(wrong))


if __name__ == "__main__":
    main()
