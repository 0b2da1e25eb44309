"""image2disk, the action's own code: an image from nginx on loopback onto a loop device, beside `curl | zstd -dc | dd`.

The peer is what a script would do: the same server, the same disk, the programs of Debian; without a checksum, and
without a second attempt. Both end with the data flushed.
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

SIZE = 512 << 20
SPARSE_SIZE = 2 << 30
"""Size of an image of which 90 % are zeros, like that of a system on a large disk."""
ROUNDS = 5
UNPACKERS = {".gz": "gzip -dc |", ".zst": "zstd -dcq |", ".raw": ""}
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
    for program in ("curl", "zstd", "gzip"):
        if installed(program) is None:
            raise BenchError(f"image2disk: {program} is not installed")
    rows = []
    with ExitStack() as stack:
        url = stack.enter_context(_served(nginx, directory))
        device = stack.enter_context(_loop(directory))
        for name, size, is_sparse in (("x", SIZE, False), ("sparse", SPARSE_SIZE, True)):
            for file in _images(directory, name, size, is_sparse=is_sparse):
                what = file.suffixes[0][1:] + "".join(f", {ending[1:]}" for ending in file.suffixes[1:])
                what += ", 90 % zeros" if is_sparse else ""
                say(f"image2disk: {what}")
                rounds = alternate(ROUNDS, _ours(f"{url}/{file.name}", device, size), _peer(url, file, device, size))
                rows.append(row("image2disk", what, "MB/s", rounds, "speed", _peer_name(file)))
    return rows


def _images(directory: Path, name: str, size: int, *, is_sparse: bool) -> Iterator[Path]:
    """Half of what a disk has compresses, and a quarter is zero, as in an installed system; or nine tenths are."""
    raw, dice = directory / f"{name}.raw", random.Random(1)
    words = [dice.randbytes(6) for _ in range(4096)]
    with raw.open("wb") as file:
        for number in range(size >> 20):
            if number % 20 > 1 if is_sparse else number % 4 == 3:
                file.write(bytes(1 << 20))
            elif number % 4 == 0:
                file.write(dice.randbytes(1 << 20))
            else:
                file.write(b"".join(dice.choices(words, k=(1 << 20) // 6 + 1))[: 1 << 20])
    yield raw
    for command, ending in ((["zstd", "-q", "-f"], "zst"), (["gzip", "-k", "-f"], "gz")):
        subprocess.run([*command, str(raw)], check=True)
        yield directory / f"{name}.raw.{ending}"
    if installed("qemu-img") is None:
        say("image2disk: qemu-img is not installed: no row for qcow2")
        return
    qcow2 = directory / f"{name}.qcow2"
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(qcow2)], check=True)
    yield qcow2


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
    os.truncate(file, SPARSE_SIZE)
    command = ["losetup", "--find", "--show", str(file)]
    device = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=False)


def _ours(url: str, device: str, size: int) -> Callable[[], Sample]:
    python = _PYTHON if Path(_PYTHON).exists() else sys.executable
    environment = {
        **os.environ,
        "IMG_URL": url,
        "DEST_DISK": device,
        "COMPRESSED": "true" if url.endswith(("zst", "gz")) else "false",
        "PYTHONPATH": f"{_ACTIONS}:{_ACTIONS.parents[1]}",
    }
    return lambda: _timed([python, "-m", "image2disk"], environment, size)


def _peer_name(file: Path) -> str:
    if file.suffix == ".qcow2":
        return "curl, qemu-img convert"
    return f"curl | {UNPACKERS[file.suffix]} dd".replace(" |  dd", " | dd")


def _peer(url: str, file: Path, device: str, size: int) -> Callable[[], Sample]:
    script = (
        f"set -o pipefail; curl -sf {url}/{file.name} | {UNPACKERS.get(file.suffix, '')} "
        f"dd of={device} bs=4M iflag=fullblock conv=fsync,notrunc status=none"
    )
    if file.suffix == ".qcow2":
        stored = f"{file}.stored"
        script = (
            f"curl -sfo {stored} {url}/{file.name} && qemu-img convert -n -O raw {stored} {device} && sync {device}"
        )
    return lambda: _timed(["bash", "-c", script], dict(os.environ), size)


def _timed(command: list[str], environment: dict[str, str], size: int) -> Sample:
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise BenchError(f"image2disk: {command[0]}: {done.stderr[-300:]}")
    return {"speed": size / 1e6 / (time.monotonic() - began)}
