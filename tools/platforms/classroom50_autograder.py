"""Classroom 50's runner calls this in the student's checkout; beside it lie the course and its requirements.

It installs what grading needs, grades, and leaves result.json. An exit status other than 0 says that the grader failed.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"

if __name__ == "__main__":
    environment = os.environ | {"PYTHONPATH": str(HERE / "course")}
    if "COURSE_PYTHON" not in environment:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--user", "--constraint",
                        HERE / "requirements.lock", "--requirement", HERE / "requirements.txt"], check=True,
                       env=environment | {"PIP_EXTRA_INDEX_URL": os.environ.get("PIP_EXTRA_INDEX_URL", CPU_BUILDS)})
    name = (HERE / "assignment").read_text(encoding="utf-8").strip()
    sys.exit(subprocess.run([environment.get("COURSE_PYTHON", sys.executable), "-m", "course_lib.grading.marks.alone",
                             name, os.getcwd(), "--course", HERE / "course", "--classroom50", "--to", "result.json"],
                            env=environment).returncode)
