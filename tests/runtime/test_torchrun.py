"""One script, started by plain python and by torchrun on two nodes: the same losses.

The two nodes are network namespaces joined by a cable (veth) where this machine lets us make them, else two agents of
torchrun on the loopback interface.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_WITHIN_S = 240.0  # a watchdog: eight interpreters import torch

SCRIPT = '''
import atexit, json, os, pathlib, sys

def last_of_all():
    names = [file.read_text() for file in pathlib.Path("/proc/self/task").glob("*/comm")]  # none but on Linux
    line = f"threads of gloo at the end: {sum('gloo' in name for name in names)}\\n"
    os.write(1, line.encode())  # in one piece: four ranks share the stream

atexit.register(last_of_all)  # what is registered first runs last
import torch
import torch.distributed as dist
from course_lib.runtime import launch

def train(num_steps):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(num_steps):
        shard = torch.Generator().manual_seed(100 * step + dist.get_rank())
        inputs = torch.randn(4, 8, generator=shard)  # (B, D)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        losses.append(loss.item())
    return losses

losses = launch(train, 5, world_size=int(sys.argv[1]))
if os.environ.get("RANK", "0") == "0":
    print("losses", json.dumps(losses))
'''


@dataclass(frozen=True)
class Node:
    """One of two machines: how to run a command on it, and its own address and network interface."""

    command: tuple[str, ...]
    address: str
    interface: str


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    mark = secrets.token_hex(3)
    names = [f"node{end}_{mark}" for end in "ab"]
    try:
        if not (shutil.which("ip") and hasattr(os, "geteuid") and os.geteuid() == 0):
            raise FileNotFoundError("no root, or no ip")
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", "cable_a", "netns", names[0], "type", "veth", "peer", "name", "cable_b", "netns", names[1])
        found = [Node(("ip", "netns", "exec", name), f"10.77.0.{number}", f"cable_{end}")
                 for number, (name, end) in enumerate(zip(names, "ab", strict=True), start=1)]
        for node, name in zip(found, names, strict=True):
            _ip("-n", name, "addr", "add", f"{node.address}/24", "dev", node.interface)
            for interface in (node.interface, "lo"):
                _ip("-n", name, "link", "set", interface, "up")
    except (OSError, subprocess.CalledProcessError):
        loopback = "lo" if sys.platform == "linux" else "lo0"
        found = [Node((), "127.0.0.1", loopback)] * 2
    yield found
    for name in names:
        if Path("/run/netns", name).exists():
            _ip("netns", "del", name)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    return {**kept, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}


def losses_in(output: str) -> list[list[float]]:
    lines = [line for line in output.splitlines() if line.startswith("losses ")]
    assert len(lines) == 1, output
    return json.loads(lines[0].removeprefix("losses "))


def by_torchrun(nodes: list[Node], script: Path, world_size: int) -> tuple[str, str]:
    """Run the script as 2 nodes of 2 ranks; returns stdout and stderr of both nodes together."""
    port, agents = free_port(), []
    for number, node in enumerate(nodes):
        agents.append(subprocess.Popen(
            [*node.command, sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2",
             "--rdzv-backend=c10d", f"--rdzv-endpoint={nodes[0].address}:{port}", "--rdzv-id=course",
             f"--rdzv-conf=is_host={int(number == 0)}", f"--local-addr={node.address}", str(script), str(world_size)],
            env={**environment(), "GLOO_SOCKET_IFNAME": node.interface},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ))
    try:
        outputs = [agent.communicate(timeout=_WITHIN_S) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    out, err = ("".join(texts) for texts in zip(*outputs, strict=True))
    assert [agent.returncode for agent in agents] == [0, 0], err
    return out, err


def test_two_nodes_under_torchrun_give_the_same_losses_as_launch(nodes, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    alone = subprocess.run([sys.executable, script, "4"], env=environment(), capture_output=True, text=True,
                           timeout=_WITHIN_S, check=True)
    # torchrun's own number of ranks counts, and whoever asked for another is told so.
    out, err = by_torchrun(nodes, script, world_size=3)
    assert losses_in(out) == losses_in(alone.stdout)
    assert len(losses_in(out)) == 4 and len({tuple(of_rank) for of_rank in losses_in(out)}) == 4
    # One that is still there could ask for Python's lock when Python has ended, which aborts the process.
    assert out.count("threads of gloo at the end: 0") == 4, out
    assert err.count("world_size=3 was asked for, but torchrun started 4 ranks: using 4") == 1
