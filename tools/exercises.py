"""Generate exercises/ from solutions/ with nbgrader: `make exercises` calls this.

    python -m tools.exercises

What a solution no longer has is not in exercises/ afterwards either. The same solutions give the same bytes.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def assignments() -> list[str]:
    """The folders of solutions/, one a chapter."""
    return sorted(path.name for path in (ROOT / "solutions").iterdir() if any(path.glob("*.ipynb")))


def generate(target: Path) -> None:
    """Write the exercises of all chapters under `target`. SystemExit with nbgrader's words where it refuses one."""
    with tempfile.TemporaryDirectory() as nobodys:
        # the author's own Jupyter settings must not change what students get
        done = subprocess.run(
            [sys.executable, "-m", "nbgrader", "generate_assignment", "*", "--no-db", "--force",
             f"--CourseDirectory.release_directory={target}"],
            cwd=ROOT, env=os.environ | {"JUPYTER_CONFIG_DIR": nobodys}, capture_output=True, text=True)
    missing = [name for name in assignments() if not any((target / name).glob("*.ipynb"))]
    if done.returncode or missing:
        raise SystemExit(f"not generated: {', '.join(missing)}\n{done.stderr}")


if __name__ == "__main__":
    shutil.rmtree(ROOT / "exercises", ignore_errors=True)
    generate(ROOT / "exercises")
    print(f"exercises/: {', '.join(assignments())}")
