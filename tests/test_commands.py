"""Every command that README.md and TEACHING.md show is there to be called, as far as that can be tried in seconds; on
the other pages, every target of make. Those of a class are run in their order, by test_nbgrader.py.
"""

import itertools
import re
import runpy
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from nbgrader.apps.nbgraderapp import NbGraderApp

ROOT = Path(__file__).resolve().parent.parent
COMMAND = re.compile(r"(?:\w+=\S+ )*(?:\.venv/bin/)?(?:make$|(?:make|python3?|pip|conda|jupyter|nbgrader) )")


def commands_in(path: Path) -> list[str]:
    """Each once, in order: whole lines of code, and what stands between backquotes and begins as a command does."""
    text = path.read_text(encoding="utf-8")
    found, fenced = [], None
    for line in text.splitlines():
        fence = re.match(r"\s*```(\w*)", line)
        if fence:
            fenced = None if fenced is not None else fence[1]
        elif fenced in ("", "sh", "bash", "console") or (fenced is None and line.startswith("    ")):
            found.append(re.split(r"\s{2,}|\s#", line.strip())[0])
    prose = re.sub(r"^\s*```.*?^\s*```", "", text, flags=re.DOTALL | re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n|\n(?=\|)", prose):
        if not paragraph.startswith("    "):
            found += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", paragraph)]
    return list(dict.fromkeys(command for command in found if COMMAND.match(command)))


COMMANDS = list(dict.fromkeys(command for page in ("README.md", "TEACHING.md") for command in commands_in(ROOT / page)))
NBGRADERS = [command for command in COMMANDS if re.match(r"(\.venv/bin/)?nbgrader ", command)]
MODULES = sorted({found[1] for command in COMMANDS if (found := re.search(r"python3? -m ([\w.]+)", command))})
OURS = [module for module in MODULES if module.startswith(("course_lib", "tools", "benchmarks"))]
OTHER_PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md"))]
MAKE = r"(\w+=\S+ )*make( |$)"


def test_commands_are_found_in_code_in_prose_and_in_tables(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n    .venv/bin/python -m a    says why\n    submitted/b\n\nCall `make\nb C=1` or `b`.\n\n"
                    "```python\nmake = 1\n```\n\n```\nmake d\n```\n\n"
                    "| `make e` | `notebooks/` |\n| `A=/b make f` | |\n")
    assert commands_in(page) == [".venv/bin/python -m a", "make d", "make b C=1", "make e", "A=/b make f"]


def test_every_command_is_of_a_kind_that_is_tried_here_and_those_that_matter_are_shown():
    tried = rf"{MAKE}|conda |(\.venv/bin/)?(python3? (-m|-c)|pip|nbgrader) "
    assert [command for command in COMMANDS if not re.match(tried, command)] == []
    assert {"make lab", "make teach", "make doctor", "make test"} <= {*COMMANDS} and "tools.gpu_day" in OURS


def test_make_knows_every_target_of_every_page():
    rules = re.findall(r"^([a-z][a-z0-9 -]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    shown = COMMANDS + [command for page in OTHER_PAGES for command in commands_in(page)]
    targets = {word for command in shown if re.match(MAKE, command) for word in shlex.split(command)
               if re.fullmatch(r"[a-z0-9-]+", word)} - {"make"}
    assert len(targets) > 15 and targets <= {target for rule in rules for target in rule.split()}


@pytest.mark.parametrize("module", OURS)
def test_the_module_answers_help(module, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(module, run_name="__main__")
    assert not end.value.code and "usage" in capsys.readouterr().out.lower()


def test_modules_of_others_are_installed_and_a_line_of_python_runs(capsys):
    assert [module for module in MODULES if module not in OURS and not find_spec(module)] == []
    lines = [shlex.split(command) for command in COMMANDS if re.match(r"(\.venv/bin/)?python3? -c ", command)]
    for *_, code in lines:
        exec(code, {})
        assert capsys.readouterr().out.strip()
    assert lines


@pytest.mark.parametrize("command", [command for command in COMMANDS if re.search(r"\b(pip|conda) ", command)])
def test_the_files_that_pip_and_conda_read_are_there(command):
    for option, name in re.findall(r"(-r|-c|-f|-e) '?([^\s'\[]+)", command):
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
