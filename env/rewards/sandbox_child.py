"""Runs one program under limits, and prints how it ended as JSON. Standard library only.

The launcher is told what to do on its standard input. It stays outside of the limits, waits, and
ends every process that the program has left: orphans become its children. The program itself has
its own process group, its own user, namespaces and a file system if the kernel allows them,
resource limits, rules for files (Landlock) and a filter of system calls. Tools such as bubblewrap
and nsjail need namespaces, which most containers refuse; Landlock and the filter need no right.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import resource
import select
import signal
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
NEW_MOUNTS, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NETWORK = (
    *(0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000),
)
FIRST_USER = 1_000_000
"""If root runs the launcher, the program's user is this number plus the launcher's process id."""
NOBODY = 65534
CHANGE_USER = 1 << 0 | 1 << 6 | 1 << 7
"""CAP_CHOWN, CAP_SETGID and CAP_SETUID."""
NAME_ROOT = 1 << 31
"""CAP_SETFCAP: without it, root cannot be named in a namespace of users."""
USERS = "/proc/self/uid_map"
"""The users of this process's namespace: ranges of their numbers."""
DENIED = {
    # socket, kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal, ptrace,
    # process_vm_readv, process_vm_writev; io_uring_setup, bpf, userfaultfd, add_key, request_key,
    # keyctl, unshare, setns, mount, perf_event_open
    "x86_64": (
        0xC000003E,
        *(41, 62, 200, 234, 129, 297, 424, 101, 310, 311),
        *(425, 321, 323, 248, 249, 250, 272, 308, 165, 298),
    ),
    "aarch64": (
        0xC00000B7,
        *(198, 129, 130, 131, 138, 240, 424, 117, 270, 271),
        *(425, 280, 282, 217, 218, 219, 97, 268, 40, 241),
    ),
}
"""Architecture's number for the kernel, and the system calls that fail with EPERM."""
CLONE = {"x86_64": 56, "aarch64": 220}
CLONE3 = 435
"""Its flags are in memory, where no filter sees them; without it, the C library calls `clone`."""
NEW_ANY = 0x7E020000
"""Every flag of `clone` for a new namespace: in one of users, the program would be root."""
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "usr", "etc", "opt", "nix")
"""Directories of the machine that hold programs and libraries, and nothing of a run."""
DEVICES = ("null", "zero", "full", "random", "urandom")
SHARED = ("tmp", "var/tmp", "dev/shm")
"""Where every user may write."""
MOST_FILES = 4096
READ_ONLY, NO_SETUID, NO_DEVICES, REMOUNT, BIND, RECURSIVE, PRIVATE = (
    *(1, 2, 4, 32, 4096, 1 << 14, 1 << 18),
)
"""Flags of mount(2)."""
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System calls of Landlock, on every architecture."""
RIGHTS_BY_VERSION = (0, 13, 14, 15)
"""How many rights each version of Landlock knows; version 3 added the last that is used here."""
EXECUTE, WRITE_FILE, READ_FILE, READ_DIRECTORY, TRUNCATE = 1, 2, 4, 8, 1 << 14


def main() -> None:
    job = json.load(sys.stdin)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        user = _user()
        namespaces = _namespaces(user)
        if user is not None:
            os.chown(job["directory"], user, user)
        status, timed_out = _run(job, user, namespaces)
    except OSError as error:
        print(json.dumps({"error": f"{error.strerror}: {error.filename or ''}".rstrip(": ")}))
        return
    print(json.dumps({"status": status, "timed_out": timed_out, "namespaces": namespaces}))


def _run(job: Mapping[str, Any], user: int | None, namespaces: Sequence[str]) -> tuple[int, bool]:
    """Return the program's exit status (or minus its signal), and whether its time was over."""
    read, write = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(read)
        _be_first(job, user, namespaces, write)
    os.close(write)
    timed_out = not select.select([read], [], [], job["wall_seconds"])[0]
    os.kill(first, signal.SIGKILL)  # in a namespace of its own, all others die with it
    _end_descendants()
    with os.fdopen(read) as pipe:
        said = pipe.read()
    if said.startswith("status "):
        return int(said.split()[1]), timed_out
    if timed_out:
        return -signal.SIGKILL, True
    raise OSError(0, said or "the program's parent was killed")


def _be_first(
    job: Mapping[str, Any], user: int | None, namespaces: Sequence[str], answer: int
) -> NoReturn:
    """Start the program, and write its exit status to `answer`, or why it did not start.

    The first process of a namespace ignores limits on its CPU time: the program is the second.
    """
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    failure_read, failure_write = os.pipe()
    program = os.fork()
    if program == 0:
        _become(job, user, namespaces, failure_write)
    os.close(failure_write)
    failure = os.read(failure_read, 4096)
    while True:
        found, status = os.wait()
        if found == program:
            said = f"status {os.waitstatus_to_exitcode(status)}\n".encode()
            os.write(answer, failure or said)
            os._exit(0)


def _end_descendants() -> None:
    """Kill what the program has started, until nothing is left. Orphans come to this process."""
    while True:
        for child in _descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def _descendants() -> list[int]:
    parents: dict[int, int] = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (directory / "stat").read_text().rpartition(")")[2].split()
                parents[int(directory.name)] = int(fields[1])
    found = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return list(found - {os.getpid()})


def _namespaces(other_user: int | None) -> list[str]:
    """Leave the machine's namespaces, as far as the kernel allows it. Return the new ones."""
    user, group = os.getuid(), os.getgid()
    wanted = {"network": NEW_NETWORK, "pid": NEW_PIDS, "ipc": NEW_IPC, "mount": NEW_MOUNTS}
    every = NEW_NETWORK | NEW_PIDS | NEW_IPC | NEW_MOUNTS
    if other_user is not None:  # a namespace of users would not know that user
        if LIBC.unshare(every) == 0:
            return list(wanted)
        return [name for name, flag in wanted.items() if LIBC.unshare(flag) == 0]
    if (user == 0 and not _may(NAME_ROOT)) or LIBC.unshare(NEW_USER | every) != 0:
        return []
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return ["user", *wanted]


def _may(capabilities: int) -> bool:
    status = Path("/proc/self/status").read_text()
    (held,) = (line for line in status.splitlines() if line.startswith("CapEff:"))
    return int(held.split()[1], 16) & capabilities == capabilities


def _user() -> int | None:
    """Return the program's user; None if it stays this one, who may not change it.

    A container may know few users, and its root may have no capability.
    """
    if not _may(CHANGE_USER):
        return None
    rows = [tuple(map(int, row.split())) for row in Path(USERS).read_text().splitlines()]
    return next(
        (
            user
            for user in (FIRST_USER + os.getpid(), NOBODY)
            if any(first <= user < first + count for first, _, count in rows)
        ),
        None,
    )


def _become(
    job: Mapping[str, Any], user: int | None, namespaces: Sequence[str], failure: int
) -> NoReturn:
    """Turn this process into the program. Write to `failure` why that is impossible."""
    try:
        os.setsid()
        _redirect(job)
        own_files = "mount" in namespaces and _own_files(job, user, has_pids="pid" in namespaces)
        _limit(job["limits"])
        if user is not None:
            _change_user(user)
        LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _restrict_files(job, own_files=own_files)
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        filtered = _filter_system_calls()
        if not filtered and "network" not in namespaces:
            raise OSError(0, "this kernel offers no way to run a program without network")
        for python in job["pythons"]:
            with contextlib.suppress(PermissionError, FileNotFoundError):
                os.execve(python, [python, *job["arguments"]], job["environment"])
        raise OSError(0, f"user {os.getuid()} may execute none of {', '.join(job['pythons'])}")
    except OSError as error:
        what = f": {error.filename}" if error.filename else ""
        os.write(failure, f"{error.strerror}{what}".encode())
    finally:
        os._exit(127)


def _own_files(job: Mapping[str, Any], user: int | None, *, has_pids: bool) -> bool:
    """Give the program a file system of its own. Return whether the kernel allows it.

    It has the machine's programs and libraries, and one tmpfs for all that the program writes.
    Nothing of a run is in it, and of other processes only those of its own namespace.
    """
    root, program = Path(job["directory"]), Path(job["directory"], "program.py").read_bytes()
    size = f"size={job['written_bytes']},nr_inodes={MOST_FILES},mode=0755".encode()
    flags = NO_SETUID | NO_DEVICES
    if LIBC.mount(None, b"/", None, PRIVATE | RECURSIVE, None) != 0:
        return False
    if LIBC.mount(b"tmpfs", os.fsencode(root), b"tmpfs", flags, size) != 0:
        if has_pids:
            LIBC.mount(b"proc", b"/proc", b"proc", 0, None)
        return False
    for name in SYSTEM:
        _show(Path("/", name), root)
    for path in map(Path, job["shown"]):
        if not any(path.is_relative_to(f"/{name}") for name in SYSTEM):
            _show(path, root)
    for name in SHARED:
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name).chmod(0o1777)
    for name in DEVICES:
        (root / "dev" / name).touch()
        _bind(Path("/dev", name), root / "dev" / name)
    (root / "proc").mkdir()
    if has_pids:
        LIBC.mount(b"proc", os.fsencode(root / "proc"), b"proc", 0, None)
    inside = root / root.relative_to("/")
    inside.mkdir(parents=True, exist_ok=True)
    (inside / "program.py").write_bytes(program)
    if user is not None:
        os.chown(inside, user, user)
    os.chroot(root)
    os.chdir(job["directory"])
    return True


def _show(path: Path, root: Path) -> None:
    """Show a directory of the machine, or a link of its root, below `root`."""
    there = root / path.relative_to("/")
    if path.is_symlink() and path.parent == Path("/"):
        there.symlink_to(path.readlink())
    elif path.is_dir():
        there.mkdir(parents=True, exist_ok=True)
        _bind(path, there)


def _bind(path: Path, there: Path) -> None:
    """Raises OSError."""
    at = os.fsencode(there)
    if LIBC.mount(os.fsencode(path), at, None, BIND | RECURSIVE, None) != 0:
        raise OSError(ctypes.get_errno(), "a directory of the sandbox cannot be mounted", str(path))
    if path.is_dir():  # in a namespace of users the kernel may refuse: then modes alone protect it
        LIBC.mount(None, at, None, BIND | REMOUNT | READ_ONLY | NO_SETUID, None)


def _restrict_files(job: Mapping[str, Any], *, own_files: bool) -> None:
    """Refuse, if the kernel has Landlock, all files but programs, libraries and what is its own."""
    version = LIBC.syscall(CREATE_RULESET, None, 0, 1)
    if version < 1:
        return
    every = (1 << RIGHTS_BY_VERSION[min(version, len(RIGHTS_BY_VERSION) - 1)]) - 1
    handled = ctypes.create_string_buffer(struct.pack("Q", every), 8)
    rules = LIBC.syscall(CREATE_RULESET, handled, 8, 0)
    if rules < 0:
        return
    reads = EXECUTE | READ_FILE | READ_DIRECTORY
    writes_device = (READ_FILE | WRITE_FILE | TRUNCATE) & every
    granted = {
        **{f"/{name}": reads for name in SYSTEM},
        **dict.fromkeys(job["shown"], reads),
        "/proc" if own_files else "/proc/self": READ_FILE | READ_DIRECTORY,
        **{f"/dev/{name}": writes_device for name in DEVICES},
        **({f"/{name}": every for name in SHARED} if own_files else {}),
        job["directory"]: every,
    }
    for path, rights in granted.items():
        with contextlib.suppress(OSError):
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, opened), 12)
            LIBC.syscall(ADD_RULE, rules, 1, rule, 0)
            os.close(opened)
    LIBC.syscall(RESTRICT_SELF, rules, 0)
    os.close(rules)


def _redirect(job: Mapping[str, Any]) -> None:
    directory = Path(job["directory"])
    os.chdir(directory)
    for name, number, flags in (
        ("stdin", 0, os.O_RDONLY),
        ("stdout", 1, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(directory / name, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _limit(limits: Mapping[str, int]) -> None:
    for name, value in limits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        _, most = resource.getrlimit(number)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(number, (value, value))


def _change_user(user: int) -> None:
    """Raises OSError."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _filter_system_calls() -> bool:
    """Return whether calls to the network and to other processes fail from now on."""
    if platform.machine() not in DENIED:
        return False
    architecture, *denied = DENIED[platform.machine()]
    load, equal, at_least, has_any, give = 0x20, 0x15, 0x35, 0x45, 0x06
    kill, refuse, unknown, allow = 0x80000000, 0x00050000 | 1, 0x00050000 | 38, 0x7FFF0000
    last = 5  # rules between the denied calls and `refuse`
    rules = [
        (load, 0, 0, 4),
        (equal, 1, 0, architecture),
        (give, 0, 0, kill),
        (load, 0, 0, 0),
        (at_least, len(denied) + last, 0, 0x40000000),  # x86's third way to call
        *((equal, len(denied) - place - 1 + last, 0, call) for place, call in enumerate(denied)),
        (equal, last, 0, CLONE3),
        (equal, 0, 2, CLONE[platform.machine()]),
        (load, 0, 0, 16),  # its flags
        (has_any, 1, 0, NEW_ANY),
        (give, 0, 0, allow),
        (give, 0, 0, refuse),
        (give, 0, 0, unknown),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = struct.pack("HP", len(rules), ctypes.addressof(code))
    if LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return bool(LIBC.prctl(PR_SET_SECCOMP, 2, program) == 0)


if __name__ == "__main__":
    main()
