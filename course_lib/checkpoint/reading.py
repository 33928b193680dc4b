"""The files of a checkpoint, read without running them: whoever wrote them may have written anything.

torch.distributed.checkpoint writes `.metadata`, and the head of each tensor, as pickles. A pickle is a program: what
reads it in the usual way, torch.distributed.checkpoint's FileSystemReader too, calls every function that it names.

    unpickle        its instructions as records of what it would call; nothing is called, imported or set
    saved_tensors   `.metadata`: each tensor's size, dtype and boxes, and where in which file a box lies
    read_box        one box: a zip file of a head, which says the strides, and the numbers
    read_pieces     for each box that a rank wants: the old boxes that overlap it, and of them the part that does

What is believed is checked first, so that it costs no more than the files have bytes: boxes lie in their tensor, places
in a file that the manifest names, and every number of a tensor is in the checkpoint. All else is DamagedCheckpoint.

Source: Python's pickletools, for what each instruction does; torch.save's zip file, as of PyTorch 1.6.
"""

import io
import math
import pickletools
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from course_lib.checkpoint.manifest import METADATA, MOST_BYTES, DamagedCheckpoint, problem_with, read_manifest
from course_lib.checkpoint.piece import Sizes, State, take

# Pickles, as records

Name = tuple[str, str]  # module and name

DTYPES = {("torch", str(dtype).removeprefix("torch.")): dtype for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex128, torch.complex64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)}
SIZE = ("torch", "Size")
OF_METADATA = {("torch.distributed.checkpoint.metadata", name) for name in (
    "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex", "StorageMeta",
    "_MEM_FORMAT_ENCODING")} | {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"), ("torch.serialization", "_get_layout"), SIZE,
    ("pathlib", "PosixPath"), ("pathlib", "WindowsPath"), ("pathlib._local", "PosixPath"),
    ("pathlib._local", "WindowsPath"), *DTYPES}
REBUILD = {("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor_v3")}
OF_TENSORS = {*REBUILD, ("collections", "OrderedDict"), ("torch.storage", "UntypedStorage"), *DTYPES, *(
    ("torch", f"{kind}Storage") for kind in ("Double", "Float", "Half", "BFloat16", "ComplexDouble", "ComplexFloat",
                                            "Long", "Int", "Short", "Char", "Byte", "Bool"))}

VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "SHORT_BINUNICODE", "BINUNICODE"}
CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(eq=False, slots=True)
class Record:
    """What a pickle would call: `name`, with `arguments` (None: it only names it), and the `state` it would set."""

    name: Name
    arguments: Any = None
    state: Any = None


def unpickle(data: bytes, known: set[Name]) -> Any:
    """The value that a pickle makes, with a Record for each object in it. ValueError for one that names what is not in
    `known`, and for an instruction that pickle does not write for such files.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def above_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    for code, argument, _ in pickletools.genops(data):
        do = code.name
        if do in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif do in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif do in VALUES:
            stack.append(argument)
        elif do in CONSTANTS:
            stack.append(CONSTANTS[do])
        elif do == "MARK":
            marks.append(len(stack))
        elif do in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if do == "EMPTY_DICT" else [])
        elif do in TUPLES:
            stack[-TUPLES[do]:] = [tuple(stack[-TUPLES[do]:])]
        elif do == "TUPLE":
            stack.append(tuple(above_mark()))
        elif do in ("SETITEM", "SETITEMS"):
            items = above_mark() if do == "SETITEMS" else [stack.pop(-2), stack.pop()]
            if any(type(key) not in (str, Record) for key in items[::2]):
                raise ValueError("a key is neither a text nor an object")
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif do in ("APPEND", "APPENDS"):
            items = above_mark() if do == "APPENDS" else [stack.pop()]
            stack[-1].extend(items)
        elif do in ("STACK_GLOBAL", "GLOBAL"):
            name = (stack.pop(-2), stack.pop()) if argument is None else tuple(argument.split(" ", 1))
            if (name := tuple(map(_text, name))) not in known:
                raise ValueError(f"it names {'.'.join(name)[:100]!r}, which no such file needs")
            stack.append(Record(name))
        elif do in ("NEWOBJ", "REDUCE"):
            arguments = stack.pop()
            stack.append(Record(stack.pop().name, arguments))
        elif do == "BUILD":
            state = stack.pop()
            stack[-1].state = state
        elif do == "BINPERSID":
            stack.append(Record(("", "storage"), stack.pop()))
        elif do not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"its instruction {do} is in no such file")
        if len(stack) > 100_000 or len(memo) > 4_000_000:  # pickle writes the items of a list by the thousand
            raise ValueError("it is too deep, or remembers too much")
    return stack.pop()


SHAPE_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, MemoryError)


# .metadata

@dataclass(frozen=True)
class SavedBox:
    """Numbers of a tensor from `offsets` on, `sizes` of them: `length` bytes of `file` from `start` on."""

    offsets: Sizes
    sizes: Sizes
    file: str
    start: int
    length: int


@dataclass(frozen=True)
class SavedTensor:
    """A tensor of a checkpoint: its shape, its dtype and the boxes that make it up."""

    size: Sizes
    dtype: torch.dtype
    boxes: tuple[SavedBox, ...]


HEAD_BYTES = 16_384  # what torch.save writes around a tensor's numbers is about 1,300
MOST_DIMENSIONS = 16
MOST_NUMBERS = 2**62


def saved_tensors(folder: Path) -> dict[str, SavedTensor]:
    """Name -> size, dtype and boxes of every tensor in `folder`. DamagedCheckpoint for what no save has written."""
    path, files = folder / METADATA, read_manifest(folder)["files"]
    if problem := problem_with(path):
        raise DamagedCheckpoint(problem)
    try:
        with open(path, "rb") as file:
            return dict(_tensors_of(unpickle(file.read(MOST_BYTES), OF_METADATA), files))
    except SHAPE_ERRORS as error:
        raise DamagedCheckpoint(f"{path} is not what torch.distributed.checkpoint writes: {said_of(error)}") from error


def said_of(error: Exception) -> str:
    """Its words, where we or Python's reader of pickles found them; of others, that the form is another one."""
    text = " ".join(str(error).split()) if type(error) is ValueError else ""
    return text[:300] or f"its form is another one ({type(error).__name__})"


def _tensors_of(metadata: Record, files: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, SavedTensor]]:
    whole = _fields(metadata, "Metadata")
    places = {}
    used: Counter[str] = Counter()
    for key, value in whole["storage_data"].items():
        index, place = _fields(key, "MetadataIndex"), _fields(value, "_StorageInfo")
        name, file, start, length = _text(index["fqn"]), _text(place["relative_path"]), *map(_count, (
            place["offset"], place["length"]))
        if file not in files or file == METADATA or start + length > files[file]["bytes"]:
            raise ValueError(f"it places {name[:100]!r} outside the files of the checkpoint")
        used[file] += length
        places[name, _sizes(index["offset"])] = file, start, length
    for file, length in used.items():
        if length > files[file]["bytes"]:
            raise ValueError(f"it places more in {file} than that has bytes")
    for name, value in whole["state_dict_metadata"].items():
        if not (name.isprintable() and 0 < len(name) <= 1000):
            raise ValueError(f"it has a tensor called {name[:100]!r}")
        tensor = _fields(value, "TensorStorageMetadata")
        size, dtype = _sizes(tensor["size"]), DTYPES[tensor["properties"].state[0].name]
        boxes = []
        for chunk in tensor["chunks"]:
            fields = _fields(chunk, "ChunkStorageMetadata")
            offsets, sizes = _sizes(fields["offsets"]), _sizes(fields["sizes"])
            if (name, offsets) not in places:
                raise ValueError(f"no file holds the box of {name!r} at {list(offsets)}, or it is there twice")
            place = places.pop((name, offsets))  # so that each is looked at once, however often it is referred to
            if not len(size) == len(offsets) == len(sizes) or any(
                    offset + part > all_of_it for offset, part, all_of_it in zip(offsets, sizes, size)):
                raise ValueError(f"a box of {name!r} lies outside the tensor")
            if not 0 <= place[2] - math.prod(sizes) * dtype.itemsize <= HEAD_BYTES:
                raise ValueError(f"a box of {name!r} has {math.prod(sizes):,} numbers in {place[2]:,} bytes")
            boxes.append(SavedBox(offsets, sizes, *place))
        if sum(math.prod(box.sizes) for box in boxes) != math.prod(size):
            raise ValueError(f"the boxes of {name!r} are not the whole tensor, of shape {list(size)}")
        yield name, SavedTensor(size, dtype, tuple(boxes))


def _fields(record: Any, name: str) -> Mapping[str, Any]:
    """The attributes of an object of this class."""
    if type(record) is not Record or record.name[1] != name or record.arguments != () or type(record.state) is not dict:
        raise ValueError(f"something stands where a {name} should")
    return record.state


def _sizes(record: Record) -> Sizes:
    """What a torch.Size holds."""
    (sizes,) = record.arguments
    if record.name != SIZE or type(sizes) is not tuple or len(sizes) > MOST_DIMENSIONS:
        raise ValueError("something stands where a torch.Size should")
    if math.prod(max(1, _count(size)) for size in sizes) > MOST_NUMBERS:
        raise ValueError("a shape has more numbers than any memory")
    return sizes


def _text(value: Any) -> str:
    if type(value) is not str:  # what else there is, is neither printed nor hashed: tuples may be nested without end
        raise ValueError("something stands where a text should")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_NUMBERS:
        raise ValueError("something stands where a number of things should")
    return value


# Numbers

def read_box(folder: Path, box: SavedBox, dtype: torch.dtype) -> Tensor:
    """The numbers of one box, which must not be written to. DamagedCheckpoint where torch.save did not write them so.
    """
    path = folder / box.file
    with open(path, "rb") as file:
        file.seek(box.start)
        data = file.read(box.length)
    try:
        if data.count(b"PK\x01\x02") > 64:  # entries of its directory: seven, unless numbers look like one by chance
            raise ValueError("its directory has too many entries")
        archive = zipfile.ZipFile(io.BytesIO(data))
        members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        head = bytes(_stored(data, members["data.pkl"])[:HEAD_BYTES])
        strides, key = _form_of(unpickle(head, OF_TENSORS), box)
        numbers = _stored(data, members[f"data/{key}"])
        if len(numbers) != math.prod(box.sizes) * dtype.itemsize:
            raise ValueError(f"{len(numbers)} bytes of numbers, in the place of {math.prod(box.sizes)} {dtype}")
        if "byteorder" in members and _stored(data, members["byteorder"]) != sys.byteorder.encode():
            raise ValueError("its numbers have another byte order than this machine's")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")  # nobody will
            return torch.frombuffer(numbers, dtype=dtype).as_strided(box.sizes, strides)
    except (*SHAPE_ERRORS, zipfile.BadZipFile, NotImplementedError) as error:
        raise DamagedCheckpoint(f"{path}: bytes {box.start:,} to {box.start + box.length:,} are no tensor as "
                                f"torch.save writes it: {said_of(error)}") from error


def _stored(data: bytes, member: zipfile.ZipInfo) -> memoryview:
    """The bytes of a member of a zip file, which torch.save never compresses."""
    begin = member.header_offset
    name, extra = (int.from_bytes(data[begin + at:begin + at + 2], "little") for at in (26, 28))
    begin += 30 + name + extra
    if member.compress_type != zipfile.ZIP_STORED or begin + member.file_size > len(data):
        raise ValueError(f"its member {member.filename[:100]!r} is compressed, or ends behind the end")
    return memoryview(data)[begin:begin + member.file_size]


def _form_of(tensor: Record, box: SavedBox) -> tuple[Sizes, str]:
    """The strides of a tensor, and under which key its numbers are: from the first of them on, and no others."""
    storage, first, sizes, strides = tensor.arguments[:4]
    inside = 1 + sum((size - 1) * _count(stride) for size, stride in zip(sizes, strides, strict=True))
    if tensor.name not in REBUILD or first != 0 or sizes != box.sizes or inside != math.prod(sizes):
        raise ValueError("its head is of another tensor")
    return strides, _text(storage.arguments[2])


def read_pieces(folder: Path, state: State, sources: Mapping[str, str], saved: Mapping[str, SavedTensor]) -> None:
    """Fill the pieces of `state` from the files in `folder`, of which `saved` is the list.

    sources: names that are read from another name. Names and shapes have been looked at: see loading.py.
    """
    for name, pieces in state.items():
        tensor = saved[sources.get(name, name)]
        for box in tensor.boxes:
            wanted = [(piece, *both) for piece in pieces
                      if (both := overlap(box.offsets, box.sizes, piece.offsets, piece.tensor.shape))]
            numbers = read_box(folder, box, tensor.dtype) if wanted else None
            for piece, begin, sizes in wanted:
                into, out_of = ([a - b for a, b in zip(begin, of.offsets)] for of in (piece, box))
                take(piece.tensor, into, sizes).copy_(take(numbers, out_of, sizes))


def overlap(a: Sequence[int], a_sizes: Sequence[int], b: Sequence[int], b_sizes: Sequence[int]
            ) -> tuple[Sizes, Sizes] | None:
    """(where it begins, its sizes) of what two boxes have in common, by their offsets and sizes. None: nothing."""
    begin = tuple(map(max, a, b))
    sizes = tuple(min(x + m, y + n) - z for x, m, y, n, z in zip(a, a_sizes, b, b_sizes, begin))
    return (begin, sizes) if all(size > 0 for size in sizes) else None
