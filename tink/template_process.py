"""Parses and renders Templates in a child process, because a tenant controls the time that they take.

A thread is not enough. It holds the interpreter's lock in turns, so the event loop, which answers DHCP, gets a share of
one core instead of all of it. The child has a core of its own, or the time that its niceness leaves to it.

The child starts with the first large Template and ends after a minute without work. It works on one Template at a time.
Namespaces take turns, and each may have a few Templates waiting: further ones of that tenant are rejected (`BusyError`)
and do not delay other tenants. The child bounds the CPU time and the memory of one Template.

The two processes communicate through the child's standard input and output: a message is its length (8 bytes) and JSON.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import orjson

from tink.api.annotations import TEMPLATE_TEXT_ANNOTATION
from tink.api.v1alpha2 import Raw, as_mapping
from tink.errors import TinkedgeError
from tink.limits import FairSemaphore
from tink.template import RenderedTemplate, TemplateError, TemplateSyntaxError, parse_fields
from tink.template_child import receive, send

SMALL_BYTES: Final = 256
"""Templates up to this size, in bytes of JSON, are parsed on the event loop: some 7 us each."""
CPU_SECONDS: Final = 10.0
"""CPU time limit of one Template; 1 MiB of actions takes about 6 s to parse."""
JOB_SECONDS: Final = 120.0
"""Time after which the child is killed, whatever the reason for its delay."""
IDLE_SECONDS: Final = 60.0
BUSY_SECONDS: Final = 1.0
"""Time that a Template waits for a place in the queue before it is rejected."""
WAITING_PER_NAMESPACE: Final = 8
WAITING: Final = 128


class BusyError(TinkedgeError):
    """Too many Templates wait to be parsed. The message names the namespace and the remedy."""


class TemplateProcessError(TinkedgeError):
    """The child process did not answer. The message contains the reason."""


class TemplateProcess:
    """The parent's side of the child process. `parse` belongs to one event loop, `render_template` to any thread."""

    def __init__(
        self,
        *,
        cpu_seconds: float = CPU_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        self._cpu_seconds = cpu_seconds
        self._idle_seconds = idle_seconds
        self._busy_seconds = busy_seconds
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._used = 0.0
        self._idle: threading.Timer | None = None
        self._turns = FairSemaphore(1)
        self._waiting: Counter[str] = Counter()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="templates")

    @property
    def pid(self) -> int | None:
        """The process id of the child, or None if none runs."""
        child = self._child
        return child.pid if child is not None and child.poll() is None else None

    async def parse(self, namespace: str, template: Raw) -> list[TemplateSyntaxError]:
        """Return the syntax errors of a Template, one for each wrong field. The namespaces take turns.

        Raises TemplateError if a field has the wrong type or the Template takes too much time or memory, BusyError if
        too many wait, and TemplateProcessError.
        """
        spec = template.get("spec")
        text = orjson.dumps({"job": "parse", "template": {"spec": spec}})
        if len(text) <= SMALL_BYTES or not isinstance(spec, dict):
            return parse_fields(template)
        if b"{{" not in text:
            return []
        if self._is_full(namespace):
            # A client that ignores Retry-After waits here, with its connection, instead of sending the next request at
            # once.
            await asyncio.sleep(self._busy_seconds)
        if self._is_full(namespace):
            raise BusyError(
                f"{self._waiting[namespace]} Templates of namespace {namespace} wait to be parsed, and "
                f"{self._waiting.total()} in all: write fewer at once, and try again in a second"
            )
        self._waiting[namespace] += 1
        try:
            async with self._turns.held(namespace):
                loop = asyncio.get_running_loop()
                found = await loop.run_in_executor(self._thread, self._call, text)
        finally:
            self._waiting[namespace] -= 1
            if not self._waiting[namespace]:
                del self._waiting[namespace]
        return [TemplateSyntaxError(said, name=name, line=line, column=column) for said, name, line, column in found]

    def _is_full(self, namespace: str) -> bool:
        return self._waiting[namespace] >= WAITING_PER_NAMESPACE or self._waiting.total() >= WAITING

    def render_template(self, template: Raw, hardware: Raw, params: Mapping[str, str]) -> RenderedTemplate:
        """Render a Template as `tink.versions.rendering.render_template` does; blocks the calling thread.

        Raises TemplateError and TemplateProcessError.
        """
        annotations = as_mapping(as_mapping(template.get("metadata")).get("annotations"))
        kept = {name: annotations[name] for name in (TEMPLATE_TEXT_ANNOTATION,) if name in annotations}
        sent = {"metadata": {"annotations": kept}, "spec": template.get("spec")}
        given = {"template": sent, "hardware": hardware, "params": dict(params)}
        actions, timeout, ignored = self._call(orjson.dumps({"job": "render", **given}))
        return RenderedTemplate(actions, timeout, tuple(ignored))

    def close(self) -> None:
        """End the child process and abort its work."""
        self._closed = True
        if (child := self._child) is not None:
            child.kill()  # Without the lock: the thread that waits for the answer holds it.
        with self._lock:
            self._end()
            if self._idle is not None:
                self._idle.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _call(self, text: bytes) -> Any:
        with self._lock:
            fresh = self._child is None or self._child.poll() is not None
            try:
                answer = self._ask(text)
            except (OSError, EOFError) as error:
                ended = self._end()
                if fresh or isinstance(error, TimeoutError):
                    raise TemplateProcessError(f"the process that parses Templates {ended}: {error}") from error
                try:  # a new child: the previous one may have ended for a reason unrelated to this Template
                    answer = self._ask(text)
                except (OSError, EOFError) as again:
                    text_of = f"the process that parses Templates {self._end()}: {again}"
                    raise TemplateProcessError(text_of) from again
            self._used = time.monotonic()
            self._watch_idle()
        if "error" in answer:
            raise TemplateError(answer["error"], name=answer["name"], line=answer["line"], column=answer["column"])
        return answer["result"]

    def _ask(self, text: bytes) -> Raw:
        if self._closed:
            raise EOFError("this program is stopping")
        child = self._child
        if child is None or child.poll() is not None:
            self._end()
            child = self._child = _start(self._cpu_seconds)
        if child.stdin is None or child.stdout is None:
            raise EOFError("it has no pipes")
        send(child.stdin, text)
        answer: Raw = orjson.loads(receive(child.stdout, time.monotonic() + JOB_SECONDS))
        return answer

    def _end(self) -> str:
        """End the child process, and return how it ended."""
        child, self._child = self._child, None
        if child is None:
            return "has not started"
        status = child.poll()
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue
        child.wait()
        return "does not answer" if status is None else f"has ended with status {status}"

    def _watch_idle(self) -> None:
        if self._idle is None:
            self._idle = threading.Timer(self._idle_seconds, self._end_if_idle)
            self._idle.daemon = True
            self._idle.start()

    def _end_if_idle(self) -> None:
        with self._lock:
            self._idle = None
            if time.monotonic() - self._used >= self._idle_seconds:
                self._end()
            elif self._child is not None:
                self._watch_idle()


def _start(cpu_seconds: float) -> subprocess.Popen[bytes]:
    # The child has a process group of its own: Ctrl-C in a terminal ends the parent, and the child ends with its
    # standard input.
    return subprocess.Popen(
        [sys.executable, "-I" if sys.flags.isolated else "-P", "-m", "tink.template_child", str(cpu_seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        process_group=0,
    )
