"""One OpenTelemetry trace for each boot, from its first DHCP packet to its last action, sent by OTLP over HTTP.

    boot                                            from the first packet to the end of the Workflow, with the
        takes the address, loads the initrd, ...    diagnoses as span events
        action stream-image                         one span each, as on the page

An extra (`pip install 'tinkedge[otlp]'`), off unless `--otlp-endpoint` says where the collector is; headers, such as a
token, are in OTEL_EXPORTER_OTLP_HEADERS. Spans wait in a bounded queue and a thread of the SDK sends them: a collector
that is away costs traces, and nothing else.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from threading import Thread
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from prometheus_client.core import Metric

from edge.telemetry.ends import EndedBoot
from tink.errors import TinkedgeError
from tink.metrics.families import counter
from tink.net.urls import shown
from tink.printable import printable

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

MAX_QUEUED: Final = 16_384  # maximum number of queued spans; a boot has about thirty
_TIMEOUT_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 3.0
_PATH: Final = "/v1/traces"
_MAX_TEXT: Final = 500


class TracesError(TinkedgeError):
    """Traces can't be sent; the message says why and what to do."""


class Traces:
    """Sends traces. Call `take` in one thread at a time, and `close` at the end."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint` is that of OTEL_EXPORTER_OTLP_ENDPOINT, such as http://collector:4318. Raises TracesError."""
        self.boots = 0
        self.skipped = 0  # boots beyond the limit per second, which have no trace
        self._provider, self._tracer = _made(endpoint)

    def take(self, boots: Iterable[EndedBoot]) -> None:
        """Queue the traces of these boots. Never waits for the collector."""
        from opentelemetry import trace

        for boot in boots:
            root = self._tracer.start_span(
                "boot", context=trace.set_span_in_context(trace.INVALID_SPAN), start_time=_ns(boot.began),
                attributes=_attributes(boot),
            )  # fmt: skip
            for at, rule, message in boot.warnings:
                root.add_event(_text(rule), {"message": _text(message)}, _ns(at))
            if boot.outcome == "Succeeded":
                root.set_status(trace.StatusCode.OK)
            elif boot.outcome != "Canceled":
                root.set_status(trace.StatusCode.ERROR, _text(boot.message))
            context = trace.set_span_in_context(root)
            for step in boot.steps:
                name = f"action {step.action}" if step.action else step.label
                attributes = {"tinkedge.phase": step.phase}
                if step.action:
                    attributes["tinkedge.action"] = _text(step.action)
                began = _ns(step.began)
                span = self._tracer.start_span(_text(name), context=context, start_time=began, attributes=attributes)
                if step.failed:
                    span.set_status(trace.StatusCode.ERROR)
                span.end(_ns(step.ended))
            root.end(_ns(boot.ended))
            self.boots += 1

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Send the queued spans, but wait for some seconds at most: the collector may be away."""
        ending = Thread(target=self._provider.shutdown, name="traces", daemon=True)
        ending.start()
        ending.join(seconds)

    def metrics(self) -> Iterator[Metric]:
        """Yield the counters of traced and skipped boots."""
        text = "Boots that were handed to OpenTelemetry, and those that were too many in a second."
        yield counter("tinkedge_traces_boots", text, ["result"], {("traced",): self.boots, ("skipped",): self.skipped})


def _attributes(boot: EndedBoot) -> dict[str, Any]:
    named = {f"tinkedge.{name}": _text(value) for name, value in boot.facts}
    return {"host.mac": boot.mac, "tinkedge.outcome": _text(boot.outcome), **named}


def _text(value: str) -> str:
    """Return text of machines and users as one printable line of limited length."""
    return printable(value[:_MAX_TEXT], " ")


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def _made(endpoint: str) -> tuple[TracerProvider, Tracer]:
    """Create the SDK's provider and tracer. Raises TracesError."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TracesError(f"--otlp-endpoint {shown(endpoint)!r} is no URL of a collector: write http://HOST:4318")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanLimits, TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    except ImportError as error:
        raise TracesError(
            "--otlp-endpoint needs OpenTelemetry, which is not installed: pip install 'tinkedge[otlp]'"
        ) from error
    url = endpoint if parts.path.endswith(_PATH) else endpoint.rstrip("/") + _PATH
    # Not on the logger "opentelemetry": a logger's filters do not see what its children log.
    for handler in logging.getLogger().handlers:
        handler.addFilter(_without_stack_trace)
    resource = Resource.create(
        {
            "service.name": "tinkedge",
            "service.version": version("tinkedge"),
            "service.instance.id": socket.gethostname(),
        }
    )
    provider = TracerProvider(
        ALWAYS_ON, resource, shutdown_on_exit=False, span_limits=SpanLimits(max_attribute_length=_MAX_TEXT)
    )
    exporter = OTLPSpanExporter(endpoint=url, timeout=_TIMEOUT_SECONDS)
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=MAX_QUEUED, schedule_delay_millis=2000, max_export_batch_size=512)
    )
    return provider, provider.get_tracer("tinkedge", version("tinkedge"))


def _without_stack_trace(record: logging.LogRecord) -> bool:
    """Drop the stack trace of what OpenTelemetry logs: a collector that is away is worth one line."""
    if record.name.startswith("opentelemetry."):
        record.exc_info = record.exc_text = None
    return True
