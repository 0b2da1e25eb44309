"""The child process of `tink.template_process`: parses and renders one Template after the other.

It reads messages from its standard input and answers on its standard output, until the input ends. A message is its
length (8 bytes, network order) and JSON. The cost of a Template is bounded here: CPU time by a timer, memory by a limit
of the process. Started as `python -m tink.template_child SECONDS`.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, NoReturn

import orjson

from tink.api.v1alpha2 import Raw
from tink.template import TemplateError, parse_fields
from tink.versions.rendering import render_template

MEMORY_BYTES: Final = 512 << 20
"""Address space of the process."""
_LENGTH: Final = struct.Struct("!Q")


def send(pipe: IO[bytes], text: bytes) -> None:
    """Write a message. Raises OSError."""
    rest = memoryview(_LENGTH.pack(len(text)) + text)
    while rest:
        rest = rest[pipe.write(rest) :]


def receive(pipe: IO[bytes], deadline: float = 0.0) -> bytes:
    """Read a message; `deadline` in monotonic seconds, 0: none. Raises EOFError, TimeoutError."""
    (length,) = _LENGTH.unpack(_read(pipe, _LENGTH.size, deadline))
    return _read(pipe, length, deadline)


def _read(pipe: IO[bytes], length: int, deadline: float) -> bytes:
    read = bytearray()
    ready = select.poll()
    ready.register(pipe, select.POLLIN)
    while len(read) < length:
        if deadline and not ready.poll(max(deadline - time.monotonic(), 0) * 1000):
            raise TimeoutError("no answer within the time that one Template has")
        piece = pipe.read(min(length - len(read), 1 << 20))
        if not piece:
            raise EOFError("its pipe is closed")
        read += piece
    return bytes(read)


class _TooLongError(Exception):
    """A Template has used up its CPU time."""


def _out_of_time(_signal: int, _frame: object) -> NoReturn:
    raise _TooLongError


def _answer(text: bytes, cpu_seconds: float) -> bytes:
    error: TemplateError
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, cpu_seconds)
        try:
            asked = orjson.loads(text)
            if asked["job"] == "render":
                rendered = render_template(asked["template"], asked["hardware"], asked["params"])
                result: Any = [rendered.actions, rendered.timeout, rendered.ignored]
            else:
                wrong_fields = parse_fields(asked["template"])
                result = [[str(each), each.name, each.line, each.column] for each in wrong_fields]
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        return _dumped({"result": result})
    except TemplateError as wrong:
        error = wrong
    except _TooLongError:
        error = TemplateError(f"the Template takes more than {cpu_seconds:g} s of CPU time: make it smaller")
    except (MemoryError, RecursionError):
        error = TemplateError(f"the Template takes more than {MEMORY_BYTES >> 20} MiB of memory: make it smaller")
    return _dumped({"error": str(error), "name": error.name, "line": error.line, "column": error.column})


def _dumped(answer: Raw) -> bytes:
    try:
        return orjson.dumps(answer)
    except TypeError:  # Lone surrogates: error messages quote the Template's text.
        return json.dumps(answer).encode("ascii").replace(b"\\ud", b"\\\\ud")


def _serve(cpu_seconds: float) -> None:
    given = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # Output of a library must not mix with the answers.
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # If memory is short, the kernel should end this process first (proc(5), oom_score_adj).
        Path("/proc/self/oom_score_adj").write_text("1000")
    signal.signal(signal.SIGVTALRM, _out_of_time)
    while True:
        try:
            text = receive(given)
        except EOFError:
            return
        send(answers, _answer(text, cpu_seconds))


if __name__ == "__main__":
    _serve(float(sys.argv[1]))
