"""safetensors: a file of tensors that holds no code.

    8 bytes       N, little-endian
    N bytes       {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {...}}
    the rest      at these offsets, each tensor's numbers, row by row, little-endian

torch.save and pickle hold instructions that are run when a file is opened; here there is nothing to run.

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
