"""Real torch.distributed ranks from a notebook cell, and instruments to see what they do.

`launch` runs a function on every rank, `start_ranks` gives ranks that stay; `record_communication`, `record_memory`,
`record_timeline` and `seconds` measure inside them; `doctor` says what this machine can do. Files in reading order:

    launcher.py     launch and what it returns: checks what is asked for and sends it off; the same under torchrun
    errors.py       how else it can end
    context.py      who am I: rank, device, whether this is a rank, torchrun or a notebook
    backends.py     which backend carries the communication; joining the process group on the rank's own device
    operations.py   torch.distributed's operations by all their names, and what each sends
    staging.py      through the host's memory, where ranks share a GPU
    ranks/          where ranks come from and how a launch goes: the life of a call is told there
    team/           ranks that stay: start_ranks, and the cell magic %%ranks
    hosts.py        two hosts on one machine, joined by a cable that may be slow
    beside.py       the host's memory beside a GPU's: pinned blocks, copies while it computes
    instruments/    bytes, memory and time, measured inside a rank
    tensors.py      the tensors in anything
    torch_private.py  what torch keeps to itself and the course uses: all of it is here
    doctor.py       is this machine fit for the course?

A process has one of each of these, whoever asks: in the notebook's the pool that ranks come from, and one launch at a
time in it (launcher._one_at_a_time: a second thread's waits for its turn; teams have pools of their own); in a rank
what it is (context.current), its recordings, and torch's wrapped methods (pending, staging).
"""

import sys

from course_lib.lazy import load_on_use
from course_lib.runtime import context
from course_lib.runtime.ranks.pools import pool as _pool

# The server that forks ranks needs seconds to import torch: in a notebook it does so while this process imports torch
# itself, below, and while the reader reads. Elsewhere, where perhaps nothing is launched, the first launch starts it.
if sys.platform == "linux" and context.in_jupyter_kernel():
    _pool().start()

from course_lib.runtime import launcher
from course_lib.runtime.context import device
from course_lib.runtime.doctor import doctor
from course_lib.runtime.errors import Deadlock, LaunchError, LaunchTimeout, RankDied, RankFailed, TeamEnded
from course_lib.runtime.hosts import HostsUnavailable, on_hosts
from course_lib.runtime.instruments.clocks import seconds, sleep
from course_lib.runtime.instruments.communication import CommunicationLog, record_communication
from course_lib.runtime.instruments.memory import MemoryLog, process_bytes, record_memory
from course_lib.runtime.instruments.recordings import span
from course_lib.runtime.instruments.timeline import Timeline, record_timeline
from course_lib.runtime.launcher import Results, launch
from course_lib.runtime.team import team
from course_lib.runtime.team.team import Team, start_ranks

if context.in_jupyter_kernel():
    launcher.explain_in(context.ipython_shell())
if context.ipython_shell() is not None:
    team.register_in(context.ipython_shell())

load_on_use(__name__)
