"""Where the generators of random numbers stand, as two more tensors of the checkpoint: one row a rank.

    random_state.cpu       (R, 5056) uint8: torch's generator of the host
    random_state.device    (R, ...) uint8: that of the rank's GPU, where it has one

Dropout then draws on as if nothing had happened. In another layout the rows mean nothing to the new ranks: all of them
take rank 0's, because those of a tensor-parallel group have to draw the same. Python's and NumPy's generators are not
saved: the course's batches are functions of the step.
"""

import torch

from course_lib.checkpoint.piece import Piece, State
from course_lib.runtime import device

PREFIX = "random_state."


def random_pieces(r: int, n: int) -> State:
    """This rank's rows, in memory of their own."""
    states = {"cpu": torch.get_rng_state()}
    if device().type != "cpu":
        states["device"] = torch.get_device_module(device()).get_rng_state(device()).cpu()
    return {PREFIX + key: [Piece(state[None], (n, len(state)), (r, 0))] for key, state in states.items()}


def pieces_to_load(saved: dict[str, torch.Size], r: int) -> State:
    """Rows to be filled with those of place `r`. What the checkpoint does not have is not asked for: a run that goes
    on on another kind of device.
    """
    wanted = random_pieces(0, 1)
    return {name: [Piece(of_one.tensor, saved[name], (r, 0))] for name, (of_one,) in wanted.items()
            if name in saved and saved[name][1] == of_one.shape[1]}


def restore(state: State) -> None:
    """Set the generators to the rows that have been filled."""
    for name, (piece,) in state.items():
        if name == PREFIX + "cpu":
            torch.set_rng_state(piece.tensor[0])
        else:
            torch.get_device_module(device()).set_rng_state(piece.tensor[0], device())
