"""Every command that README.md and TEACHING.md show is there to be called, as far as that can be tried in seconds.

Those of a class are run in their order, with submissions, by test_nbgrader.py.
"""

import itertools
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nbgrader.apps.nbgraderapp import NbGraderApp

from tests.commands import commands_in

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = list(dict.fromkeys(command for page in ("README.md", "TEACHING.md") for command in commands_in(ROOT / page)))
NBGRADERS = [command for command in COMMANDS if re.match(r"(\.venv/bin/)?nbgrader ", command)]
MODULES = sorted({found[1] for command in COMMANDS if (found := re.search(r"python3? -m ([\w.]+)", command))})
TARGETS = [command for command in COMMANDS if re.match(r"(\w+=\S+ )*make( |$)", command)]


def run(*command: str) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)


def test_commands_are_found_in_code_in_prose_and_in_tables(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n    .venv/bin/python -m a    says why\n    submitted/b\n\nCall `make\nb C=1` or `b`.\n\n"
                    "```python\nmake = 1\n```\n\n```\nmake d\n```\n\n"
                    "| `make e` | `notebooks/` |\n| `A=/b make f` | |\n")
    assert commands_in(page) == [".venv/bin/python -m a", "make d", "make b C=1", "make e", "A=/b make f"]


def test_the_pages_show_the_commands_that_matter():
    assert {"make lab", "make lab FRESH=1", "make teach", "make doctor", "make test"} <= {*TARGETS}
    assert {"tools.lab", "tools.gpu_day", "pytest", "venv"} <= {*MODULES}


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
@pytest.mark.parametrize("command", TARGETS)
def test_make_knows_its_target(command):
    words = [word for word in shlex.split(command) if "/path/to/" not in word]
    words = [f"PYTHON={sys.executable}" if word.startswith("PYTHON=") else word for word in words]
    made = run("make", "-n", *words[words.index("make") + 1:])
    assert made.returncode == 0 and made.stdout.strip(), made.stderr


@pytest.mark.parametrize("module", MODULES)
def test_the_module_answers_help(module):
    asked = run(sys.executable, "-m", module, "--help")
    assert asked.returncode == 0 and "usage" in asked.stdout.lower(), asked.stderr


def test_a_line_of_python_runs():
    lines = [shlex.split(command) for command in COMMANDS if re.match(r"(\.venv/bin/)?python3? -c ", command)]
    assert lines
    for words in lines:
        said = run(sys.executable, *words[1:])
        assert said.returncode == 0 and said.stdout.strip(), said.stderr


@pytest.mark.parametrize("command", [command for command in COMMANDS if re.search(r"\b(pip|conda) ", command)])
def test_the_files_that_pip_and_conda_read_are_there(command):
    for option, name in re.findall(r"(-r|-f|-e) (\S+)", command):
        assert (ROOT / name).exists(), f"{option} {name}"
    if activated := re.match(r"conda activate (\S+)", command):
        assert f"name: {activated[1]}\n" in (ROOT / "environment.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", NBGRADERS)
def test_nbgrader_knows_its_command_and_its_options(command):
    words = shlex.split(command.removeprefix(".venv/bin/"))
    named = list(itertools.takewhile(lambda word: re.fullmatch(r"[a-z_]+", word), words[1:]))
    app = NbGraderApp
    for word in named:
        app, _ = app.subcommands[word]
    assert named
    options = {word.removeprefix("--") for word in words if word.startswith("--")}
    assert options <= {*app().flags, *app().aliases}


def test_every_command_is_of_a_kind_that_is_tried_here():
    tried = r"(\w+=\S+ )*(make|conda)( |$)|(\.venv/bin/)?(python3? (-m|-c)|pip|nbgrader) "
    assert [command for command in COMMANDS if not re.match(tried, command)] == []
