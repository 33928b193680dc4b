"""Out of a checkpoint, and into one: a plain state dict, as one process has it, or a safetensors file.

    read_state_dict(checkpoint)         -> {name: whole tensor}, ready for load_state_dict of the plain model
    export_safetensors(checkpoint, file)   the same as a file for others
    import_state_dict(folder, state)    a checkpoint that any layout loads; import_safetensors(folder, file)

Each is for one process, and its memory has to hold the whole. On ranks, one of them calls it.

A safetensors file holds tensors and no code: pickle, and so torch.save, runs instructions when a file is opened.

    8 bytes       N, little-endian
    N bytes       {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {...}}
    the rest      at these offsets, each tensor's numbers, row by row, little-endian

Source: the format's description in github.com/huggingface/safetensors.
"""

import json
import math
import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from course_lib.checkpoint.folders import DamagedCheckpoint, Unnamed, find, problems_of, read_manifest
from course_lib.checkpoint.loading import optimizer_names
from course_lib.checkpoint.piece import PREFIX, State, whole
from course_lib.checkpoint.saving import RankGroup, write

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


# The file

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
METADATA = "__metadata__"


def write_file(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """`tensors` by name, on any device; `metadata`: texts that travel along. ValueError for a dtype it has no name for.
    """
    require_little_endian()
    header: dict[str, object] = {METADATA: dict(metadata)} if metadata else {}
    offset = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES:
            raise ValueError(f"{name} is {tensor.dtype}: expected one of {', '.join(map(str, NAMES))}")
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers begin at a multiple of 8
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(bytes_of(tensor))
        file.flush()
        os.fsync(file.fileno())


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor on the CPU, without a copy where it is contiguous there."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())


def read_file(path: str | Path) -> dict[str, Tensor]:
    """The tensors by name, on the host. ValueError, which names the file, for what is no such file, or is cut short."""
    require_little_endian()
    path = Path(path)
    content = path.read_bytes()
    try:
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8:8 + length])
        header.pop(METADATA, None)
        return {name: tensor_in(content, 8 + length, **entry) for name, entry in header.items()}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no whole safetensors file: {error}") from error


def tensor_in(content: bytes, start: int, dtype: str, shape: list[int], data_offsets: list[int]) -> Tensor:
    """The tensor of `dtype` and `shape` that lies at `data_offsets` behind byte `start` of `content`. ValueError where
    they do not agree.
    """
    first, last = data_offsets
    kind, numel = DTYPES[dtype], math.prod(shape)
    if last - first != numel * kind.itemsize or start + last > len(content):
        raise ValueError(f"{shape} of {dtype} at bytes {first} to {last} of {len(content) - start:,}")
    if not numel:
        return torch.empty(shape, dtype=kind, device="cpu")
    return torch.frombuffer(bytearray(content[start + first:start + last]), dtype=kind).view(shape)


def require_little_endian() -> None:
    """AssertionError on a machine whose numbers begin with their high byte, which the format does not hold."""
    assert sys.byteorder == "little", "safetensors holds little-endian numbers, and this machine's are not"
