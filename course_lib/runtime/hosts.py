"""Two hosts on one machine: network namespaces of Linux joined by a cable, which may be a slow one.

    on_hosts(SCRIPT, "dp2,tp2", bytes_per_s=12.5e6)

runs the script under torchrun on both, as on a cluster: an agent on each host starts the ranks, and what they say to
one another goes through the cable. The kernel shapes it (tc, token bucket): nothing in the script sleeps or pretends.

All of it lives in a namespace of its own that ends with its process: nothing has to be taken down.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ADDRESSES = ("10.77.0.1", "10.77.0.2")
CABLES = ("cable0", "cable1")
LEAVE_OUT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
MAKE = """set -e
mount -t tmpfs none /run
ip link set lo up
for host in 0 1; do ip netns add host$host; done
ip link add cable0 netns host0 type veth peer name cable1 netns host1
for host in 0 1; do
  ip -n host$host addr add 10.77.0.$((host + 1))/24 dev cable$host
  ip -n host$host link set lo up; ip -n host$host link set cable$host up
done
"""
SHAPE = """for host in 0 1; do
  tc -n host$host qdisc add dev cable$host root tbf rate {bits}bit burst {burst} latency 1s
done
"""


class HostsUnavailable(RuntimeError):
    """This machine does not let us make hosts; the message says why."""


def on_hosts(script: str, *arguments: str, ranks_per_host: int = 2, bytes_per_s: float | None = None,
             timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run a Python script on two hosts under torchrun, `ranks_per_host` ranks on each, and wait for it.

    What it returns has `.stdout` and `.stderr` of the ranks of all hosts.

    script: its text. bytes_per_s: what the cable between the hosts carries each way; None: as much as it can.
    HostsUnavailable where a slow cable is asked for and this machine has no namespaces for us; without one, two agents
    on the machine itself will do. RuntimeError, with what was said, where a rank fails; TimeoutError after `timeout` s.
    """
    reason = why_not(bytes_per_s is not None)
    if reason and bytes_per_s is not None:
        raise HostsUnavailable(reason)
    with tempfile.TemporaryDirectory() as folder:
        file, agents = Path(folder, "script.py"), Path(folder, "agents.json")
        file.write_text(script, encoding="utf-8")
        commands = [agent(host, reason is None, file, arguments, ranks_per_host) for host in range(2)]
        agents.write_text(json.dumps(commands), encoding="utf-8")
        run = [sys.executable, "-I", __file__, str(agents)]  # by its file: without importing torch once more
        command = run if reason else inside(f"{MAKE}{shaping_command(bytes_per_s)}exec \"$@\"\n", *run)
        return finish(command, timeout)


def agent(host: int, namespaces: bool, file: Path, arguments: tuple[str, ...], ranks: int) -> list[str]:
    """The command of this host's agent; host 0 keeps the store."""
    address = ADDRESSES[host] if namespaces else "127.0.0.1"
    there = ["ip", "netns", "exec", f"host{host}"] if namespaces else []
    cable = CABLES[host] if namespaces else "lo" if sys.platform == "linux" else "lo0"
    master, port = (ADDRESSES[0], 29500) if namespaces else ("127.0.0.1", free_port())
    return [*there, "env", f"GLOO_SOCKET_IFNAME={cable}", sys.executable, "-m", "torch.distributed.run", "--nnodes=2",
            f"--nproc-per-node={ranks}", f"--node-rank={host}", f"--master-addr={master}", f"--master-port={port}",
            f"--local-addr={address}", str(file), *arguments]


@cache
def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def inside(shell: str, *command: str) -> list[str]:
    """`shell`, then `command`, in a network of their own; nothing in it outlives its first process."""
    mapped = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    own = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["unshare", *mapped, *own, "sh", "-c", shell, "sh", *command]


def shaping_command(bytes_per_s: float | None) -> str:
    """The command that slows a cable to bytes_per_s; "" for None. ValueError for a rate that is not positive."""
    if bytes_per_s is None:
        return ""
    if bytes_per_s <= 0:
        raise ValueError(f"bytes_per_s={bytes_per_s}: expected a positive number")
    burst = int(max(16384, bytes_per_s / 2000))  # what may pass at once: half a millisecond of it
    return SHAPE.format(bits=int(8 * bytes_per_s), burst=burst)


@cache
def why_not(slow: bool = True) -> str | None:
    """Why this machine has no hosts of ours, or with `slow` none with a slow cable; None where it has."""
    if sys.platform != "linux":
        return "only Linux has network namespaces"
    missing = [tool for tool in ("unshare", "ip", *(["tc"] if slow else [])) if not shutil.which(tool)]
    if missing:
        return f"the commands {', '.join(missing)} are not installed here"
    tried = subprocess.run(inside(MAKE + (shaping_command(1e6) if slow else "")), capture_output=True, text=True)
    return f"the kernel refuses: {tried.stderr.strip()}" if tried.returncode else None


def finish(command: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run the command to its end. TimeoutError, after all its processes were killed, where it takes longer."""
    kept = {name: value for name, value in os.environ.items() if name not in LEAVE_OUT}
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(command, env=environment, text=True, start_new_session=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        stdout, stderr = running.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"the hosts were not done after {timeout:g} s: {' '.join(command[-3:])}") from None
    finally:
        if running.poll() is None:
            os.killpg(running.pid, 9)
            running.communicate()
    if running.returncode:
        raise RuntimeError(f"a host ended with {running.returncode}:\n{stderr or stdout}")
    return subprocess.CompletedProcess(command, 0, stdout, stderr)


def main(file: str) -> int:
    """Run the agents of all hosts at once, their ranks' words as they come; the worst exit status."""
    running = [subprocess.Popen(command) for command in json.loads(Path(file).read_text(encoding="utf-8"))]
    try:
        return max(agent.wait() for agent in running)
    finally:
        for each in running:
            each.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
