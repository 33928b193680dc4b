"""README's commands are all in the list that a stranger tries, or left out for a reason."""

import re

from tools.exercises import ROOT
from tools.first_hour.__main__ import NOT_TRIED, READER, SERVERS, TRIED, last_line

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_command_of_readme_is_tried_or_left_out_for_a_reason():
    spoken = [" ".join(command.split()) for command in re.findall(r"`((?:make|python) [^`]+)`", README)]
    listed = re.findall(r"^    ((?:make|python3?|conda|\.venv/bin/\S+) .*)$", README, re.MULTILINE)
    assert len(spoken) > 15 and len(listed) > 6
    assert {*spoken, *listed} <= {*TRIED, *NOT_TRIED}


def test_what_is_tried_stands_in_readme():
    said = {command for command in TRIED if command != READER and command not in README}
    resume = "python -m course_lib.train --resume runs/a --steps 100"  # README has its options alone
    assert said == {resume} and resume.removeprefix("python -m course_lib.train ") in README
    assert {*SERVERS} <= {*TRIED} and not {*TRIED} & {*NOT_TRIED}


def test_the_last_words_of_a_command_are_kept():
    assert last_line("one\n two \n\n") == "two" and last_line("") == ""
