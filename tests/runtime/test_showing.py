"""What a rank prints and displays appears under the cell: whole lines, and pictures, marked with the rank, in order."""

import base64
import os
import re
import subprocess
import sys

import pytest

from course_lib.runtime import launch
from course_lib.runtime.ranks import showing
from course_lib.runtime.ranks.showing import RankOutput, stable_output

# Lines


@pytest.mark.parametrize("pieces, shown", [
    ([(0, b"hel"), (1, b"other\n"), (0, b"lo\nrest")], ["", "[rank 1] other\n", "[rank 0] hello\n", "[rank 0] rest\n"]),
    ([(0, b"\r 10%\r 20%")], ["\r[rank 0]  10%\r", "[rank 0]  20%\n"]),  # a progress bar redraws its line
    ([(0, "grö".encode()[:3]), (0, "ö".encode()[1:] + b"\n")], ["", "[rank 0] grö\n", ""]),  # a character in two pieces
])
def test_lines_appear_whole_even_when_they_arrive_in_pieces(pieces, shown, monkeypatch, capsys):
    monkeypatch.setattr(showing, "stable_output", lambda: False)
    output, seen = RankOutput(2), []
    for rank, data in pieces:
        output.add(rank, "stdout", data)
        seen.append(capsys.readouterr().out)
    output.close()
    assert [*seen, capsys.readouterr().out] == shown


def test_under_a_notebook_test_what_is_printed_and_shown_comes_in_rank_order(capsys, monkeypatch):
    assert stable_output()
    lines = []
    with monkeypatch.context() as patch:
        patch.setattr(showing.os, "write", lambda _, line: lines.append(line) or len(line))
        showing.send_bundle({"text/plain": "picture"}, {})
    output = RankOutput(2)
    output.add(1, "stdout", lines[0])
    output.add(0, "stdout", b"first\n")
    assert capsys.readouterr().out == ""
    output.close()
    assert capsys.readouterr().out == "[rank 0] first\n[rank 1] shows:\npicture\n"


def test_where_there_is_no_notebook_the_text_is_shown(capsys):
    def body():
        print("an unfinished line:", end=" ")
        display({"rank": 1})  # noqa: F821  built in, as in a cell

    launch(body, world_size=1)
    assert capsys.readouterr().out.splitlines() == ["[rank 0] an unfinished line: ", "[rank 0] shows:", "{'rank': 1}"]


# In a notebook

def alt_text(bundle):
    """Of the picture that a reader gets; fails where it is none."""
    image = r'<img alt="(.*)" src="data:image/png;base64,(\S+)" style=".*">'
    words, data = re.fullmatch(image, bundle["text/html"]).groups()
    assert base64.b64decode(data).startswith(b"\x89PNG") and "image/png" not in bundle
    return words


def test_plt_show_puts_the_picture_of_each_rank_and_its_words_between_its_prints(kernel):
    reply = kernel.run("""
import matplotlib.pyplot as plt

def body():
    print("before")
    plt.plot([1, dist.get_rank()])
    plt.title(f"of <rank> {dist.get_rank()}")
    plt.ylabel("loss")
    plt.xlabel("step")
    plt.show()
    print("after", len(plt.get_fignums()))

launch(body, world_size=2)
""")
    assert reply.error is None, reply.error
    words = "a figure: of &lt;rank&gt; {}; loss over step"
    assert sorted(map(alt_text, reply.shown)) == [words.format(rank) for rank in (0, 1)]
    text = "".join(text for _, text in reply.streams)
    for rank in (0, 1):
        places = [text.index(f"[rank {rank}] {said}") for said in ("before", "shows:", "after 0")]
        assert places == sorted(places)
    assert "Figure(640x480)" not in text


def test_display_shows_html_text_and_figures_with_and_without_an_import_however_large(kernel):
    reply = kernel.run("""
from course_lib.widgets import Chart
from IPython.display import display as shown_by_name

class Table:
    def _repr_html_(self): return "<table></table>"

class Large:  # larger than a pipe
    def _repr_html_(self): return "x" * 3_000_000

def body():
    display(Table(), {"a": 1})
    shown_by_name(Table())
    display(Chart("it grows", "n", "n", lines={"n": ([1, 2], [1, 2])}), Large())

launch(body, world_size=1)
""")
    table, text, named, chart, large = reply.shown
    assert table["text/html"] == named["text/html"] == "<table></table>" and len(large["text/html"]) == 3_000_000
    assert "text/html" not in text and text["text/plain"] == "{'a': 1}"
    assert alt_text(chart) == "Chart: it grows (n over n: n)"  # what draws itself brings its sentence


@pytest.mark.ci
@pytest.mark.parametrize("imported", ["", "import matplotlib", "import matplotlib.pyplot"])
def test_a_rank_shows_its_pictures_also_where_the_server_has_imported_matplotlib_ahead(imported):
    code = f"""{imported}
from course_lib.runtime.ranks import showing
showing.install()
import matplotlib
assert matplotlib.get_backend() == showing.BACKEND, matplotlib.get_backend()"""
    environment = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
