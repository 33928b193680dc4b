"""Hundreds of faults at random, and what launch makes of each: python -m tests.faults.soak [--faults N] [--seed S]

Each fault must end in its own error naming the right rank, in time, and leave nothing behind; the next launch works.
Prints a table, and exits with 1 where a promise was broken. Linux only: it looks into /proc.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
from collections import defaultdict

from tqdm.auto import trange

from course_lib.runtime import launch, launcher
from tests.faults import inside
from tests.faults.kinds import FAULTS, IN_LAUNCH, SOON_S, Plan, complaints, inject, rank_sum
from tests.faults.traces import Traces, traces

ROW = "{:<46} {:>6} {:>12} {:>10} {:>9}"
SERVER_LIMIT_S = 2.0  # after which a silent server counts as frozen; 25 s outside this soak


def soak(num_faults: int, seed: int) -> int:
    """Inject the faults in this process; returns the number of broken promises."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell makes its background jobs deaf to it
    launcher.pool().wait_for_preload()
    assert rank_sum_works(2), "launch does not work even without faults"
    choose = random.Random(seed)
    late_s: dict[str, list[float]] = defaultdict(list)
    broken: dict[str, list[str]] = defaultdict(list)
    for number in trange(num_faults, desc="faults", disable=None):
        kind = choose.choice(IN_LAUNCH)
        with inside.limits(lives_within_s=SERVER_LIMIT_S):
            late, told = one_fault(kind, choose)
        late_s[kind].append(late)
        broken[kind] += told
        for complaint in told:
            print(f"fault {number} ({kind}): {complaint}", flush=True)
    for kind in IN_LAUNCH:
        limit_s = SOON_S.get(FAULTS[kind].error)
        limit = f"{limit_s:.1f}" if limit_s else "-"
        worst = f"{max(late_s[kind]):.2f}" if late_s[kind] else "-"
        print(ROW.format(kind, len(late_s[kind]), worst, limit, len(broken[kind])))
    return sum(map(len, broken.values()))


def one_fault(kind: str, choose: random.Random) -> tuple[float, list[str]]:
    """Inject one fault somewhere; returns how late its end was in seconds, and what was not as promised."""
    world_size = choose.randint(2, 4)
    plan = Plan(choose.randrange(world_size), world_size, choose.randrange(20), 100_000, 200_000_000)
    before = traces(tempfile.gettempdir())
    outcome = inject(kind, plan)
    told = complaints(kind, plan, outcome)
    limit_s = SOON_S.get(FAULTS[kind].error)
    if limit_s is not None and outcome.late_s > limit_s:
        told.append(f"the error came after {outcome.late_s:.2f} s, promised were {limit_s:g} s")
    told += [f"left behind: {trace}" for trace in traces(tempfile.gettempdir()).since(before)]
    if not rank_sum_works(world_size):
        told.append("the next launch did not work")
    return outcome.late_s, told


def rank_sum_works(world_size: int) -> bool:
    return launch(rank_sum, world_size=world_size) == [sum(range(world_size))] * world_size


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(ROW.format("fault", "times", "latest s", "limit s", "broken"), flush=True)
    with tempfile.TemporaryDirectory() as tempfile.tempdir:  # all that the faults could leave lies in there
        os.environ["TMPDIR"] = tempfile.tempdir
        broken = soak(options.faults, options.seed)
        launcher.pool().close()
        left = traces(tempfile.tempdir).since(Traces(frozenset(), 0, traces().descriptors, frozenset()))
    print("at the end nothing is left" if not left else "\n".join(["left at the end:", *left]))
    sys.exit(1 if broken or left else 0)


if __name__ == "__main__":
    main()
