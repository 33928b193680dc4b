"""How a worker is started: in namespaces of its own where the operating system lets us, else as a plain process.

Inside, the file system is put together from what is needed and nothing else: the system's programs, this Python with
its packages, and the parts of course_lib that a rank uses, all read-only. Solutions, gradebook, other submissions and
home folders are not hidden in there; they do not exist. Process numbers and the network are its own too.
"""

import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from course_lib.grading.trusted.inside.privileges import LINUX, nobodys_uid, why_no_filter
from course_lib.grading.trusted.inside.student_code import OFFERED
from course_lib.runtime import backends

COURSE = Path(__file__).resolve().parents[3]
SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/ld.so.conf",
          "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/etc/hosts",
          "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
# Not the chapters: what they show is what exercises ask for. Of the grader what runs in there, and no judge.
SHOWN_OF_COURSE = ("__init__.py", "lazy.py", *OFFERED, "grading/__init__.py", "grading/on_rank.py",
                   "grading/trusted/__init__.py", "grading/trusted/inside")
PRIVILEGES = str(Path(__file__).with_name("inside") / "privileges.py")  # as a program it rehearses
SECRET = ("solutions", "gradebook.db", ".grading_key", "submitted", "autograded")
FOLDER = "/run/grader"  # inside: what one run shares
NAMESPACES = ("--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child=KILL")
TOOLS = ("unshare", "mount", "umount", "pivot_root", "ip", "ss")
MOUNT_FLAGS = {os.ST_NOSUID: "nosuid", getattr(os, "ST_NODEV", 4): "nodev", getattr(os, "ST_NOEXEC", 8): "noexec"}


@dataclass(frozen=True)
class Isolation:
    """What protects a run. `missing` says it in words, one sentence each; empty in namespaces."""

    separate: bool
    missing: tuple[str, ...] = ()
    other_user: bool = False  # without namespaces, but ranks run as a user of their own


def tool(name: str) -> str | None:
    """The path of a command line tool, also of one that only root's PATH has."""
    return shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin:/usr/bin:/bin")


def choose(wanted: str) -> Isolation:
    """The isolation for `wanted`: "auto", "required" or "none". ValueError for another word; RuntimeError where
    namespaces are required and this machine has none."""
    if wanted not in ("auto", "required", "none"):
        raise ValueError(f'isolation={wanted!r}: expected "auto", "required" or "none"')
    why = why_no_namespaces() if wanted != "none" else "isolation is switched off"
    if why is None:
        return Isolation(True)
    if wanted == "required":
        raise RuntimeError(f"isolation is required, and there is none here: {why}. To grade with less protection, and "
                           'only what you would run yourself, say c.TrustedGrade.isolation = "auto"')
    uncounted = () if tool("ss") and LINUX else ("no `ss` (iproute2): bytes are counted inside the ranks, where it can "
                                                 "be forged",)
    if unfiltered := why_no_filter():
        uncounted += (f"system calls are not filtered ({unfiltered}): nothing hinders memory that no limit counts",)
    around = f"student code can use {'the network, and ' * bool(unfiltered)}files to pass data around the counters"
    user = rehearse_other_user(os.getcwd())
    if user.why_not:
        return Isolation(False, (
            f"no namespaces ({why}), and no other user ({user.why_not}): student code can read and write what you can, "
            "solutions and gradebook included",
            around, "a process that hides from its parents may outlive the run", *uncounted))
    return Isolation(False, (
        f"no namespaces ({why}): student code runs as another user than you, and can read and write what everybody can"
        + f"; everybody can read {', '.join(user.readable)}" * bool(user.readable),
        around, *uncounted), other_user=True)


@dataclass(frozen=True)
class OtherUser:
    """Whether ranks can be another user's, and what that one could read that it should not."""

    why_not: str = ""  # "" where they can
    readable: tuple[str, ...] = ()


@cache
def rehearse_other_user(folder: str) -> OtherUser:
    """Tried, not guessed. folder: the teacher's, with solutions and gradebook."""
    uid = nobodys_uid()
    if uid is None:
        return OtherUser("that takes root on Linux")
    needed = [sys.executable, torch.__file__, *(str(COURSE / "course_lib" / part) for part in SHOWN_OF_COURSE)]
    secret = {os.path.join(top, name): name for top in (folder, str(COURSE)) for name in SECRET}
    asked = {"uid": uid, "needed": needed, "secret": list(secret)}
    attempt = subprocess.run([sys.executable, "-I", PRIVILEGES, json.dumps(asked)], capture_output=True, text=True,
                             timeout=60, env=environment(separate=False))
    if attempt.returncode:
        return OtherUser(f"an attempt failed: {attempt.stderr.strip()[-300:] or attempt.returncode}")
    found = json.loads(attempt.stdout)
    if found["unreadable"]:
        return OtherUser(f"it cannot read {found['unreadable'][0]}")
    return OtherUser(readable=tuple(dict.fromkeys(secret[path] for path in found["readable"])))


@cache
def why_no_namespaces() -> str | None:
    """None where a run can have its own namespaces; tried, not guessed."""
    if not LINUX:
        return "they need Linux"
    lacking = [name for name in TOOLS if tool(name) is None]
    if lacking:
        return f"no {', '.join(lacking)} here: install util-linux and iproute2"
    with tempfile.TemporaryDirectory() as root:
        attempt = subprocess.run(command(root, [sys.executable, "-I", PRIVILEGES]), capture_output=True, text=True,
                                 timeout=60, env=environment())
    if attempt.returncode == 0:
        return None
    return f"an attempt failed: {attempt.stderr.strip()[-300:] or attempt.returncode}"


def scratch() -> str:
    """Where a rank may write, inside: /tmp, unless the course or its Python lie in there, which it has to see."""
    needed = (COURSE, sys.prefix, sys.base_prefix)
    return "/scratch" if any(os.path.realpath(path).startswith("/tmp/") for path in needed) else "/tmp"


def environment(separate: bool = True) -> dict[str, str]:
    """All variables that a worker gets; `separate`: one in namespaces."""
    home = scratch() if separate else "/tmp"
    return {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
            "GLOO_SOCKET_IFNAME": "lo" if LINUX else "lo0", "TORCH_SHOW_CPP_STACKTRACES": "0",
            **backends.NO_GPUS}  # the same verdict on every machine


@contextmanager
def memory_group(num_bytes: int) -> Iterator[str]:
    """A control group, cgroups(7), that may hold so many bytes together, in which the system ends a rank first.

    Yields the shell line that joins it; "" where none can be made, which takes root and control groups to write to.
    """
    for top, limit in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
        folder = Path(top, f"grader-{secrets.token_hex(8)}")
        try:
            folder.mkdir()
            with open(folder / limit, "r+") as file:  # not made where it is missing: then this is no control group
                file.write(str(num_bytes))
        except OSError:
            with suppress(OSError):
                folder.rmdir()
            continue
        yield f"echo 0 > {q(str(folder / 'cgroup.procs'))}"
        for _ in range(100):  # until what was killed is gone
            with suppress(OSError):
                folder.rmdir()
                return
            time.sleep(0.01)
        return
    yield ""


def command(root: str, program: list[str], hidden: tuple[str, ...] = (), join: str = "") -> list[str]:
    """`program` in namespaces, in a file system put together at the empty folder `root`.

    hidden: folders that are never shown, even where a shown one holds them. join: the shell line of a memory_group.
    """
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    script = "\n".join(["set -e", join, *setup(root, hidden), "exec " + shlex.join(program)])
    return [tool("unshare"), *user, *NAMESPACES, "--", "/bin/sh", "-c", script]


def setup(root: str, hidden: tuple[str, ...]) -> list[str]:
    """Shell lines that make the file system at `root`, leave the old one and start the network."""
    lines = [f"mount -t tmpfs -o mode=755,size=16m,nosuid,nodev tmpfs {q(root)}", "umask 022"]
    covers = []
    for path, shown in choose_mounts(hidden):
        inside = root + path
        if not shown:
            lines.append(f"mount -t tmpfs -o mode=755,size=1m,nosuid,nodev tmpfs {q(inside)}")
            covers.append(f"mount -o remount,ro,nosuid,nodev {q(inside)}")
        elif os.path.islink(path):
            lines.append(f"mkdir -p {q(os.path.dirname(inside))}; ln -s {q(os.readlink(path))} {q(inside)}")
        elif os.path.isdir(path):
            lines.append(f"mkdir -p {q(inside)}; mount --rbind {q(path)} {q(inside)}")
            lines += [read_only(root, mounted) for mounted in mounts_in(path)]
        else:
            lines.append(f"mkdir -p {q(os.path.dirname(inside))}; : > {q(inside)}; mount --bind {q(path)} {q(inside)}")
            if not path.startswith("/dev/"):
                lines.append(read_only(root, path))
    return lines + covers + [
        f"cd {q(root)}; mkdir -p proc .{scratch()} old .{FOLDER}; mount -t proc proc proc",
        f"{tool('ip')} link set lo up",
        f"{tool('pivot_root')} . old; umount -l /old; rmdir /old; cd /",
    ]


def choose_mounts(hidden: tuple[str, ...]) -> list[tuple[str, bool]]:
    """(path, whether it is shown), the outer ones first. Hidden are the course and `hidden` where a shown folder holds
    them; and what has to be seen inside of those is shown again."""
    course = [str(COURSE / "course_lib" / part) for part in SHOWN_OF_COURSE]
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    wanted = [*SYSTEM, sys.prefix, sys.base_prefix, sys.exec_prefix, *packages, *course]
    kinds = {os.path.realpath(path): False for path in (str(COURSE), *hidden)}
    for path in wanted:  # beside a link what it points to; a path that leads through a link is its real one
        ends = (path, os.path.realpath(path)) if not leads_through_link(path) else (os.path.realpath(path),)
        kinds |= {one: True for one in ends if os.path.exists(one)}
    chosen: dict[str, bool] = {}
    for path in sorted(kinds, key=lambda path: path.count("/")):
        above = [other for other in chosen if path.startswith(other + "/") and not os.path.islink(other)]
        if kinds[path] != (bool(above) and chosen[max(above, key=len)]):
            chosen[path] = kinds[path]
    return list(chosen.items())


def leads_through_link(path: str) -> bool:
    """Whether a folder above `path` is a link, so that its real path is the one to show."""
    return os.path.realpath(os.path.dirname(path)) != os.path.dirname(path)


def mounts_in(path: str) -> list[str]:
    """`path` and the file systems mounted somewhere inside it: --rbind brings them along."""
    with open("/proc/self/mountinfo") as table:
        points = [line.split()[4].encode().decode("unicode_escape") for line in table]
    return [path, *sorted({point for point in points if point.startswith(path.rstrip("/") + "/")})]


def read_only(root: str, path: str) -> str:
    """The shell line that makes `path` read-only. It keeps other flags: without privileges they cannot be taken off."""
    try:
        flags = os.statvfs(path).f_flag
    except OSError:
        flags = 0
    kept = "".join(f",{word}" for flag, word in MOUNT_FLAGS.items() if flags & flag)
    return f"mount -o remount,bind,ro{kept} {q(root + path)}"


def q(path: str) -> str:
    """A path, quoted for the shell."""
    return shlex.quote(path)
