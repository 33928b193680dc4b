"""Out of a checkpoint: a plain state dict, as one process has it, or a safetensors file.

    read_state_dict(checkpoint)         -> {name: whole tensor}, ready for load_state_dict of the plain model
    export_safetensors(checkpoint, file)   the same as a file for others

Each is for one process, and its memory has to hold the whole. On ranks, one of them calls it.

A safetensors file holds tensors and no code: pickle, and so torch.save, runs instructions when a file is opened.

    8 bytes       N, little-endian
    N bytes       {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {...}}
    the rest      at these offsets, each tensor's numbers, row by row, little-endian

Source: the format's description in github.com/huggingface/safetensors.
"""

import json
import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from course_lib.checkpoint.folders import find
from course_lib.checkpoint.loading import optimizer_names
from course_lib.checkpoint.manifest import DamagedCheckpoint, problems_of, read_manifest
from course_lib.checkpoint.piece import PREFIX, whole
from course_lib.checkpoint.reading import read_pieces, saved_tensors


def read_state_dict(checkpoint: str | Path) -> dict[str, Tensor]:
    """The plain model's tensors, on the host, by name. A tied one is one tensor under all its names.

    checkpoint: one, or a folder of them, of which the last is read. DamagedCheckpoint where a file is not as it was
    written.
    """
    path = find(checkpoint)
    if problems := problems_of(path):
        raise DamagedCheckpoint("; ".join(problems))
    manifest, saved = read_manifest(path), saved_tensors(path)
    left_out = optimizer_names(saved)
    state = {name: torch.zeros(of_one.size, dtype=of_one.dtype, device="cpu")
             for name, of_one in saved.items() if name not in left_out and not name.startswith(PREFIX)}
    if wrong := {*manifest["tied"].values()} - state.keys() or manifest["tied"].keys() & state.keys():
        raise DamagedCheckpoint(f"{path}: its manifest ties {sorted(wrong)[0]!r}, which is not so in its files")
    read_pieces(path, {name: whole(tensor) for name, tensor in state.items()}, {}, saved)
    return {**state, **{name: state[first] for name, first in manifest["tied"].items()}}


def export_safetensors(checkpoint: str | Path, file: str | Path) -> None:
    """The plain model's tensors in one file. A tied one is there once, by its first name: a file has no aliases."""
    path = find(checkpoint)
    state, tied = read_state_dict(path), read_manifest(path)["tied"]
    write_file(file, {name: tensor for name, tensor in state.items() if name not in tied})


# The file

NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}


def write_file(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """`tensors` by name, on any device. ValueError for a dtype it has no name for."""
    assert sys.byteorder == "little", "safetensors holds little-endian numbers, and this machine's are not"
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        if name in header:
            raise ValueError(f"a tensor is called {name}: expected a name that the file does not use itself")
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
