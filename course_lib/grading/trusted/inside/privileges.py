"""Linux: a rank gives up what it may do, for good, before it meets code of a student.

unshare(2), mount(2), prctl(2) and capset(2) have no place in Python's standard library before 3.12 or at all. The
command line tools cannot be used here: they start a new program, and the rank is forked from one that has torch.
"""

import ctypes
import os
import resource
import sys
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
    """A user that owns nothing, so that limits count for it alone; None where we are not root or there is only one."""
    if not LINUX or os.geteuid() != 0:
        return None
    ranges = [list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    last = max(first + count - 1 for first, _, count in ranges)  # a container may have no more than 65,536
    return min(last, 2_000_000_000) - 100 - os.getpid() % 10_000 if last > 20_000 else None


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


if __name__ == "__main__":
    rehearse()
