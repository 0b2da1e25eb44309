"""`tinkedge` as a process with all modules imported: a fork of one process that imported them once.

Imports take most of a service's start, and the tests start some hundred services. This file is also the program of
that one process, the nursery. Each process of pytest starts its own nursery at the first use:

    a test -- command, environment, files for its output --> the nursery -- fork --> the namespace, then edge.cli.main
           <-- process id, later the exit status --

Everything else equals a command on the command line: a process of its own, in the namespace as `ip netns exec` enters
it, with this environment and these files, which ends as Python ends. Other tests start the program itself, and prove
that each role starts without the nursery: tests/boot, the packages, systemd (`test_systemd`). Tests that measure memory
or CPU time do that, too, because a fork shares pages and skips the imports.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

# unshare(2), mount(2), umount(2), prctl(2)
_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_MS_BIND, _MS_REC, _MS_SLAVE, _MNT_DETACH = 0x1000, 0x4000, 0x80000, 2
_PR_SET_PDEATHSIG = 1
_LOADED = ("serve", "agent", "doctor", "users", "watch")
"""The modules of edge.commands that tests start often."""
_MESSAGE_BYTES = 1 << 17


class Child:
    """A forked process, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, a signal as a negative number; None while the process runs."""
        if self.returncode is None:
            self.returncode = self._nursery.ended(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit status, at most `timeout` seconds. Raises subprocess.TimeoutExpired."""
        give_up = None if timeout is None else time.monotonic() + timeout
        pause = 0.001
        while (code := self.poll()) is None:
            if give_up is not None and time.monotonic() > give_up:
                raise subprocess.TimeoutExpired("tinkedge", timeout or 0)
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended. The nursery reports the end before the kernel reuses the id."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The connection to the process that forks. Any thread may use it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._ended: dict[int, int] = {}
        with theirs:
            # `tinkedge doctor` recognises forked processes by the second word.
            command = [sys.executable, "-X", "tinkedge", "-m", __name__, str(theirs.fileno())]
            # The nursery ends when this process closes its end of the socket, at the latest at its exit.
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=Path(__file__).parents[2]
            )
        atexit.register(self._close)

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()

    def begin(
        self,
        namespace: str,
        words: Sequence[str],
        out: IO[bytes],
        err: IO[bytes],
        env: Mapping[str, str],
        directory: Path | None = None,
    ) -> Child:
        """Start `tinkedge WORDS` in a network namespace and a directory; by default, in those of this process."""
        request = {
            "words": list(words),
            "namespace": namespace,
            "env": dict(env),
            "directory": str(directory or Path.cwd()),
        }
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [out.fileno(), err.fileno()])
            while "began" not in (answer := self._receive()):
                self._ended[answer["ended"]] = answer["status"]
            # The kernel reuses process ids: drop the status of an earlier process.
            self._ended.pop(answer["began"], None)
        return Child(self, answer["began"])

    def ended(self, pid: int) -> int | None:
        """Return the exit status of a process, once; None while it runs."""
        with self._lock:
            while pid not in self._ended and select.select([self._socket], [], [], 0)[0]:
                answer = self._receive()
                self._ended[answer["ended"]] = answer["status"]
            return self._ended.pop(pid, None)

    def _receive(self) -> dict[str, Any]:
        message = self._socket.recv(_MESSAGE_BYTES)
        assert message, "the process that forks others has ended"
        answer: dict[str, Any] = json.loads(message)
        return answer


@cache
def nursery() -> Nursery:
    """Return the nursery of this process; it ends with the process."""
    return Nursery()


# --- the process that forks -------------------------------------------------------------------------------------------


def _main(connection: socket.socket) -> None:
    """Fork on request until the connection closes; the forked processes end with this one."""
    for name in _LOADED:
        importlib.import_module(f"edge.commands.{name}")
    importlib.import_module("uvloop")
    gc.collect()
    gc.freeze()
    wakes, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([connection, wakes], [], [])
        if wakes in ready:
            os.read(wakes, 4096)
            _report_ended_children(connection)
        if connection in ready:
            message, files, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 2)
            if not message:
                return
            pid = os.fork()
            if not pid:
                for each in (wakes, woken):
                    os.close(each)
                connection.close()
                _become(json.loads(message), files)
            for each in files:
                os.close(each)
            connection.send(json.dumps({"began": pid}).encode())


def _report_ended_children(connection: socket.socket) -> None:
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            connection.send(json.dumps({"ended": pid, "status": os.waitstatus_to_exitcode(status)}).encode())


def _become(request: Mapping[str, Any], files: Sequence[int]) -> NoReturn:
    """Run the command in the forked process and exit with its status."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _libc("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL))
    for number, file in enumerate(files, start=1):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["env"])
    if request["namespace"]:
        _enter(request["namespace"])
    sys.argv = ["tinkedge", *request["words"]]
    from edge.cli import main

    main(prog_name="tinkedge")
    raise SystemExit(0)


def _enter(namespace: str) -> None:
    """Enter a network namespace as `ip netns exec` does: with its own /sys (no cgroups) and its files of /etc/netns."""
    handle = os.open(f"/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
    _libc("setns", handle, _CLONE_NEWNET)
    os.close(handle)
    _libc("unshare", _CLONE_NEWNS)
    _libc("mount", b"", b"/", b"none", _MS_SLAVE | _MS_REC, None)
    _libc("umount2", b"/sys", _MNT_DETACH)
    _libc("mount", namespace.encode(), b"/sys", b"sysfs", 0, None)
    for file in Path("/etc/netns", namespace).glob("*"):
        _libc("mount", os.fsencode(file), os.fsencode(Path("/etc", file.name)), b"none", _MS_BIND, None)


def _libc(name: str, *arguments: bytes | int | None) -> None:
    call = getattr(ctypes.CDLL(None, use_errno=True), name)
    if call(*arguments) < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
