"""What torchrun starts in test_crashes.py: rank 1 dies at step 5, the first time."""

import atexit
import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

from course_lib.checkpoint.chaos import NOBODY, Kill
from course_lib.runtime import launch
from tests.checkpoint import runs


def write_threads(file: Path) -> None:
    """The names of this process's threads, gloo's own among them; none where the system does not say."""
    file.write_text(json.dumps([path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]))


def main(folder: Path) -> None:
    starts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    atexit.register(write_threads, folder / f"threads_{os.environ['RANK']}.json")  # called after launch's own
    first, losses = launch(runs.train_on, NOBODY if starts else Kill(1, 5), folder, 6)[0]
    if dist.get_rank() == 0:
        (folder / "ended.json").write_text(json.dumps({"starts": starts + 1, "first": first, "losses": losses}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
