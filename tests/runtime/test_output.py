"""What ranks print, line by line, with the rank in front."""

import pytest

from course_lib.runtime.ranks import output as output_module
from course_lib.runtime.ranks.output import RankOutput, stable_output


@pytest.fixture
def live(monkeypatch):
    monkeypatch.setattr(output_module, "stable_output", lambda: False)


def test_lines_appear_whole_even_when_they_arrive_in_pieces(live, capsys):
    output = RankOutput(2)
    output.add(0, "stdout", b"hel")
    output.add(1, "stdout", b"other\n")
    assert capsys.readouterr().out == "[rank 1] other\n"
    output.add(0, "stdout", b"lo\nrest")
    assert capsys.readouterr().out == "[rank 0] hello\n"
    output.close()
    assert capsys.readouterr().out == "[rank 0] rest\n"


def test_a_progress_bar_still_redraws_its_line(live, capsys):
    output = RankOutput(1)
    output.add(0, "stdout", b"\r 10%\r 20%")
    output.close()
    assert capsys.readouterr().out == "\r[rank 0]  10%\r[rank 0]  20%\n"


def test_a_character_cut_in_two_arrives_whole(live, capsys):
    output = RankOutput(1)
    data = "größe\n".encode()
    output.add(0, "stdout", data[:3])
    output.add(0, "stdout", data[3:])
    assert capsys.readouterr().out == "[rank 0] größe\n"


def test_under_a_notebook_test_output_comes_in_rank_order(capsys):
    assert stable_output()
    output = RankOutput(2)
    output.add(1, "stdout", b"b\n")
    output.add(0, "stdout", b"a\n")
    assert capsys.readouterr().out == ""
    output.close()
    assert capsys.readouterr().out == "[rank 0] a\n[rank 1] b\n"
