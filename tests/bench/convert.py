"""Conversion: a rack of 10,000 Hardware of v1alpha1 by the real command, in one file and in a file each.

The peer is the floor of what any converter on PyYAML must do: load the same documents with its C loader and dump them
again, unconverted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.bench.bed import BenchError, cores, measured, pinned, python
from tests.bench.results import Row, Sample, alternate, row, say

MACHINES = 10_000
ROUNDS = 3
GOAL_SECONDS = 10
PEER = "PyYAML, load and dump"
_TIMEOUT = 300

MACHINE = """\
apiVersion: tinkerbell.org/v1alpha1
kind: Hardware
metadata:
  name: node-{number}
  namespace: tink-system
  labels:
    type: worker
spec:
  bmcRef:
    apiGroup: bmc.tinkerbell.org
    kind: Machine
    name: bmc-node-{number}
  disks:
  - device: /dev/nvme0n1
  metadata:
    facility:
      facility_code: onprem
      plan_slug: c2.medium.x86
    instance:
      hostname: node-{number}
      id: {mac}
      operating_system:
        distro: ubuntu
        os_slug: ubuntu_24_04
        version: "24.04"
  interfaces:
  - dhcp:
      arch: x86_64
      hostname: node-{number}
      ip:
        address: 10.0.{high}.{low}
        gateway: 10.0.0.1
        netmask: 255.255.0.0
      lease_time: 86400
      mac: {mac}
      name_servers:
      - 10.0.0.1
      - 1.1.1.1
      uefi: true
    netboot:
      allowPXE: true
      allowWorkflow: true
      osie:
        baseURL: http://10.0.0.2:7173
        kernel: vmlinuz-lts-x86_64
        initrd: initramfs-lts-x86_64
"""


def run(directory: Path) -> list[Row]:
    """Measure both forms of the input, ours and the floor in turn."""
    core, _ = cores()
    one, many = directory / "rack.yaml", directory / "rack"
    say(f"convert: writing {MACHINES} machines")
    _write(one, many)
    rows = []
    for title, source in ((f"{MACHINES} Hardware in one file", one), (f"{MACHINES} Hardware in a file each", many)):
        rounds = alternate(
            ROUNDS, lambda source=source: _ours(core, source), lambda source=source: _floor(core, source)
        )
        rows.append(
            row(
                "convert",
                title,
                "s",
                rounds,
                "seconds",
                PEER,
                less_is_better=True,
                note=f"the goal is {GOAL_SECONDS} s",
            )
        )
    return rows


def _write(one: Path, many: Path) -> None:
    many.mkdir()
    texts = []
    for number in range(MACHINES):
        high, low = divmod(number, 250)
        mac = f"52:54:00:00:{high:02x}:{low:02x}"
        texts.append(MACHINE.format(number=number, mac=mac, high=high, low=low + 2))
        (many / f"node-{number}.yaml").write_text(texts[-1])
    one.write_text("---\n".join(texts))


def _ours(core: int, source: Path) -> Sample:
    """Measure the whole command, from its start to its end."""
    command = pinned(core, [sys.executable, "-m", "edge.cli", "convert", "-f", str(source), "--allow-loss"])
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, check=False)
    seconds = time.monotonic() - start
    if done.returncode != 0 or done.stdout.count(b"\nkind: Hardware\n") != MACHINES:
        raise BenchError(f"convert: exited with {done.returncode}: {done.stderr[-2000:].decode()}")
    return {"seconds": seconds}


def _floor(core: int, source: Path) -> Sample:
    start = time.monotonic()
    result = measured(pinned(core, python("convert", source=str(source))), timeout=_TIMEOUT)
    if result["documents"] != MACHINES:
        raise BenchError(f"convert: PyYAML read {result['documents']} documents")
    return {"seconds": time.monotonic() - start}


# --- the floor, a process of its own ------------------------------------------------------------------------------


def _documents(source: Path) -> Iterator[Any]:
    for path in sorted(source.iterdir()) if source.is_dir() else [source]:
        with path.open("rb") as stream:
            yield from yaml.load_all(stream, Loader=yaml.CSafeLoader)


def _load_and_dump(source: Path) -> dict[str, int]:
    documents = list(_documents(source))
    with Path("/dev/null").open("w") as stream:
        yaml.dump_all(documents, stream, Dumper=yaml.CSafeDumper, sort_keys=False)
    return {"documents": len(documents)}


if __name__ == "__main__":
    print(json.dumps(_load_and_dump(Path(json.loads(sys.argv[1])["source"]))))
