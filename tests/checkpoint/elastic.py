"""What torchrun starts in test_crashes.py: rank 1 dies at step 5, the first time."""

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

from course_lib.checkpoint.chaos import NOBODY, Kill
from course_lib.runtime import launch
from tests.checkpoint import runs


def main(folder: Path) -> None:
    starts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    first, losses = launch(runs.train_on, NOBODY if starts else Kill(1, 5), folder, 6)[0]
    if dist.get_rank() == 0:
        (folder / "ended.json").write_text(json.dumps({"starts": starts + 1, "first": first, "losses": losses}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
