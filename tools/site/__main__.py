"""python -m tools.site: the course as static pages in build/site; see tools/site/__init__.py.

    python -m tools.site                  build what has changed
    python -m tools.site --fresh          build all again
    python -m tools.site --linkcheck      look whether outside links answer; needs the network
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from tools.site.sources import EXTRA, ROOT, write_sources

HERE = Path(__file__).parent
SOURCE, TARGET, CACHE = ROOT / "build/site_source", ROOT / "build/site", ROOT / "build/site_cache"
LIVE = "tools.site.live"  # makes course/: the widgets' Python, their painter, and live.js


def build(builder: str = "html", target: Path = TARGET, fresh: bool = False) -> int:
    """Write the sources and build them; Sphinx's exit status, which is not 0 where it warned."""
    if fresh:
        for folder in (SOURCE, target, CACHE):
            shutil.rmtree(folder, ignore_errors=True)
    write_sources(SOURCE)
    if importlib.util.find_spec(LIVE) is not None:
        subprocess.run([sys.executable, "-m", LIVE, str(SOURCE / EXTRA / "course")], cwd=ROOT, check=True)
    os.environ["SITE_EXTRA"] = str(SOURCE / EXTRA)
    return sphinx(["-b", builder, "-c", str(HERE), "-d", str(CACHE), "--quiet", "--keep-going", "--fail-on-warning",
                   str(SOURCE), str(target)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__.splitlines()[0])
    parser.add_argument("--fresh", action="store_true", help="build all again")
    parser.add_argument("--linkcheck", action="store_true", help="look whether outside links answer")
    given = parser.parse_args()
    started = time.perf_counter()
    if given.linkcheck:
        raise SystemExit(build("linkcheck", ROOT / "build/site_links"))
    status = build(fresh=given.fresh)
    files = [path for path in TARGET.rglob("*") if path.is_file()]
    pages = sum(path.suffix == ".html" for path in files)
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    print(f"{TARGET.relative_to(ROOT)}: {pages} pages, {megabytes:.1f} MB in {time.perf_counter() - started:.0f} s")
    raise SystemExit(status)


if __name__ == "__main__":
    main()
