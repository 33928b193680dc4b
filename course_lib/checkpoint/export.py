"""Out of a checkpoint, and into one: a plain state dict, as one process has it, or a safetensors file.

    read_state_dict(checkpoint)         -> {name: whole tensor}, ready for load_state_dict of the plain model
    export_safetensors(checkpoint, file)   the same as a file for others
    import_state_dict(folder, state)    a checkpoint that any layout loads; import_safetensors(folder, file)

Each is for one process, and its memory has to hold the whole. On ranks, one of them calls it.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from course_lib.checkpoint.folders import DamagedCheckpoint, find, problems_of, read_manifest
from course_lib.checkpoint.loading import optimizer_names
from course_lib.checkpoint.piece import State, whole
from course_lib.checkpoint.random_state import PREFIX
from course_lib.checkpoint.ranks import RankGroup
from course_lib.checkpoint.runs import Unnamed
from course_lib.checkpoint.safetensors import read_file, write_file
from course_lib.checkpoint.saving import write

ALONE = RankGroup(None, 1, 0)


def read_state_dict(checkpoint: str | Path, with_optimizer: bool = False) -> dict[str, Tensor]:
    """The plain model's tensors, on the host, by name. A tied one is one tensor under all its names.

    checkpoint: one, or a folder of them, of which the last is read. with_optimizer: NAME.exp_avg and so on as well.
    DamagedCheckpoint where a file is not as it was written.
    """
    from course_lib.checkpoint.planners import read_pieces, saved_tensors  # which takes torch a second to import

    path = find(checkpoint)
    if problems := problems_of(path):
        raise DamagedCheckpoint("; ".join(problems))
    manifest, saved = read_manifest(path), saved_tensors(path)
    left_out = set() if with_optimizer else optimizer_names(saved)
    state = {name: torch.zeros(of_one.size, dtype=of_one.properties.dtype, device="cpu")
             for name, of_one in saved.items() if name not in left_out and not name.startswith(PREFIX)}
    read_pieces(path, {name: whole(tensor) for name, tensor in state.items()}, {}, None)
    return {**state, **{name: state[first] for name, first in manifest["tied"].items()}}


def import_state_dict(folder: str | Path, state_dict: Mapping[str, Tensor], step: int = 0) -> Path:
    """A checkpoint of a plain model's state_dict, without an optimiser's state; returns its path. A tensor that has
    several names is saved once.
    """
    first: dict[tuple, str] = {}
    state: State = {}
    tied = {}
    for name, tensor in state_dict.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} is a {type(tensor).__name__}: expected a plain model's state_dict, of tensors")
        memory = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and first.setdefault(memory, name) != name:
            tied[name] = first[memory]
        else:
            state[name] = whole(tensor.to("cpu"))
    manifest = {"step": step, "extra": {}, "options": None, "tied": tied, "layout": []}
    return write(ALONE, Path(folder), state, manifest, None, Unnamed())


def export_safetensors(checkpoint: str | Path, file: str | Path) -> None:
    """The plain model's tensors in one file. A tied one is there once, by its first name: a file has no aliases."""
    path = find(checkpoint)
    state, tied = read_state_dict(path), read_manifest(path)["tied"]
    write_file(file, {name: tensor for name, tensor in state.items() if name not in tied}, {"format": "pt"})


def import_safetensors(folder: str | Path, file: str | Path, step: int = 0) -> Path:
    """A checkpoint of the tensors in `file`; returns its path. Their names have to be the model's."""
    return import_state_dict(folder, read_file(file), step)
