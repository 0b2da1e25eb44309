"""Templates: a workflow's typical text, rendered by our engine and by real Go in the same run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.bed import BenchError, cores, installed, pinned, python
from tests.bench.results import Row, Sample, alternate, row, say
from tink.template.compile import compile_text, render
from tink.template.functions import FUNCTIONS

ROUNDS = 5
SECONDS = 0.5
PEER = "Go text/template"
_GO_SOURCE = Path(__file__).parent / "gotemplate" / "main.go"
_GO_SETTINGS = {
    "GOTOOLCHAIN": "local",
    "GOPROXY": "off",
    "GOTELEMETRY": "off",
    "GOFLAGS": "-mod=mod",
    "CGO_ENABLED": "0",
}

TEXT = """\
{{- $disk := index .hardware.disks 0 }}
{{- $device := $disk.device }}
write_files:
{{- range $index, $nic := .hardware.interfaces }}
  - path: {{ printf "/etc/netplan/%02d-%s.yaml" $index $nic.mac }}
    content: |
      network: {version: 2}
      {{- if $nic.dhcp }}
      address: {{ $nic.dhcp.ip }}/{{ $nic.dhcp.prefix }}
      {{- with $nic.dhcp.gateway }}
      gateway: {{ . }}
      {{- end }}
      nameservers: [{{ range $i, $ns := $nic.dhcp.nameservers }}{{ if $i }}, {{ end }}{{ $ns }}{{ end }}]
      {{- else }}
      dhcp4: true
      {{- end }}
{{- end }}
env:
  IMG_URL: {{ .Params.mirror }}/{{ .Params.image }}.raw.gz
  DEST_DISK: {{ $device }}
  DEST_PART: {{ formatPartition $device 1 }}
  CONSOLE: {{ if and .Params.console (contains .Params.console "ttyS") }}{{ .Params.console | printf "%q" }}{{ end }}
"""

DATA: dict[str, Any] = {
    "hardware": {
        "disks": [{"device": "/dev/nvme0n1"}],
        "interfaces": [
            {
                "mac": "52:54:00:00:00:01",
                "dhcp": {
                    "ip": "10.67.1.2",
                    "prefix": "16",
                    "gateway": "10.67.0.1",
                    "nameservers": ["10.67.0.1", "10.67.0.3"],
                },
            },
            {"mac": "52:54:00:00:00:02", "dhcp": None},
        ],
    },
    "Params": {"mirror": "http://10.67.0.1:8080/images", "image": "debian-12", "console": "ttyS0,115200"},
}

# --- the subject ---------------------------------------------------------------------------------------------------


def run(directory: Path) -> list[Row]:
    """All rows of this subject."""
    core = cores()[0]
    go = _build(directory)
    outputs: dict[str, str] = {}

    def measure(side: str, command: list[str]) -> Sample:
        job = json.dumps({"text": TEXT, "data": DATA, "seconds": SECONDS})
        done = subprocess.run(pinned(core, command), input=job, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise BenchError(f"templates: {side}: {done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        outputs[side] = found.pop("output")
        return found

    say("templates: rendering")
    ours = python("templates")
    rounds = alternate(ROUNDS, lambda: measure("ours", ours), (lambda: measure("Go", [str(go)])) if go else None)
    if go is not None and outputs["ours"] != outputs["Go"]:
        raise BenchError(f"templates: ours renders\n{outputs['ours']}\nand Go\n{outputs['Go']}")
    lines = TEXT.count("\n")
    return [
        row("templates", f"render, {lines} lines, parsed before", "us", rounds, "render", PEER, less_is_better=True),
        row("templates", f"parse, {lines} lines", "us", rounds, "parse", PEER, less_is_better=True),
    ]


def _build(directory: Path) -> Path | None:
    """The Go program; None without Go. The first build on a machine compiles Go's library."""
    go = installed("go")
    if go is None:
        return None
    say("templates: building the Go program")
    program = directory / "gotemplate"
    done = subprocess.run(
        [go, "build", "-o", str(program), str(_GO_SOURCE)],
        env={**os.environ, **_GO_SETTINGS},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BenchError(f"templates: go build: {done.stderr[-2000:]}")
    return program


# --- our engine, a process of its own ------------------------------------------------------------------------------


def _repeat(seconds: float, work: Callable[[], object]) -> float:
    """Microseconds of one call."""
    calls = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(50):
            work()
        calls += 50
    return (time.perf_counter() - start) * 1e6 / calls


def _ours(job: dict[str, Any]) -> dict[str, Any]:
    text, data, seconds = job["text"], job["data"], job["seconds"]
    output = render(text, data)
    return {
        "parse": _repeat(seconds, lambda: compile_text(text, FUNCTIONS, "t")),
        "render": _repeat(seconds, lambda: render(text, data)),
        "output": output,
    }


if __name__ == "__main__":
    print(json.dumps(_ours(json.loads(sys.stdin.read()))))
