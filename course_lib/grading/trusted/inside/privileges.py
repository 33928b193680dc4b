"""Linux: a rank gives up what it may do, for good, before it meets code of a student.

unshare(2), mount(2), prctl(2) and capset(2) have no place in Python's standard library before 3.12 or at all. The
command line tools cannot be used here: they start a new program, and the rank is forked from one that has torch.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import psutil

LINUX = sys.platform.startswith("linux")
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x20000, 0x8000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
CAPABILITY_VERSION_3 = 0x20080522


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}{arguments}: {os.strerror(error)}")


def set_process_option(option: int, value: int) -> None:
    """Set an option of this process by prctl(2). OSError where the system refuses."""
    _call("prctl", option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def leave_namespaces() -> None:
    """Own mounts and own shared memory for the caller, own process numbers for its children."""
    _call("unshare", CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID)


def mount(kind: str, target: str, flags: int = 0, options: str = "") -> None:
    """mount(2) of a file system that is its own source, such as proc. OSError where the system refuses."""
    _call("mount", kind.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode() or None)


def own_view_of_files(scratch_bytes: int) -> None:
    """Everything read-only but an empty $HOME of this process's own; /proc shows its own processes only."""
    mount("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("none", "/", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    mount("tmpfs", os.environ["HOME"], MS_NOSUID | MS_NODEV, f"size={scratch_bytes},mode=1777")


def give_up_privileges(uid: int | None) -> None:
    """No capability, no way to get one; another user where `uid` is given. Call it while there is one thread only."""
    if uid is not None:
        os.setgroups([])
    for capability in range(64):
        try:
            set_process_option(PR_CAPBSET_DROP, capability)
        except OSError:  # EINVAL: beyond the last one that this kernel has
            break
    if uid is not None:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())
    set_process_option(PR_SET_NO_NEW_PRIVS, 1)


def nobodys_uid() -> int | None:
    """A user that owns nothing, so that limits count for it alone; None where we are not root or there is only one.

    Another one for each process that asks, as numbers of processes end below 4,194,304.
    """
    if not LINUX or os.geteuid() != 0:
        return None
    ranges = [list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    last = max(first + count - 1 for first, _, count in ranges)  # a container may have no more than 65,536
    many = 1 << 22 if last > 1 << 23 else 10_000
    return min(last, 2_000_000_000) - 100 - os.getpid() % many if last > 20_000 else None


def kill_processes_of(uid: int) -> None:
    """Kill all that runs as this user, wherever it hides: a child of ours becomes that user, and may kill nothing else.
    """
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            if os.getresuid() == (uid, uid, uid) and uid:  # as root it would be everything on the machine
                os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def limit(memory_bytes: int, file_bytes: int, processes: int, cpu_s: int) -> None:
    """Limits of the operating system for the caller and what it starts; `memory_bytes` on top of what it has now."""
    wanted = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": file_bytes, "RLIMIT_CPU": cpu_s, "RLIMIT_NPROC": processes}
    if LINUX:
        wanted["RLIMIT_AS"] = psutil.Process().memory_info().vms + memory_bytes
    for name, value in wanted.items():
        kind = getattr(resource, name, None)
        if kind is None:
            continue
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def rehearse() -> None:
    """All of it, in a process that ends: does this machine allow what a rank has to do?"""
    uid = nobodys_uid()
    leave_namespaces()
    child = os.fork()
    if child == 0:
        own_view_of_files(1 << 20)
        limit(1 << 30, 1 << 20, 64, 10)
        give_up_privileges(uid)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


def rehearse_as_user(uid: int, needed: list[str], secret: list[str]) -> None:
    """Can ranks run as this user without namespaces? Says so in JSON: what of `needed` it cannot read, and what of
    `secret` it can. It fails where we may not become that user, or not kill what it runs."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        give_up_privileges(uid)
        found = {"unreadable": [path for path in needed if not os.access(path, os.R_OK)],
                 "readable": [path for path in secret if os.access(path, os.R_OK)]}
        os.write(writing, json.dumps(found).encode())
        time.sleep(60)  # to be killed
        os._exit(0)
    os.close(writing)
    found = os.read(reading, 1 << 16)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    sys.stdout.write(found.decode())
    sys.exit(not found)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        rehearse()
    else:
        rehearse_as_user(**json.loads(sys.argv[1]))
