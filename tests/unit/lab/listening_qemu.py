"""A program in QEMU's place that listens on its QMP socket: `listening_qemu.py LOG QEMU-OPTIONS...`.

It writes each command to LOG, one a line, and accepts it.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path


def main() -> None:
    log, options = sys.argv[1], sys.argv[2:]
    path = options[options.index("-qmp") + 1].removeprefix("unix:").partition(",")[0]
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    connection = listening.accept()[0].makefile("rw")
    print(json.dumps({"QMP": {"version": {}, "capabilities": []}}), file=connection, flush=True)
    for line in connection:
        command = json.loads(line)
        with Path(log).open("a") as file:
            file.write(json.dumps([command["execute"], command.get("arguments", {})]) + "\n")
        print(json.dumps({"event": "STOP", "data": {}}), file=connection)
        print(json.dumps({"return": {}, "id": command["id"]}), file=connection, flush=True)


if __name__ == "__main__":
    main()
