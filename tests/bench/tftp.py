"""TFTP: a boot file in blocks of 1468 bytes, window 1 and window 16, to the client atftp; against atftpd."""

from __future__ import annotations

import filecmp
import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from tests.bench.bed import SERVER_IP, BenchError, Cable, Server, installed, python
from tests.bench.results import Row, Sample, alternate, idle_note, row, say

SIZE = 32 << 20
NAME = "boot.efi"
BLOCK = 1468
WINDOWS = (1, 16)
ROUNDS = 5
PORT = 69
PEER = "atftpd"


class _Side:
    """One server and its client; `got` is where the client writes."""

    def __init__(self, cable: Cable, server: Server, sent: Path, got: Path) -> None:
        self._cable = cable
        self._server = server
        self._sent = sent
        self._got = got

    def fetch(self, window: int) -> Sample:
        """Megabytes a second, and milliseconds of the server's processor for a megabyte."""
        self._got.unlink(missing_ok=True)
        options = ["--option", f"blksize {BLOCK}", "--option", f"windowsize {window}"]
        command = ["atftp", *options, "-g", "-r", NAME, "-l", str(self._got), SERVER_IP]
        before, start = self._server.cpu_seconds(), time.perf_counter()
        done = subprocess.run(self._cable.client(command), capture_output=True, text=True, check=False, timeout=60)
        seconds = time.perf_counter() - start
        cpu = self._server.cpu_seconds() - before
        if done.returncode != 0 or not filecmp.cmp(self._sent, self._got, shallow=False):
            raise BenchError(f"TFTP, window {window}: the file did not arrive whole: {done.stdout}{done.stderr}")
        return {"speed": SIZE / 1e6 / seconds, "cpu": cpu * 1e3 / (SIZE / 1e6), "busy": cpu / seconds}


def run(directory: Path) -> list[Row]:
    """All rows of this subject."""
    if installed("atftp") is None:
        raise BenchError("the client atftp is not installed")
    boot = directory / "boot"
    boot.mkdir()
    sent = boot / NAME
    sent.write_bytes(os.urandom(SIZE))
    with ExitStack() as stack:
        cable = stack.enter_context(Cable())
        command = python("ours", server="tftp", directory=str(directory))
        server = cable.serve(command, directory / "ours.log", port=PORT, protocol="udp")
        ours, peer = _Side(cable, server, sent, directory / "got"), None
        if atftpd := installed("atftpd"):
            cable = stack.enter_context(Cable())
            server = cable.serve(_atftpd(atftpd, boot), directory / "atftpd.log", port=PORT, protocol="udp")
            peer = _Side(cable, server, sent, directory / "got")
        return [found for window in WINDOWS for found in _rows(ours, peer, window)]


def _atftpd(program: str, boot: Path) -> list[str]:
    quiet = ["--verbose=3", "--logfile", "-"]  # warnings
    return [program, "--daemon", "--no-fork", "--user", "root.root", "--bind-address", SERVER_IP, *quiet, str(boot)]


def _rows(ours: _Side, peer: _Side | None, window: int) -> list[Row]:
    say(f"tftp: {SIZE >> 20} MiB, window {window}")
    rounds = alternate(ROUNDS, lambda: ours.fetch(window), (lambda: peer.fetch(window)) if peer is not None else None)
    what = f"{SIZE >> 20} MiB, blksize {BLOCK}, window {window}"
    return [
        row("tftp", what, "MB/s", rounds, "speed", PEER, note=idle_note(rounds)),
        row("tftp", f"{what}: CPU", "ms/MB", rounds, "cpu", PEER, less_is_better=True),
    ]
