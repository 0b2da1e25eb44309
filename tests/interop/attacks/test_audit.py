"""An API user tries to write without a line in the log: by clients that hang up, and by a flood of dry runs."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ports import free_port, listens
from tests.waiting import PATIENCE_SECONDS, wait_until

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
HANG_UPS, DRY_RUNS = 40, 560


class Api:
    """`tinkedge apiserver` on a free port of loopback, and its log."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._log = directory / "log"
        where = ("--data-dir", str(directory / "data"), "--api-port", str(self.port))
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", "edge.cli", "apiserver", *where]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        kubeconfig = directory / "data" / "kubeconfig"
        wait_until(lambda: kubeconfig.exists() and listens(self.port), "the API")
        found = yaml.safe_load(kubeconfig.read_text())
        cluster = found["clusters"][0]["cluster"]
        self.trust = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        self.token = found["users"][0]["user"]["token"]
        self.connection = HTTPSConnection("127.0.0.1", self.port, context=self.trust, timeout=60)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request and return status and answer."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        self.connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self.connection.getresponse()
        return answer.status, json.loads(answer.read())

    def post_and_hang_up(self, name: str) -> None:
        """Send a whole request and reset the connection."""
        body = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
        head = f"POST {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with (
            socket.create_connection(("127.0.0.1", self.port), 60) as plain,
            self.trust.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            secured.sendall((head + body).encode())
            secured.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def lines(self) -> list[str]:
        """Return the lines of the audit log, from the verb on."""
        mark = "tink.apiserver.http.audit: admin from 127.0.0.1: "
        return [line.partition(mark)[2] for line in self._log.read_text().splitlines() if mark in line]

    def stop(self) -> None:
        """Stop the server."""
        self.connection.close()
        self._process.terminate()
        self._process.wait(PATIENCE_SECONDS)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    made = Api(tmp_path)
    yield made
    made.stop()


def test_each_write_has_its_line_although_the_client_hangs_up_or_floods_the_log(api: Api) -> None:
    for number in range(HANG_UPS):
        api.post_and_hang_up(f"hit-{number}")
    assert api.ask("POST", CONFIG_MAPS, {"metadata": {"name": "last"}})[0] == 201

    def made() -> set[str]:
        return {each["metadata"]["name"] for each in api.ask("GET", CONFIG_MAPS)[1]["items"]}

    def logged() -> set[str]:
        return {line.split("/")[1].removesuffix(": created") for line in api.lines() if " configmaps " in line}

    wait_until(lambda: made() == logged(), "a line for each ConfigMap that is there")
    assert "last" in logged()
    for number in range(DRY_RUNS):
        assert api.ask("POST", f"{CONFIG_MAPS}?dryRun=All", {"metadata": {"name": f"dry-{number}"}})[0] == 201
    assert api.ask("DELETE", f"{CONFIG_MAPS}/last?dryRun=All", {})[0] == 400
    assert api.ask("POST", f"{CONFIG_MAPS}/other", {"metadata": {"name": "evil"}})[0] in (400, 405)
    assert api.ask("DELETE", f"{CONFIG_MAPS}/last")[0] == 200
    wait_until(lambda: api.lines()[-1] == "delete configmaps default/last: deleted", "the line of the delete")
    assert sum("(dry run)" in line for line in api.lines()) <= 100
