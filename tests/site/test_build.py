"""Sphinx builds a page that opens without another host, and without weight; each fault of a built page is found."""

import re

import pytest
from sphinx.cmd.build import main as sphinx

from tools.site import sources
from tools.site.check import addresses_in, faults, is_outside, read

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


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore:'myst_parser")  # it uses what Sphinx 11 will not have
def test_no_page_loads_anything_from_another_host(site):
    pages, styles = list(site.rglob("*.html")), list(site.rglob("*.css"))
    assert pages and styles
    assert [address for path in pages for address in read(path).loads if is_outside(address)] == []
    assert [address for path in styles for address in addresses_in(path.read_text(encoding="utf-8"))
            if is_outside(address) and not address.startswith("data:")] == []


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore:'myst_parser")
def test_a_page_is_readable_after_400_kb_and_its_cells_have_numbers_and_its_pictures_texts(site):
    path = site / f"notebooks/{NAME}.html"
    page = read(path)
    late = re.findall(r'<img src="([^"]*)"[^>]*loading="lazy"', path.read_text(encoding="utf-8"))  # once they are near
    sizes = {address: (path.parent / address.split("?")[0]).stat().st_size for address in page.loads
             if address not in late and address[0] != "#"}
    assert path.stat().st_size + sum(sizes.values()) < 400_000, sizes
    assert "In-1" in page.ids and page.silent == []
    assert "source/course_lib/train/run.html" in read(site / "index.html").links  # a file in backticks


# tools/site/check.py

GOOD = '<p id="here"><a href="#here">up</a> <a href="https://example.org/">out</a> <img src="a.png" alt="a ring"></p>'


def faults_of(folder, body, style=""):
    (folder / "a.png").write_bytes(b"")
    (folder / "site.css").write_text(style)
    (folder / "sub").mkdir()
    (folder / "sub/other.html").write_text('<h2 id="Ring">Ring</h2>')
    (folder / "index.html").write_text(f'<link rel="stylesheet" href="site.css">{GOOD}{body}')
    return list(faults(folder))


@pytest.mark.parametrize("body", ['<a href="sub/other.html#Ring">ring</a>', '<a href="sub/other.html">other</a>',
                                  '<link rel="canonical" href="https://example.org/">'])
def test_a_good_page_has_no_fault(tmp_path, body):
    assert faults_of(tmp_path, body, "a { background: url(data:image/png;base64,AA==) }") == []


@pytest.mark.parametrize("body, style, words", [
    ('<script src="https://cdn.example.org/x.js"></script>', "", "index.html: loads https://"),
    ('<script src="//cdn.example.org/x.js"></script>', "", "another host"),
    ('<link rel="preload" as="font" href="https://fonts.example.org/x.woff2">', "", "another host"),
    ('<img alt="" src="http://tracker.example.org/1.gif">', "", "another host"),
    ('<p style="background: url(https://example.org/x.png)"></p>', "", "another host"),
    ('<script src="missing.js"></script>', "", "leads nowhere"),
    ('<a href="gone.html">gone</a>', "", "leads nowhere"),
    ('<a href="sub/other.html#Tree">tree</a>', "", "no such place"),
    ('<a href="/index.html">home</a>', "", "below a path"),
    ('<img src="a.png">', "", "no alt"),
    ("", "@import 'https://fonts.example.org/css';", "site.css: loads https://"),
    ("", "a { src: url(https://example.org/f) }", "site.css: loads https://"),
])
def test_each_fault_is_named_once(tmp_path, body, style, words):
    (fault,) = faults_of(tmp_path, body, style)
    assert words in fault and fault.startswith("index.html: " if body else "site.css: ")
