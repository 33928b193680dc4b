"""Linux: a rank gives up what it may do, for good, before it meets code of a student.

unshare(2), mount(2), prctl(2) and capset(2) have no place in Python's standard library before 3.12 or at all. The
command line tools cannot be used here: they start a new program, and the rank is forked from one that has torch.
System calls are filtered by libseccomp, which apt and systemd bring along.
"""

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import sys
import time
from functools import cache
from pathlib import Path

import psutil

LINUX = sys.platform.startswith("linux")
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x20000, 0x8000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
CAPABILITY_VERSION_3 = 0x20080522
CLONE_NEWUSER = 0x10000000
MAX_FILES = 128  # open at once: each may hold memory that no limit counts, as a pipe's

# System calls that no answer needs once the ranks have met, by what they would be a way to.
REFUSED_CALLS = {
    "another network than the counted one": "socket socketpair bind listen connect accept accept4 setsockopt",
    "memory that no limit counts": "memfd_create memfd_secret shmget shmat msgget semget mq_open userfaultfd",
    "words to other ranks, by what all of them can see": "flock inotify_init inotify_init1 inotify_add_watch "
                                                         "fanotify_init add_key keyctl request_key",
    "whether others have read a file": "preadv2 fadvise64 readahead cachestat",
    "the memory and files of other processes": "ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp",
    "namespaces and file systems of its own": "unshare setns mount umount2 pivot_root chroot fsopen open_tree "
                                              "move_mount clone3",
    "all of these, past this filter": "io_uring_setup",
    "more of the kernel than is good": "bpf perf_event_open",
}
LOCKS = (fcntl.F_GETLK, fcntl.F_SETLK, fcntl.F_SETLKW, 36, 37, 38, 1024, 1026)  # of fcntl(2), OFD's, leases and signals
SCMP_ACT_ALLOW, SCMP_ACT_ERRNO = 0x7FFF0000, 0x00050000
SCMP_FLTATR_ACT_BADARCH, SCMP_FLTATR_CTL_TSYNC, SCMP_CMP_MASKED_EQ = 2, 4, 7


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


def be_ended_first() -> None:
    """Memory is limited for each process: where all together have too much, the system ends these before any other."""
    Path("/proc/self/oom_score_adj").write_text("1000")


def own_view_of_files(scratch_bytes: int) -> None:
    """Everything read-only but an empty $HOME of this process's own; /proc shows its own processes only."""
    mount("proc", "/proc", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)  # whose settings of the network are shared
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


class Comparison(ctypes.Structure):
    """struct scmp_arg_cmp: whether an argument of a system call has these bits, of those in a mask."""

    _fields_ = [("argument", ctypes.c_uint), ("how", ctypes.c_int),
                ("mask", ctypes.c_uint64), ("bits", ctypes.c_uint64)]


def filter_system_calls() -> None:
    """Refuse REFUSED_CALLS and locks of files, in all threads of this process and all that it starts, for good.

    It needs PR_SET_NO_NEW_PRIVS. OSError where there is no libseccomp or the system refuses.
    """
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    filtered = ctypes.c_void_p(library.seccomp_init(SCMP_ACT_ALLOW))

    def refuse(call: str, error: int = errno.EPERM, *compared: Comparison) -> None:
        number = library.seccomp_syscall_resolve_name(call.encode())  # of a call that this library does not know: -1
        if number != -1 and (failed := library.seccomp_rule_add_array(
                filtered, SCMP_ACT_ERRNO | error, number, len(compared), (Comparison * len(compared))(*compared))):
            raise OSError(-failed, f"no rule for {call}")

    for call in " ".join(REFUSED_CALLS.values()).split():
        refuse(call, errno.ENOSYS if call == "clone3" else errno.EPERM)  # then threads are made by clone
    refuse("clone", errno.EPERM, Comparison(0, SCMP_CMP_MASKED_EQ, CLONE_NEWUSER, CLONE_NEWUSER))
    for command in LOCKS:  # the kernel looks at 32 bits of it
        refuse("fcntl", errno.EPERM, Comparison(1, SCMP_CMP_MASKED_EQ, 0xFFFFFFFF, command))
    library.seccomp_attr_set(filtered, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO | errno.EPERM)  # of 32 bits, say
    library.seccomp_attr_set(filtered, SCMP_FLTATR_CTL_TSYNC, 1)
    failed = library.seccomp_load(filtered)
    library.seccomp_release(filtered)
    if failed:
        raise OSError(-failed, "no filter of system calls")


@cache
def why_no_filter() -> str:
    """Why this machine cannot filter system calls, "" where it can; tried by a child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            set_process_option(PR_SET_NO_NEW_PRIVS, 1)
            filter_system_calls()
        except (OSError, AttributeError) as error:  # AttributeError: a system without prctl
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading, "rb") as said:
        return said.read().decode()


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
    wanted = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": file_bytes, "RLIMIT_CPU": cpu_s, "RLIMIT_NPROC": processes,
              "RLIMIT_NOFILE": MAX_FILES}
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
        be_ended_first()
        own_view_of_files(1 << 20)
        limit(1 << 30, 1 << 20, 64, 10)
        give_up_privileges(uid)
        filter_system_calls()
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
