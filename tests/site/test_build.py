"""Sphinx builds a page that opens without another host, and without weight."""

import re

import pytest
from sphinx.cmd.build import main as sphinx

from tools.site import sources
from tools.site.check import addresses_in, is_outside, read

# myst-parser uses what Sphinx 11 will not have
pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore:'myst_parser")]
NAME = "11_your_own"  # the shortest notebook
INDEX = f"# Start\n\n`course_lib/train/run.py`\n\n```{{toctree}}\nnotebooks/{NAME}\n```\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Two pages, an index and a notebook; what they link beyond is not there."""
    folder = tmp_path_factory.mktemp("site")
    source = folder / "source"
    notebook = sources.ROOT / f"notebooks/{NAME}.ipynb"
    sources.write(source / f"notebooks/{NAME}.ipynb", sources.notebook_page(notebook, source / "extra/pictures"))
    sources.write(source / "index.md", INDEX)
    sphinx(["-c", str(sources.ROOT / "tools/site"), "--quiet", str(source), str(folder / "html")])
    return folder / "html"


def test_no_page_loads_anything_from_another_host(site):
    pages, styles = list(site.rglob("*.html")), list(site.rglob("*.css"))
    assert pages and styles
    assert [address for path in pages for address in read(path).loads if is_outside(address)] == []
    assert [address for path in styles for address in addresses_in(path.read_text(encoding="utf-8"))
            if is_outside(address) and not address.startswith("data:")] == []


def test_a_page_is_readable_after_400_kb_and_its_cells_have_numbers_and_its_pictures_texts(site):
    path = site / f"notebooks/{NAME}.html"
    page = read(path)
    late = re.findall(r'<img src="([^"]*)"[^>]*loading="lazy"', path.read_text(encoding="utf-8"))  # once they are near
    sizes = {address: (path.parent / address.split("?")[0]).stat().st_size for address in page.loads
             if address not in late and address[0] != "#"}
    assert path.stat().st_size + sum(sizes.values()) < 400_000, sizes
    assert "In-1" in page.ids and page.silent == []
    assert "source/course_lib/train/run.html" in read(site / "index.html").links  # a file in backticks
