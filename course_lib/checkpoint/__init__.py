"""Checkpoints: what a training run writes down so that it can go on after a crash, and on other ranks.

    piece.py         what a rank holds of a tensor, and where it lies in the whole
    models.py        the pieces of what the chapters make of a model, and of its optimiser
    dealing.py       which rank writes what
    planners.py      pieces in torch.distributed.checkpoint's files
    folders.py       how a checkpoint comes to be at once, which is the last good one, and whether it is intact
    runs.py          whose checkpoints lie in a folder, and who may save there
    ranks.py         the ranks that write together
    random_state.py  where the generators of random numbers stand
    saving.py        save, also while the step goes on
    loading.py       load, into any layout
    safetensors.py   a file of tensors, and nothing else
    export.py        from and to a plain state dict, or such a file
    chaos.py         ranks are killed, and the run goes on
    replicas.py      a wrong number, and a slow rank: accidents that nobody reports
    hangs.py         a rank that waits for ever: Flight Recorder, stacks, and who raised first
"""

from course_lib.checkpoint.export import export_safetensors, import_safetensors, import_state_dict, read_state_dict
from course_lib.checkpoint.folders import DamagedCheckpoint, complete_checkpoints, find, latest, read_manifest
from course_lib.checkpoint.loading import Loaded, find_intact, load, load_and_verify
from course_lib.checkpoint.piece import Piece, Placement, State, whole
from course_lib.checkpoint.runs import Run, begin_run, continue_run
from course_lib.checkpoint.saving import Saving, finish, save

__all__ = [
    "DamagedCheckpoint",
    "Loaded",
    "Piece",
    "Placement",
    "Run",
    "Saving",
    "State",
    "begin_run",
    "complete_checkpoints",
    "continue_run",
    "export_safetensors",
    "find",
    "find_intact",
    "finish",
    "import_safetensors",
    "import_state_dict",
    "latest",
    "load",
    "load_and_verify",
    "read_manifest",
    "read_state_dict",
    "save",
    "whole",
]
