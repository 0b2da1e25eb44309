"""How long boots take is counted and traced, each boot once, and a collector that is away costs traces alone."""

from __future__ import annotations

import asyncio
import gzip
import logging
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Event, Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from edge.journey.events import Milestone, Note, Outcome, Step
from edge.telemetry import BootEnds, Durations, EndedBoot, Telemetry, Traces, TracesError
from edge.telemetry.telemetry import STEP_BOUNDS
from tests.page_site import INSTALLATION, T0, PageSite, cut
from tink.metrics.families import Scraped

EVIL = '\x1b[31mred"\n{}=é'


class Rack:
    """Machines whose journeys are played, and the reported boots."""

    def __init__(self, traces: Traces | None = None) -> None:
        self.site = PageSite(T0)
        self.ends = BootEnds(self.site.journey, self.site.clock)
        self.durations = Durations()
        self.telemetry = Telemetry(self.ends, self.durations, traces)
        self.mac = self.site.hardware("m1", 1)

    def play(self, events: list[Any], began: float) -> None:
        self.site.at = began - 1
        self.site.play(self.mac, events, began, "m1")
        self.site.at += 1

    def reported(self) -> list[EndedBoot]:
        return [boot for boot in self.ends.take() if boot is not None]

    def metrics(self) -> dict[str, float]:
        registry = CollectorRegistry()
        registry.register(Scraped(self.durations.metrics))
        lines = generate_latest(registry).decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


class Collector:
    """A collector for OTLP over HTTP (the trace service of opentelemetry-proto)."""

    def __init__(self) -> None:
        self.gate, self.status = Event(), 200
        self.gate.set()
        self.spans: list[Span] = []
        self.resources: list[dict[str, str]] = []
        self.headers: list[str] = []

    @contextmanager
    def listening(self) -> Iterator[str]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                    collector.resources.append({one.key: one.value.string_value for one in each.resource.attributes})
                    collector.spans += [span for scope in each.scope_spans for span in scope.spans]
                collector.headers.append(self.headers.get("X-Token", ""))
                collector.gate.wait()
                self.send_response(collector.status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *_: Any) -> None:
                pass

        with HTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                self.gate.set()
                server.shutdown()
                thread.join()


@pytest.fixture
async def rack() -> AsyncIterator[Rack]:
    rack = Rack()
    yield rack
    rack.ends.close()


async def test_boot_is_reported_once_from_its_first_packet_to_the_end_of_its_workflow(rack):
    rack.play(INSTALLATION[:-3], T0)
    (boot,) = rack.reported()
    assert (boot.mac, boot.began, boot.outcome) == (rack.mac, T0, "Succeeded")
    assert boot.ended == pytest.approx(T0 + 96.1)
    actions = [(step.action, round(step.ended - step.began, 1)) for step in boot.steps if step.action]
    assert actions == [("stream-image", 43.5), ("grow-partition", 3.2), ("reboot", 1.5)]
    steps = {step.label: round(step.ended - step.began, 1) for step in boot.steps}
    assert (steps["takes the address"], steps["loads the initrd"]) == (4.9, 6.5)
    assert sum(step.ended - step.began for step in boot.steps) == pytest.approx(96.1)
    assert dict(boot.facts)["model"] == "Supermicro X12STH"
    rack.play(INSTALLATION[-3:], T0)
    assert rack.reported() == []
    rack.play(INSTALLATION, T0 + 5000)
    assert [boot.began for boot in rack.reported()] == [T0 + 5000]


async def test_boot_that_ends_before_its_workflow_is_reported_when_the_next_begins(rack):
    rack.play(cut(Milestone.ACTION_BEGUN), T0)
    assert rack.reported() == []
    rack.play(cut(Milestone.SCRIPT_SENT), T0 + 300)
    (boot,) = rack.reported()
    assert (boot.outcome, boot.began, boot.ended) == ("Abandoned", T0, pytest.approx(T0 + 47.1))
    rack.play(cut(Milestone.KERNEL_STARTED)[7:], T0 + 301)
    assert rack.reported() == []


async def test_second_workflow_of_one_boot_begins_where_the_first_has_ended(rack):
    rack.play(INSTALLATION[:-3], T0)
    rack.reported()
    rack.play([event for event in INSTALLATION[:-3] if event[0] > 46.6], T0 + 200)
    (boot,) = rack.reported()
    assert boot.began == pytest.approx(T0 + 96.1)
    assert [step.action for step in boot.steps if step.action] == ["stream-image", "grow-partition", "reboot"]


async def test_boot_at_another_edge_is_reported_by_that_edge(rack):
    rack.play(cut(Milestone.LEASED), T0)
    here = {"seen_by": "10.0.0.2", "seen_by_kind": "edge"}
    rack.site.at += 1
    rack.site.journey.take_in(rack.mac, rack.site.at, Note(Step.SCRIPT, Outcome.OK, "script", here))
    rack.play(INSTALLATION[16:-3], T0)
    assert rack.reported() == []


async def test_durations_are_histograms_with_fixed_labels(rack):
    rack.play(INSTALLATION[:-3], T0)
    rack.site.journey.record(rack.mac, Step.WORKFLOW, Outcome.INFO, "x", state="Running")
    rack.site.journey.record(rack.mac, Step.ACTION, Outcome.INFO, "started", action=EVIL, state="Running")
    rack.site.at += 2
    rack.site.journey.record(rack.mac, Step.WORKFLOW, Outcome.FAILED, "x", state=f"Failed{EVIL}")
    rack.site.journey.record(rack.mac, Step.WORKFLOW, Outcome.FAILED, "x", state="Failed")
    rack.site.at += 1
    await rack.telemetry.look()
    found = rack.metrics()
    name = "tinkedge_provision_duration_seconds"
    assert found[f'{name}_count{{outcome="Succeeded"}}'] == 1
    assert found[f'{name}_sum{{outcome="Succeeded"}}'] == pytest.approx(96.1)
    assert found[f'{name}_bucket{{le="90",outcome="Succeeded"}}'] == 0
    assert found[f'{name}_bucket{{le="120",outcome="Succeeded"}}'] == 1
    assert found[f'{name}_count{{outcome="Failed"}}'] == 1
    assert found['tinkedge_boot_step_duration_seconds_bucket{le="10",step="loads the initrd"}'] == 1
    assert not [name for name in found if "red" in name]
    assert list(STEP_BOUNDS) == sorted(STEP_BOUNDS)


async def test_boot_is_one_trace_from_dhcp_to_the_last_action(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=secret")
    collector = Collector()
    with collector.listening() as url:
        traces = Traces(url)
        rack = Rack(traces)
        rack.play(cut(Milestone.LEASED), T0)
        rack.site.journey.record(rack.mac, Step.TFTP, Outcome.WARNING, f"no TFTP {EVIL}", rule="NoTFTPRequest")
        rack.site.journey.record(rack.mac, Step.POWER, Outcome.WARNING, "the BMC is busy", reason="BmcBusy")
        rack.site.journey.record(rack.mac, Step.DISCOVERY, Outcome.WARNING, "not as expected: x", reason="WrongPort")
        rack.play(INSTALLATION[2:-4], T0)
        rack.site.journey.record(rack.mac, Step.WORKFLOW, Outcome.FAILED, f"failed: {EVIL}", state="Failed")
        rack.site.at += 1
        await rack.telemetry.look()
        await asyncio.to_thread(traces.close)
    roots = [span for span in collector.spans if not span.parent_span_id]
    (root,) = roots
    assert (root.name, len({span.trace_id for span in collector.spans})) == ("boot", 1)
    assert root.start_time_unix_nano == int(T0 * 1e9)
    assert root.status.code == Status.STATUS_CODE_ERROR
    attributes = {each.key: each.value.string_value for each in root.attributes}
    assert (attributes["host.mac"], attributes["tinkedge.osie"]) == (rack.mac, "hook")
    assert [event.name for event in root.events] == ["NoTFTPRequest"]
    children = [span for span in collector.spans if span.parent_span_id == root.span_id]
    assert len(children) == len(collector.spans) - 1 > 12
    named = {span.name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for span in children}
    assert named["takes the address"] == pytest.approx(4.9)
    assert named["action stream-image"] == pytest.approx(43.5)
    reported = [
        root.status.message,
        *(each.value.string_value for each in root.events[0].attributes),
        *attributes.values(),
    ]
    assert all(text.isprintable() for text in reported), reported
    assert "secret" not in str(collector.spans)
    assert collector.headers[0] == "secret"
    assert {each["service.name"] for each in collector.resources} == {"tinkedge"}


async def test_unreachable_collector_costs_only_traces(caplog):
    collector = Collector()
    collector.gate.clear()
    collector.status = 400
    with collector.listening() as url:
        traces = Traces(url)
        rack = Rack(traces)
        for number in range(20):
            rack.play(INSTALLATION[:-3], T0 + 1000 * number)
            await rack.telemetry.look()
        assert traces.boots == 20
        assert rack.metrics()['tinkedge_provision_duration_seconds_count{outcome="Succeeded"}'] == 20
        traces.close(seconds=0.1)
        (sending,) = [thread for thread in threading.enumerate() if thread.name == "traces"]
        assert sending.is_alive(), "the edge's end waits for a collector"
        collector.gate.set()
        await asyncio.to_thread(sending.join)
    assert collector.spans
    assert "Traceback" not in caplog.text


def test_failed_export_is_logged_without_a_stack_trace(caplog):
    traces = Traces("http://127.0.0.1:4318")
    try:
        raise OSError("no route to the collector")
    except OSError:
        for name in ("opentelemetry.sdk._shared_internal", "edge.journey"):
            logging.getLogger(name).exception("from %s", name)
    traces.close()
    logged = {record.name: record.exc_info for record in caplog.records}
    assert logged["opentelemetry.sdk._shared_internal"] is None
    assert logged["edge.journey"]


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://collector", "http://", "nonsense"])
def test_error_for_an_invalid_endpoint_has_a_valid_example(endpoint):
    with pytest.raises(TracesError, match="write http://HOST:4318"):
        Traces(endpoint)


def test_error_for_the_missing_extra_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TracesError, match=r"pip install 'tinkedge\[otlp\]'"):
        Traces("http://127.0.0.1:4318")
