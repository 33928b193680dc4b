"""A stranger's first hour: README's commands as a new user in a fresh clone, each with its exit status and seconds.

    python -m tools.first_hour [--python /usr/bin/python3] [--json FILE]

As root it makes a user for that, who is gone afterwards; else it is you, in an empty home. The clone is of the last
commit. Nothing but pip's, proxies' and certificates' variables come along. Half of the time is the download.
"""

import argparse
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from course_lib.grading.trusted.inside.privileges import kill_processes_of
from tools.exercises import ROOT

USER = "first-hour"
LIMIT_S = 1800
THERE = "JupyterLab runs until Ctrl-C"  # what tools/lab says then
CAME = "JupyterLab was there; ended by Ctrl-C"
READER = "python -m tools.first_hour.reader"

# README's commands in the order of a reader who tries all of them; those of JupyterLab are ended when it is there.
SERVERS = ("make lab", "make lab FLAGS=--no-browser", "make teach", ".venv/bin/python -m tools.lab")
TRIED = ("make lab", READER, "make doctor",
         "python -m course_lib.planner --model llama-3-70b --gpus 64xH100 --tokens 2M",
         "python -m course_lib.train --layout dp2,pp2,tp2 --save runs/a",
         "python -m course_lib.train --resume runs/a --steps 100",
         "python -m course_lib.train --help", 'python -c "from course_lib.runtime import doctor; print(doctor())"',
         "make teach", "make lab FLAGS=--no-browser", "python3 -m venv .venv",
         ".venv/bin/pip install -r requirements.lock", ".venv/bin/pip install --no-deps -e .",
         ".venv/bin/python -m tools.lab")
NOT_TRIED = {
    "make site": "needs npm; its own tests and CI",
    "python -m tools.one_click address OWNER/NAME": "for whoever publishes the course",
    "make test": "half an hour", "make sweep": "hours", "make pretend": "hours", "make bench": "needs a quiet machine",
    "make lab FRESH=1": "asks; a test of its own", "make lab PYTHON=python3.12": "another Python",
    "python -m pytest": "half an hour", "python -m tools.gpu_day": "needs a GPU",
    "conda env create -f environment.yml": "needs conda", "conda activate course": "needs conda",
    "python -m tools.lab": "the same as .venv/bin/python -m tools.lab"}


@dataclass(frozen=True)
class Step:
    """One command: how it ended and how long it took. Of a server that is until it was there, and then Ctrl-C."""

    command: str
    status: int
    seconds: float
    last_line: str


class Stranger:
    """Somebody with a home of their own, and nothing in it."""

    def __init__(self, home: Path, user: str | None, python: str) -> None:
        self.home, self.user = home, user
        kept = {name: value for name, value in os.environ.items()
                if name.startswith("PIP_") or name.lower().endswith(("_proxy", "_bundle", "_cert", "cert_file"))}
        places = [str(home / "bin"), "/usr/local/bin", "/usr/bin", "/bin"]
        self.environment = kept | {"HOME": str(home), "PATH": ":".join(places), "LANG": "C.UTF-8", "SHELL": "/bin/bash",
                                   "PIP_CACHE_DIR": str(home / "cache")}
        self.run(f"mkdir bin; ln -s {python} bin/python3; git config --global --add safe.directory '*'", home)

    def start(self, command: str, folder: Path) -> subprocess.Popen:
        """The command in a shell of this user, in a session of its own."""
        more = {} if self.user is None else {"user": self.user, "group": self.user, "extra_groups": []}
        return subprocess.Popen(["bash", "-c", command], cwd=folder, env=self.environment, start_new_session=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                **more)

    def run(self, command: str, folder: Path) -> Step:
        """To its end."""
        begin = time.monotonic()
        process = self.start(command, folder)
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
        return Step(command, process.returncode, time.monotonic() - begin, last_line(said))

    def serve(self, command: str, folder: Path) -> Step:
        """Until JupyterLab says its address; then Ctrl-C, as a terminal sends it to all of the group."""
        begin = time.monotonic()
        process = self.start(command, folder)
        limit = threading.Timer(LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
        limit.start()
        said, seconds = "", None
        for line in process.stdout:
            said += line
            if line.startswith(THERE):
                seconds = time.monotonic() - begin
                os.killpg(process.pid, signal.SIGINT)
        status = process.wait()
        limit.cancel()
        return Step(command, status, seconds or time.monotonic() - begin, CAME if seconds else last_line(said))


def last_line(text: str) -> str:
    """Of what a command said."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


@contextmanager
def new_home() -> Iterator[tuple[Path, str | None]]:
    """An empty home, and a new user whose it is where we may make one; both are gone afterwards."""
    if os.geteuid() != 0:
        with tempfile.TemporaryDirectory(prefix="first-hour-") as home:
            yield Path(home), None
        return
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", USER], check=True)
    try:
        yield Path(pwd.getpwnam(USER).pw_dir), USER
    finally:
        kill_processes_of(pwd.getpwnam(USER).pw_uid)  # userdel refuses a user at work
        done = subprocess.run(["userdel", "--remove", USER], capture_output=True, text=True)
        print(done.stderr, end="", file=sys.stderr)


def first_hour(python: str) -> dict:
    """All steps, and the minutes until the first ranks and the first passed exercise; reading is not in them."""
    with new_home() as (home, user):
        source = home / "course.git"
        subprocess.run(["git", "clone", "--quiet", "--bare", ROOT, source], check=True)
        if user is not None:
            for path in (source, *source.rglob("*")):
                shutil.chown(path, user, user)
        stranger, folder = Stranger(home, user, python), home / "course"
        steps = [stranger.run(f"git clone --quiet {source} course", home)]
        found = {}
        for command in TRIED:
            if command == "python3 -m venv .venv":
                shutil.rmtree(folder / ".venv")  # pip's way begins without make's environment
            own = command.replace("python -", ".venv/bin/python -", 1) if command.startswith("python -") else command
            step = (stranger.serve if command in SERVERS else stranger.run)(own, folder)
            if command == READER and step.status == 0:
                reader = json.loads(step.last_line)
                before = sum(each.seconds for each in steps)
                found = {"minutes_to_ranks": (before + reader["ranks_s"]) / 60,
                         "minutes_to_passed_exercise": (before + reader["ranks_s"] + reader["check_s"]) / 60,
                         "verdict": reader["verdict"]}
            steps.append(step)
            print(f"{step.status:4} {step.seconds:7.1f} s  {command}    {step.last_line[:100]}", flush=True)
    return {**found, "steps": [asdict(each) for each in steps], "not_tried": NOT_TRIED}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.first_hour", description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin"),
                        help="the interpreter that the new user finds")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    asked = parser.parse_args()
    found = first_hour(asked.python)
    text = json.dumps(found, indent=1)
    if asked.json:
        asked.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    return int(any(each["last_line"] != CAME if each["command"] in SERVERS else each["status"]
                   for each in found["steps"]))


if __name__ == "__main__":
    sys.exit(main())
