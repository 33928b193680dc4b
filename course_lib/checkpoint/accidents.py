"""A lab for accidents: ranks that are killed, numbers that are wrong, ranks that are slow or wait for ever.

    draw_kills        which ranks die (SIGKILL), and when: at the beginning of a step, or in the midst of saving
    survive           launch, be killed, launch again, also with fewer ranks, as `torchrun --max-restarts` does
    find_corruption   memory: ranks that hold the same box of the same tensor compare checksums: who is alone is wrong
    find_outliers     computing: one rank's gradient, before it is averaged, is far longer or shorter than the others'
    repeat_elsewhere  computing: a neighbour computes a rank's gradient again, and the bits are compared
    find_stragglers   who computes longer than the others, in most steps
    write_later       a hang: this rank's last collectives and its stacks, after a while, as NCCL's watchdog does
    compare_traces    all ranks' collectives side by side, by torch's own analyser: which rank has not called which
    first_error       a script under torchrun: what the rank said that raised first

Replicas of data parallelism take the same step from the same averaged gradient, so that they stay equal to the bit. A
bit that flips in the memory of one makes it differ from then on. A gradient that was computed wrongly does not: the
average takes it to all replicas alike, so that it has to be looked for before the reduction. Under dp1, and under
ZeRO-3, there is one copy of each number: nothing to compare with, and what is left is to repeat a step on other chips.

Sources: Dixit et al. 2021, "Silent Data Corruptions at Scale"; Llama team 2024, section 3.3.4, 6 of 419 interruptions;
torch/csrc/distributed/c10d/FlightRecorder.hpp; torch.distributed.flight_recorder; torch.distributed.elastic's
documentation of TORCHELASTIC_ERROR_FILE.
"""

import faulthandler
import json
import math
import os
import pickle
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checkpoint.piece import State
from course_lib.checkpoint.saving import all_ranks
from course_lib.groups.exchange import agree
from course_lib.groups.membership import Group, member
from course_lib.runtime import launch
from course_lib.runtime.errors import LaunchError, RankDied
from course_lib.runtime.torch_private import flight_recorder_trace

SAVING_CODE = (os.path.join("course_lib", "checkpoint", ""), os.path.join("torch", "distributed", "checkpoint", ""))


@dataclass(frozen=True)
class Kill:
    """`rank` dies at the beginning of `step`; or, with `line`, in the save that comes after it, when that has run so
    many lines of Python.
    """

    rank: int
    step: int
    line: int | None = None

    def __str__(self) -> str:
        where = f"before step {self.step}" if self.line is None else f"in the save after step {self.step}"
        return f"rank {self.rank} dies {where}"

    def before_step(self, step: int) -> None:
        """Call it at the beginning of each step."""
        if self.line is None and self._is_now(step):
            die()

    @contextmanager
    def around_save(self, step: int) -> Iterator[None]:
        """Put it around each save(), `step` being the last one taken. It kills at the latest when the save returns."""
        if self.line is None or not self._is_now(step):
            yield
            return
        with dying_at(self.line):
            yield
        die()

    def _is_now(self, step: int) -> bool:
        return step == self.step and self.rank == all_ranks().r


NOBODY = Kill(rank=-1, step=-1)


def draw_kills(num: int, steps: int, world_size: int, save_every: int, seed: int = 0) -> list[Kill]:
    """`num` of them in a run of `steps` steps, in the order of their steps; every other one in a save. Each is of one
    attempt: see survive.
    """
    rng = random.Random(seed)
    saves = range(save_every - 1, steps, save_every)  # the steps after which a run saves
    if not 1 <= num <= len(saves):
        raise ValueError(f"num={num}: expected 1 to {len(saves)}, since a run of {steps} steps that saves after each "
                         f"{save_every} is to get on between two kills")
    return [Kill(rng.randrange(world_size), last, rng.randrange(3000)) if number % 2 else
            Kill(rng.randrange(world_size), last - rng.randrange(save_every))
            for number, last in enumerate(sorted(rng.sample(saves, num)))]


@dataclass(frozen=True)
class Attempt:
    """One launch: on `world_size` ranks, with this `kill` ahead. `error` is None where it came to its end."""

    world_size: int
    kill: Kill
    error: LaunchError | None
    results: list[Any] | None


def survive(train: Callable[..., Any], *args: Any, kills: Sequence[Kill], world_sizes: Sequence[int], **options: Any
            ) -> list[Attempt]:
    """launch(train, kill, *args) again and again, each time with the next of `kills`, and at the end with none.

    train(kill, *args) loads the last checkpoint, if there is one, calls kill.before_step(step) and puts
    kill.around_save(step) around save. world_sizes: of the first attempt, the second, and so on; the last one stays.
    options: of launch. An error that is no death goes up as it is.
    """
    attempts = []
    for number, kill in enumerate([*kills, NOBODY]):
        n = world_sizes[min(number, len(world_sizes) - 1)]
        try:
            attempts.append(Attempt(n, kill, None, launch(train, kill, *args, world_size=n, **options)))
            break
        except RankDied as error:
            attempts.append(Attempt(n, kill, error, None))
    return attempts


def die() -> None:
    """At once: nothing is flushed, closed or told to anybody."""
    os.kill(os.getpid(), signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)


@contextmanager
def dying_at(line: int) -> Iterator[None]:
    """Die when the code that saves and loads, ours and torch's, has run `line` lines, on this and on new threads."""
    left = [line]

    def enter(frame: FrameType, event: str, argument: Any) -> Callable | None:
        file = frame.f_code.co_filename  # a file is read in so many lines that hardly a kill would come after it
        return count if any(part in file for part in SAVING_CODE) and not file.endswith("reading.py") else None

    def count(frame: FrameType, event: str, argument: Any) -> Callable:
        left[0] -= event == "line"
        if left[0] < 0:
            die()
        return count

    threading.settrace(enter)
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(None)
        threading.settrace(None)


# Accidents that nobody reports: a number that is wrong, and a rank that is slow

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Corruption:
    """`name`: the tensor, of which the box at `offsets` differs. `ranks`: those that are in the minority; all that have
    it, where there is no majority, as of two.
    """

    name: str
    offsets: tuple[int, ...]
    ranks: tuple[int, ...]
    certain: bool

    def __str__(self) -> str:
        who = f"rank{'s' * (len(self.ranks) > 1)} {', '.join(map(str, self.ranks))}"
        return f"{self.name} is wrong on {who}" if self.certain else f"{self.name} differs between {who}"


@torch.no_grad()
def checksum(tensor: Tensor) -> int:
    """64 bits of the numbers' bits, each weighted by an odd number of its own place, so that no single bit, and no two
    numbers that change places, leave it as it was. Computed where the tensor is.
    """
    words = tensor.detach().contiguous().reshape(-1).view(WORDS[tensor.element_size()]).long()
    places = torch.arange(len(words), device=words.device) * 2654435761 * 2 + 1  # an odd multiplier loses no bit
    return int((words * places).sum())  # modulo 2^64


def find_corruption(state: State) -> list[Corruption]:
    """What the ranks that hold the same boxes do not agree on, the same list on all ranks. Collective: 8 bytes a box
    and the names. `state`: checkpoint.piece.pieces(model, optimizer), say.
    """
    mine = {(name, piece.offsets, tuple(piece.tensor.shape)): checksum(piece.tensor)
            for name, pieces in state.items() for piece in pieces}
    holders: dict[tuple, dict[int, list[int]]] = {}
    for rank, sums in enumerate(all_ranks().everyones(mine)):
        for box, of_one in sums.items():
            holders.setdefault(box, {}).setdefault(of_one, []).append(rank)
    found = []
    for (name, offsets, _), by_sum in sorted(holders.items()):
        if len(by_sum) > 1:
            *minorities, most = sorted(by_sum.values(), key=len)
            # Of two that differ nobody can say which one is wrong.
            certain = len(most) > max(map(len, minorities))
            wrong = sorted(sum(minorities if certain else by_sum.values(), []))
            found.append(Corruption(name, offsets, tuple(wrong), certain))
    return found


@torch.no_grad()
def flip_bit(tensor: Tensor, place: int, bit: int) -> None:
    """What a cosmic ray does: one bit of number `place` (flattened) of `tensor`, in place."""
    words = tensor.detach().view(-1).view(WORDS[tensor.element_size()])
    size = 8 * tensor.element_size()
    if not (0 <= place < len(words) and 0 <= bit < size):
        raise ValueError(f"place={place}, bit={bit}: expected a place below {len(words)} and a bit below {size}")
    # The highest bit of a signed word is its sign: 1 << bit would not fit into it.
    signed = 1 << bit if bit < size - 1 or words.dtype == torch.uint8 else -(1 << bit)
    words[place] ^= signed


@torch.no_grad()
def local_norm(parameters: Iterable[nn.Parameter]) -> float:
    """The length of what this rank has of the gradient. Before the reduction it is of this rank's own rows."""
    return float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))


def find_outliers(norms: Sequence[float], factor: float = 3.0) -> list[int]:
    """Places whose norm is more than `factor` times the others' median, or less than 1 / factor of it, or no number.

    norms[place]: of gradients of the same parameters, computed from equally many rows. Of two places that differ
    nobody knows which one is wrong: both are found.
    """
    found = []
    for place, norm in enumerate(norms):
        others = [other for at, other in enumerate(norms) if at != place and math.isfinite(other)]
        usual = statistics.median(others or [norm])
        if not usual / factor <= norm <= factor * usual:  # so, and not by >: nan is found, too
            found.append(place)
    return found


def repeat_elsewhere(gradients_of: Callable[[int], Sequence[Tensor]], group: Group = None) -> list[tuple[int, int]]:
    """Each rank computes its own gradients and its left neighbour's: the pairs (place, right neighbour) whose bits
    differ. Collective over `group`; a place that is in two pairs is the wrong one, where there are more than two.

    gradients_of(place): computed here, from the rows of that place and from parameters that all have. It has to give
    the same bits each time: the same kind of chip, a seed of its own where numbers are dropped.
    """
    me = member(group)
    own, left = (list(map(checksum, gradients_of(place % me.n))) for place in (me.r, me.r - 1))
    sums = agree(None, (own, left), group)
    pairs = [(place, (place + 1) % me.n) for place in range(me.n)] if me.n > 1 else []
    return [(place, right) for place, right in pairs if sums[place][0] != sums[right][1]]


def find_stragglers(seconds: Sequence[Sequence[float]], factor: float = 1.25) -> list[int]:
    """Ranks whose steps usually take more than `factor` times what the ranks' usually take.

    seconds[rank][step]: of computing alone. In whole steps all ranks are equally slow, since all wait for the slowest.
    Medians, so that one late step of a rank, and one slow rank of many, say nothing about the others.
    """
    usual = [statistics.median(of_rank) for of_rank in seconds]
    middle = statistics.median_low(usual)  # of two ranks: the faster one
    return [rank for rank, of_rank in enumerate(usual) if of_rank > factor * middle]


def gather_numbers(mine: Sequence[float], group: Group = None) -> list[list[float]]:
    """Each place's times or norms, for find_stragglers and find_outliers. Collective over `group`."""
    return agree(None, list(mine), group)


# A rank that waits for ever, with gloo as with NCCL

def write_later(folder: Path, after_s: float = 1.0) -> None:
    """In `after_s` seconds a thread of this rank writes trace_RANK (Flight Recorder) and stack_RANK (faulthandler) into
    `folder`, also while the rank waits inside a collective.
    """
    rank = dist.get_rank()

    def write() -> None:
        trace = pickle.loads(flight_recorder_trace())
        if unnamed := trace["pg_config"].pop("", None):  # torch 2.13: gloo leaves out the name of the world's group,
            trace["pg_config"]["0"] = {**unnamed, "name": "0", "desc": "default_pg"}  # for which the analyser asks
        (folder / f"trace_{rank}").write_bytes(pickle.dumps(trace))
        with open(folder / f"stack_{rank}", "w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file)

    threading.Timer(after_s, write).start()


def compare_traces(folder: Path) -> list[str]:
    """What torch's analyser says of the files trace_RANK in `folder`, which all ranks have to have written: its lines.
    """
    analyser = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), "-p", "trace_"]
    done = subprocess.run(analyser, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"{' '.join(analyser[1:])} ended with {done.returncode}: {done.stderr[-500:]}")
    return (done.stdout + done.stderr).splitlines()  # it logs


def first_error(script: str, num_ranks: int = 2) -> str:
    """Run `script` on ranks of torchrun: the message of the first exception that left a function under @record.

    ValueError where there is none.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, errors = Path(folder, "script.py"), Path(folder, "error.json")
        path.write_text(script, encoding="utf-8")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
        done = subprocess.run([*torchrun, path], env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(errors)},
                              capture_output=True)
        if not errors.exists():
            raise ValueError(f"torchrun ended with {done.returncode} and left no error: expected a script in which a "
                             "rank raises in a function under @record")
        return json.loads(errors.read_text(encoding="utf-8"))["message"]["message"]
