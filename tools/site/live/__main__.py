"""python -m tools.site.live DEST: see tools/site/live/__init__.py."""

import argparse
from pathlib import Path

from tools.site.live.build import build


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.site.live", description="What lets a static page's widgets "
                                     "move, written into a folder.")
    parser.add_argument("dest", type=Path, help="the folder, made anew")
    dest = parser.parse_args().dest
    build(dest)
    num_bytes = sum(path.stat().st_size for path in dest.rglob("*") if path.is_file())
    print(f"{dest}: {num_bytes / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
