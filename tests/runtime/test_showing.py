"""What a rank displays appears under the cell: pictures as pictures, in order with its prints, marked with the rank."""

import base64
import os
import re
import subprocess
import sys

import pytest

from course_lib.runtime import launch
from course_lib.runtime.ranks.output import RankOutput


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


def test_display_shows_html_text_and_figures_with_and_without_an_import(kernel):
    reply = kernel.run("""
class Table:
    def _repr_html_(self): return "<table></table>"

def built_in():
    display(Table(), {"a": 1})

from IPython.display import display as shown_by_name
def imported():
    shown_by_name(Table())

launch(built_in, world_size=1), launch(imported, world_size=1)
""")
    assert reply.error is None, reply.error
    html = [bundle.get("text/html") for bundle in reply.shown]
    assert html == ["<table></table>", None, "<table></table>"] and reply.shown[1]["text/plain"] == "{'a': 1}"


def test_a_value_that_draws_itself_brings_its_sentence_and_a_picture_larger_than_a_pipe_arrives_whole(kernel):
    reply = kernel.run("""
from course_lib.widgets import Chart

class Large:
    def _repr_html_(self): return "x" * 3_000_000

launch(lambda: display(Chart("it grows", "n", "n", lines={"n": ([1, 2], [1, 2])}), Large()), world_size=1)
""")
    assert reply.error is None and alt_text(reply.shown[0]) == "Chart: it grows (n over n: n)", reply
    assert len(reply.shown[1]["text/html"]) == 3_000_000


def test_where_there_is_no_notebook_the_text_is_shown(capsys):
    def body():
        print("an unfinished line:", end=" ")
        display({"rank": 1})  # noqa: F821  built in, as in a cell

    launch(body, world_size=1)
    assert capsys.readouterr().out.splitlines() == ["[rank 0] an unfinished line: ", "[rank 0] shows:", "{'rank': 1}"]


def test_in_stable_output_what_is_shown_comes_in_rank_order(capsys, monkeypatch):
    from course_lib.runtime.ranks import showing

    lines = []
    with monkeypatch.context() as patch:
        patch.setattr(showing.os, "write", lambda _, line: lines.append(line) or len(line))
        showing.send({"text/plain": "picture"}, {})
    output = RankOutput(2)
    output.add(1, "stdout", lines[0])
    output.add(0, "stdout", b"first\n")
    output.close()
    assert capsys.readouterr().out == "[rank 0] first\n[rank 1] shows:\npicture\n"


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
