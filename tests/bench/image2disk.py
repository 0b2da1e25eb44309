"""image2disk, the action's own code: an image from nginx on loopback onto a loop device, beside `dd` of a local file.

dd has neither a network nor a checksum to compute: it is the floor, not a rival. Both end with the data flushed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.bed import BenchError, installed
from tests.bench.results import Row, Sample, alternate, row, say
from tests.ports import free_port

SIZE = 256 << 20
ROUNDS = 5
PEER = "dd, local file"
_ACTIONS = Path(__file__).parents[2] / "deploy" / "actions"
_PYTHON = "/usr/bin/python3"
_NGINX = """
daemon off; master_process off; worker_processes 1; pid {directory}/nginx.pid; error_log stderr;
events {{ worker_connections 64; }}
http {{
  access_log off; sendfile on; default_type application/octet-stream;
  client_body_temp_path {directory}/tmp; proxy_temp_path {directory}/tmp; fastcgi_temp_path {directory}/tmp;
  uwsgi_temp_path {directory}/tmp; scgi_temp_path {directory}/tmp;
  server {{ listen 127.0.0.1:{port}; root {directory}; }}
}}
"""


def run(directory: Path) -> list[Row]:
    """The rows. Raises BenchError."""
    nginx = installed("nginx")
    if nginx is None:
        raise BenchError("image2disk: nginx is not installed (nginx-light)")
    images = _images(directory)
    rows = []
    with ExitStack() as stack:
        url = stack.enter_context(_served(nginx, directory))
        device = stack.enter_context(_loop(directory))
        for what, name in images:
            say(f"image2disk: {what}")
            rounds = alternate(ROUNDS, _ours(f"{url}/{name}", device), _dd(directory / "x.raw", device))
            rows.append(row("image2disk", what, "MB/s", rounds, "speed", PEER))
    return rows


def _images(directory: Path) -> list[tuple[str, str]]:
    """Half of what a disk has compresses, and a quarter is zero, as in an installed system."""
    raw, dice = directory / "x.raw", random.Random(1)
    words = [dice.randbytes(6) for _ in range(4096)]
    with raw.open("wb") as file:
        for number in range(SIZE >> 20):
            if number % 4 == 0:
                file.write(dice.randbytes(1 << 20))
            elif number % 4 == 3:
                file.write(bytes(1 << 20))
            else:
                file.write(b"".join(dice.choices(words, k=(1 << 20) // 6 + 1))[: 1 << 20])
    made = [("raw", "x.raw")]
    for program, name, command in (
        ("zstd", "x.raw.zst", ["zstd", "-q", "-f", str(raw)]),
        ("gzip", "x.raw.gz", ["gzip", "-k", "-f", str(raw)]),
        ("qemu-img", "x.qcow2", ["qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), f"{directory}/x.qcow2"]),
    ):
        if installed(program) is None:
            say(f"image2disk: {program} is not installed: no row for it")
            continue
        subprocess.run(command, check=True)
        made.append((name.removeprefix("x.").replace(".", ", "), name))
    return made


@contextmanager
def _served(nginx: str, directory: Path) -> Iterator[str]:
    port, configuration = free_port(), directory / "nginx.conf"
    configuration.write_text(_NGINX.format(directory=directory, port=port))
    with (directory / "nginx.log").open("wb") as log:
        server = subprocess.Popen([nginx, "-c", str(configuration), "-e", "stderr"], stderr=log)
    try:
        time.sleep(0.5)
        if server.poll() is not None:
            raise BenchError(f"image2disk: nginx does not start: {(directory / 'nginx.log').read_text()[-300:]}")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@contextmanager
def _loop(directory: Path) -> Iterator[str]:
    file = directory / "disk"
    file.write_bytes(b"")
    os.truncate(file, SIZE)
    command = ["losetup", "--find", "--show", str(file)]
    device = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=False)


def _ours(url: str, device: str) -> Callable[[], Sample]:
    python = _PYTHON if Path(_PYTHON).exists() else sys.executable
    environment = {
        **os.environ,
        "IMG_URL": url,
        "DEST_DISK": device,
        "COMPRESSED": "true" if url.endswith(("zst", "gz")) else "false",
        "PYTHONPATH": f"{_ACTIONS}:{_ACTIONS.parents[1]}",
    }
    return lambda: _timed([python, "-m", "image2disk"], environment)


def _dd(file: Path, device: str) -> Callable[[], Sample]:
    return lambda: _timed(["dd", f"if={file}", f"of={device}", "bs=1M", "conv=fsync,notrunc"], dict(os.environ))


def _timed(command: list[str], environment: dict[str, str]) -> Sample:
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise BenchError(f"image2disk: {command[0]}: {done.stderr[-300:]}")
    return {"speed": SIZE / 1e6 / (time.monotonic() - began)}
