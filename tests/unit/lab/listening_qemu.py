"""A program in QEMU's place that listens on its QMP socket: `listening_qemu.py DIRECTORY QEMU-OPTIONS...`.

It writes its options to DIRECTORY/called, its process id to DIRECTORY/pid, and each command to DIRECTORY/commands, one
a line. It accepts each command; with the file DIRECTORY/silent it does not answer. With the file DIRECTORY/listens, its
operating system goes off at system_powerdown. At SIGUSR1, the operating system restarts, which ends the process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path


def main() -> None:
    directory, options = Path(sys.argv[1]), sys.argv[2:]
    path = options[options.index("-qmp") + 1].removeprefix("unix:").partition(",")[0]
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    for name, text in (("called", "\n".join(options)), ("pid", str(os.getpid()))):
        (directory / "new").write_text(text)
        (directory / "new").rename(directory / name)
    connection = listening.accept()[0]
    signal.signal(signal.SIGUSR1, lambda *_: end(connection, "guest-reset"))
    send(connection, {"QMP": {"version": {}, "capabilities": []}})
    for line in connection.makefile():
        command = json.loads(line)
        with (directory / "commands").open("a") as file:
            file.write(json.dumps([command["execute"], command.get("arguments", {})]) + "\n")
        if (directory / "silent").exists():
            continue
        send(connection, {"event": "STOP", "data": {}})
        send(connection, {"return": {}, "id": command["id"]})
        if command["execute"] == "system_powerdown" and (directory / "listens").exists():
            end(connection, "guest-shutdown")


def send(connection: socket.socket, message: object) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")  # without a buffer, which a signal would find locked


def end(connection: socket.socket, reason: str) -> None:
    send(connection, {"event": "SHUTDOWN", "data": {"guest": True, "reason": reason}})
    os._exit(0)


if __name__ == "__main__":
    main()
