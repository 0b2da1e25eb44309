"""`python -m tests.bench`: measure, compare, print one table. Needs root, for the network namespaces it works in.

Each subject is a module with `run(directory) -> list[Row]`; the directory is its own and goes afterwards.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

from tests.bench import (
    api,
    bmc,
    convert,
    dhcp,
    dhcp6,
    fleet,
    flood,
    http_files,
    image2disk,
    kubernetes,
    memory,
    metadata,
    older_agents,
    page,
    sites,
    templates,
    tftp,
    turns,
    versions,
    workflows,
)
from tests.bench.bed import BenchError, cores
from tests.bench.results import Row, say, table

SUBJECTS: dict[str, Callable[[Path], list[Row]]] = {
    "http": http_files.run,
    "metadata": metadata.run,
    "tftp": tftp.run,
    "dhcp": dhcp.run,
    "dhcp6": dhcp6.run,
    "memory": memory.run,
    "templates": templates.run,
    "convert": convert.run,
    "versions": versions.run,
    "image2disk": image2disk.run,
    "api": api.run,
    "workflows": workflows.run,
    "older": older_agents.run,
    "page": page.run,
    "sites": sites.run,
    "fleet": fleet.run,
    "turns": turns.run,
    "flood": flood.run,
    "bmc": bmc.run,
}
LIMIT_SECONDS = 1200
"""For one subject; most take one to four minutes on a quiet machine."""
LIMITS = {"bmc": bmc.LIMIT_SECONDS}
"""Limits of subjects that take longer."""


def main() -> int:
    """The exit status: 1 if a subject could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Ratios to peers, in the same run.")
    parser.add_argument("subject", nargs="*", help=f"only these: {', '.join(SUBJECTS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows, with every round's ratio, as JSON")
    parser.add_argument(
        "--objects",
        type=int,
        metavar="N",
        help=f"so many objects, for api (default: {api.OBJECTS}), or BMCs, for bmc (default: {bmc.OBJECTS})",
    )
    parser.add_argument("--build-peer", action="store_true", help="api: build kube-apiserver first, if it is missing")
    arguments = parser.parse_args()
    if unknown := set(arguments.subject) - set(SUBJECTS):
        parser.error(f"no such subject: {', '.join(sorted(unknown))}")
    if os.geteuid() != 0:
        parser.error("network namespaces need root")
    if arguments.build_peer:
        say(f"api: building {api.PEER}, which takes some minutes")
        kubernetes.build()
    if arguments.objects is not None:
        SUBJECTS["api"] = partial(api.run, objects=max(arguments.objects, 1000))
        SUBJECTS["bmc"] = partial(bmc.run, objects=max(arguments.objects, 10))
    signal.signal(signal.SIGALRM, _too_long)
    signal.signal(signal.SIGTERM, _ended)
    rows, failed = _measure(arguments.subject or list(SUBJECTS))
    print(f"{_machine()}\n\n{table(rows)}")
    if arguments.json is not None:
        content = {"machine": _machine(), "rows": [dataclasses.asdict(row) | {"ratio": row.ratio} for row in rows]}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    for failure in failed:
        say(f"FAILED {failure}")
    return 1 if failed else 0


def _measure(subjects: list[str]) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    failed: list[str] = []
    for subject in subjects:
        start, limit = time.monotonic(), LIMITS.get(subject, LIMIT_SECONDS)
        signal.alarm(limit)
        try:
            cores()
            with tempfile.TemporaryDirectory(prefix="bench-") as directory:
                rows += SUBJECTS[subject](Path(directory))
        except BenchError as error:
            failed.append(f"{subject}: {error}")
        except _TooLongError:
            failed.append(f"{subject}: took more than {limit} s")
        except Exception as error:  # a mistake of ours, which is not to cost what the others have found
            traceback.print_exc()
            failed.append(f"{subject}: {error!r}")
        finally:
            signal.alarm(0)
        say(f"{subject}: {time.monotonic() - start:.0f} s")
    return rows, failed


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "?")
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores {model}, Linux {platform.release()}, Python {platform.python_version()}, "
        f"load {load:.1f} at the end"
    )


class _TooLongError(Exception):
    """The run is to be bounded."""


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise _TooLongError


def _ended(_number: int, _frame: FrameType | None) -> None:
    sys.exit("ended by SIGTERM")  # the context managers clean up


if __name__ == "__main__":
    sys.exit(main())
