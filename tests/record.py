"""Record what a real kube-apiserver, Kubernetes' own CEL and its libraries answer: all subjects, or some of them.

    python -m tests.record [SUBJECT...]

Each subject gets an empty kube-apiserver of its own (tests/peer.py). The first run builds it and the Go programs, which
takes some minutes. The recordings are written where the tests read them: `git diff` shows what changed. The subject
`discovery` has no such oracle: it writes the rack of 40 machines and the planted errors in docs/discovery.md, and
needs root.

Not recorded here: Sprig's calls, which tests/interop/test_template_go.py compares with the real Sprig each time, and
the packets of firmware, which tests/unit/dhcp/firmware/record_firmware.py takes from captures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests import peer, recordings
from tests.bench.bed import installed
from tests.interop.chart import record as chart
from tests.interop.resources import record as resources
from tests.interop.webhooks import record as webhooks
from tests.interop.webhooks import v1alpha1
from tests.unit.discovery import test_documented as discovery
from tests.unit.kubeapi.apiserver.conformance import test_conformance
from tests.unit.kubeapi.apiserver.data import record_documents
from tests.unit.kubeapi.apiserver.managed_fields import record as managed_fields
from tests.unit.kubeapi.cel.oracle import record as cel
from tests.unit.kubeapi.schema.data import record as schema
from tests.unit.versions import rendering

TESTS = Path(__file__).parent
APISERVER = TESTS / "unit" / "kubeapi" / "apiserver"
PEER_MODULES = TESTS / "programs"


def by_tests(file: Path) -> Callable[[Path], None]:
    """Return a function that runs the test `test_record` of a file against a kube-apiserver."""

    def record(kubeconfig: Path) -> None:
        command = [sys.executable, "-m", "pytest", "-q", "-W", "default", f"{file}::test_record"]
        subprocess.run(command, env={**os.environ, "TINKEDGE_ORACLE": str(kubeconfig)}, check=True)

    return record


@contextlib.contextmanager
def program(source: Path) -> Iterator[Path]:
    """Build a Go file with the modules beside it, or with Kubernetes', and yield the program.

    Raises SystemExit if Go is missing.
    """
    go = installed("go")
    if go is None:
        raise SystemExit("go is needed to build the oracles")
    modules = source.parent if (source.parent / "go.mod").exists() else PEER_MODULES
    with tempfile.TemporaryDirectory(prefix="oracle-") as directory:
        for file in (source, modules / "go.mod", modules / "go.sum"):
            shutil.copy(file, directory)
        environment = {**os.environ, "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"}
        subprocess.run([go, "build", "-o", "program", source.name], cwd=directory, env=environment, check=True)
        yield Path(directory) / "program"


def record_cel() -> None:
    with program(Path(cel.__file__).with_name("main.go")) as oracle:
        cel.record(oracle)


def record_gnostic() -> None:
    """Record google/gnostic's protobuf of an OpenAPI document."""
    file = APISERVER / "data" / "gnostic.json"
    document = json.dumps(json.loads(file.read_text())["document"])
    _write(file, APISERVER / "data" / "gnostic" / "main.go", document)


def record_columns() -> None:
    """Record what the API server shows in printer columns. To add a case, write its type and path into the file."""
    file = APISERVER / "data" / "columns.json"
    _write(file, APISERVER / "data" / "columns" / "main.go", file.read_text())


def record_client_go() -> None:
    """Record what client-go sends as protobuf, and what its recorder of Events sends."""
    for name in ("client_go", "client_go_recorder"):
        _write(APISERVER / "data" / f"{name}.json", APISERVER / "data" / name / "main.go")


def record_discovery() -> None:
    """Record the sections of docs/discovery.md that show runs of the product."""
    discovery.record()
    test = f"{TESTS / 'interop' / 'test_discovery_documented.py'}::test_rack_of_forty_machines_is_as_recorded"
    subprocess.run([sys.executable, "-m", "pytest", "-q", test], env={**os.environ, "TINKEDGE_RECORD": "1"}, check=True)


def record_v1alpha1_templates() -> None:
    """Record what Go and Tinkerbell's types make of v1alpha1 Templates. To add a case, write it into rendering.yaml."""
    with program(Path(rendering.__file__).with_name("oracle") / "main.go") as oracle:
        rendering.record(oracle)


def _write(file: Path, source: Path, given: str = "") -> None:
    with program(source) as oracle:
        output = subprocess.run([oracle], input=given, capture_output=True, text=True, check=True).stdout
    file.write_text(recordings.layout(json.loads(output)) + "\n")


ASKED: dict[str, tuple[Callable[[Path], None], str]] = {
    "admission": (by_tests(APISERVER / "admission" / "test_recorded.py"), "AlwaysAllow"),
    "chart": (chart.record, "AlwaysAllow"),
    "conformance": (test_conformance.record, "RBAC"),
    "definitions": (schema.record_definitions, "AlwaysAllow"),
    "documents": (record_documents.record, "AlwaysAllow"),
    "managed-fields": (managed_fields.record, "AlwaysAllow"),
    "resources": (resources.record, "AlwaysAllow"),
    "v1alpha1": (v1alpha1.record, "AlwaysAllow"),
    "validations": (schema.record_validations, "AlwaysAllow"),
    "webhooks": (webhooks.record, "AlwaysAllow"),
}
"""By subject: the function that records it, and the authorization mode of its kube-apiserver."""
COMPUTED = {
    "cel": record_cel,
    "client-go": record_client_go,
    "columns": record_columns,
    "discovery": record_discovery,
    "gnostic": record_gnostic,
    "v1alpha1-templates": record_v1alpha1_templates,
}


def main() -> None:
    """Record the subjects that the command line names, or all of them."""
    every = sorted([*ASKED, *COMPUTED])
    parser = argparse.ArgumentParser(
        "python -m tests.record", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"one of {', '.join(every)}; all without one")
    subjects = parser.parse_args().subjects
    if unknown := sorted(set(subjects) - set(every)):
        parser.error(f"there is no recording {', '.join(unknown)}: {', '.join(every)}")
    for subject in subjects or every:
        print(f"{subject} ...", file=sys.stderr, flush=True)
        if subject in COMPUTED:
            COMPUTED[subject]()
        else:
            record, authorization = ASKED[subject]
            with peer.running(authorization) as kubeconfig:
                record(kubeconfig)


if __name__ == "__main__":
    main()
