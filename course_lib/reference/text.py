"""Real English text as byte tokens, and the batches cut from it.

Every CPython carries the text of its own help topics; a reader may bring a file instead: `load_text(path)` for one
call, COURSE_TEXT=FILE in the environment for everything that asks for no text of its own. The first nine
tenths are for training, the last tenth is held out. A batch is a pure function of (step, rank, world size),
so ranks agree on who reads what without sending a byte, and a run that resumes at step 700 sees what it would
have seen.

Shapes: N bytes of text, B rows in the global batch, T tokens in a row, R ranks.
"""

import os
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from course_lib.reference.gpt import GPTConfig

SPLITS = ("train", "held_out")


def load_text(path: str | Path | None = None, sequence_length: int = GPTConfig.sequence_length) -> Tensor:
    """The bytes of a file, or of Python's own help topics, as a (N,) uint8 tensor.

    The topics differ a little between Python versions, so their length does too. Where the environment names a file,
    COURSE_TEXT=FILE, that one stands for the topics. Their tensor is shared between callers: do not write into it.

    Raises ValueError, naming the path, when the file is not there, is a directory, is empty, or is too short for one
    row of `sequence_length` in its held-out tenth.
    """
    if path is None:
        chosen = os.environ.get("COURSE_TEXT")
        return _chosen_text(chosen, sequence_length) if chosen else _help_topics()
    file = Path(path)
    if not file.is_file():
        found = "not a file" if file.exists() else f"not found from '{Path.cwd()}'"
        raise ValueError(f"path must be a text file, got '{file}', which is {found}")
    content = file.read_bytes()
    if not content:
        raise ValueError(f"path must be a file with text in it, got '{file}', which is empty")
    # A bytearray, since a tensor over `bytes` would be writable memory that must not be written.
    tokens = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    for part in split_text(tokens):
        _require_a_row(part, sequence_length, f"'{file}' ({len(tokens):,} bytes)")
    return tokens


@lru_cache(maxsize=1)
def _chosen_text(path: str, sequence_length: int) -> Tensor:
    return load_text(path, sequence_length)


@lru_cache(maxsize=1)
def _help_topics() -> Tensor:
    from course_lib.reference.help_topics import TEXT  # made when it is first needed

    return torch.frombuffer(bytearray(TEXT), dtype=torch.uint8)


def split_text(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) tokens -> the first nine tenths, to train on, and the rest, held out. Views, not copies."""
    if not isinstance(tokens, Tensor):
        raise ValueError(f"tokens must be a tensor, as load_text(path) returns, got {tokens!r}")
    if tokens.dim() != 1 or not len(tokens) or tokens.is_floating_point():
        given = f"{tokens.dtype} of shape {tuple(tokens.shape)}"
        raise ValueError(f"tokens must be a 1-D tensor of at least one integer, got {given}")
    boundary = len(tokens) * 9 // 10
    return tokens[:boundary], tokens[boundary:]


def _require_a_row(part: Tensor, sequence_length: int, source: str) -> None:
    if len(part) < sequence_length + 1:  # T inputs, and the target of the last one
        raise ValueError(f"{source} is too short for sequence_length={sequence_length}: its train and held-out parts "
                         f"need {sequence_length + 1} tokens each, {10 * (sequence_length + 1):,} in all are enough")


def batches(step: int, rank: int = 0, world_size: int = 1, *, batch_size: int = 16,
            sequence_length: int = GPTConfig.sequence_length, tokens: Tensor | None = None, split: str = "train",
            seed: int = 0) -> tuple[Tensor, Tensor]:
    """This rank's rows of the batch of one step: inputs and targets, each (B_local, T) int64.

    Targets are the inputs one token later. `batch_size` is B, the rows of all ranks together. Ranks take
    consecutive rows, as torch.tensor_split deals them: when R does not divide B the first B mod R ranks hold
    one row more. Concatenated in rank order, the shards *are* the batch of world_size=1, for every world
    size.

    Raises ValueError when a rank would get no row, or `tokens` (default: Python's help topics) have no row to
    give.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..world_size-1, got rank={rank}, world_size={world_size}")
    if batch_size < world_size:
        raise ValueError("batch_size counts the rows of all ranks together and must be at least world_size, "
                         f"got batch_size={batch_size}, world_size={world_size}")
    if step < 0 or seed < 0 or sequence_length < 1:
        raise ValueError("step and seed must be at least 0 and sequence_length at least 1, "
                         f"got step={step}, seed={seed}, sequence_length={sequence_length}")
    if split not in SPLITS:
        raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
    text = load_text(sequence_length=sequence_length) if tokens is None else tokens
    part = split_text(text)[SPLITS.index(split)]
    _require_a_row(part, sequence_length, f"the text ({len(text):,} tokens)")
    # Every rank draws the starts of the whole batch and keeps its own: cheaper than telling each other.
    # numpy's generator, because torch's CPU generator keeps 32 bits of its seed: too few for (seed, step).
    starts = np.random.default_rng((seed, step)).integers(len(part) - sequence_length, size=batch_size)  # (B,)
    return _rows(part, torch.from_numpy(starts).tensor_split(world_size)[rank], sequence_length)


def held_out_rows(num_rows: int, sequence_length: int, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Inputs and targets, (num_rows, T) int64 each, spread over the held-out part: the same at every call."""
    text = load_text(sequence_length=sequence_length) if tokens is None else tokens
    _, part = split_text(text)
    _require_a_row(part, sequence_length, f"the text ({len(text):,} tokens)")
    last_start = len(part) - sequence_length - 1
    return _rows(part, torch.arange(num_rows, device="cpu") * last_start // max(num_rows - 1, 1), sequence_length)


def _rows(part: Tensor, starts: Tensor, sequence_length: int) -> tuple[Tensor, Tensor]:
    rows = part[starts[:, None] + torch.arange(sequence_length + 1, device="cpu")].long()  # (B_local, T + 1)
    own = torch.get_default_device()  # on a rank with a GPU: that one
    return rows[:, :-1].contiguous().to(own), rows[:, 1:].contiguous().to(own)


def unigram_entropy(tokens: Tensor) -> float:
    """-sum p ln p over the token frequencies, in nats a token (Shannon 1948).

    No guess that ignores what came before can have a lower mean loss on these tokens: a model below it has
    learnt from context.
    """
    counts = tokens.bincount().double()
    p = counts[counts > 0] / len(tokens)
    return -(p * p.log()).sum().item()
