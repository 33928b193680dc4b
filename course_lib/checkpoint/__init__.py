"""Checkpoints: what a training run writes down so that it can go on after a crash, and on other ranks.

    piece.py       what a rank holds of a tensor, of a model and of its optimiser, and where it lies in the whole
    planners.py    pieces in torch.distributed.checkpoint's files, and which rank writes what
    reading.py     pieces out of these files, which may be a stranger's: nothing in them is run or believed
    manifest.py    what a checkpoint says of itself, and whether its files are intact
    folders.py     how a checkpoint comes to be at once, which is the last good one, and whose
    saving.py      save, also while the step goes on, by the ranks that write together
    loading.py     load, into any layout
    export.py      as a plain state dict, or a safetensors file
    accidents.py   ranks that are killed, numbers that are wrong, ranks that are slow or wait for ever
"""

from course_lib.checkpoint.export import export_safetensors, read_state_dict
from course_lib.checkpoint.folders import Run, complete_checkpoints, find, latest
from course_lib.checkpoint.loading import Loaded, find_intact, load, load_and_verify
from course_lib.checkpoint.manifest import DamagedCheckpoint, read_manifest
from course_lib.checkpoint.piece import Piece, Placement, State, whole
from course_lib.checkpoint.saving import Saving, begin_run, continue_run, finish, save
from course_lib.lazy import load_on_use

load_on_use(__name__)
