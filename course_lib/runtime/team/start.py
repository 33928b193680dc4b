"""`start_ranks(world_size=4)`: ranks that stay, with the arguments of launch."""

from typing import Literal

from course_lib.runtime import backends, context
from course_lib.runtime.launcher import check_options
from course_lib.runtime.ranks.pools import pool_that_stays
from course_lib.runtime.team import namespace
from course_lib.runtime.team.staying import StayingRanks, TorchrunRanks
from course_lib.runtime.team.team import Team


def start_ranks(
    world_size: int = 4,
    *,
    backend: Literal["auto", "nccl", "gloo", "gloo-cuda"] = "auto",
    device: Literal["auto", "cpu"] = "auto",
    timeout: float = 60.0,
    seed: int = 0,
    threads: int = 1,
    env: dict[str, str] | None = None,
) -> Team:
    """Start `world_size` ranks that keep what they hold from one call, or cell, to the next, and return them as a team.

    The arguments are those of launch. `timeout` counts for each call by itself, and random numbers are seeded once, at
    the start. Under torchrun the same call joins the group that torchrun describes; each rank of the program then has
    names of its own beside those of the script. An idle rank holds 10 MB of its own.

    Raises ValueError for arguments that cannot work, and a LaunchError where the ranks do not start.
    """
    check_options(world_size, timeout, seed, threads, env)
    if context.in_rank():
        raise ValueError("start_ranks was called inside a rank. A rank cannot start ranks: call it from the notebook")
    if context.under_torchrun():
        return Team(TorchrunRanks(world_size, backend, device, timeout, seed))
    backend = backends.choose(backend, device, world_size)
    env = {**backends.hide_gpus(backend), **(env or {})}
    ranks = StayingRanks(pool_that_stays(), world_size, backend, seed, threads, timeout, env)
    try:
        ranks.call("nothing yet", namespace.do_nothing, (), {})
    except BaseException:
        ranks.close()
        raise
    return Team(ranks)
