"""tools/site/check.py finds each fault that a built page may have."""

import pytest

from tools.site.check import faults

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
