"""Boots that have ended, as numbers and as traces: how long machines take, step by step.

ends            which boots have ended since it was looked last, and their steps (from the journey)
durations       histograms of these, for Prometheus
traces          one OpenTelemetry trace for each, by OTLP: an extra, `pip install 'tinkedge[otlp]'`
"""

from edge.telemetry.ends import BootEnds, EndedBoot, EndedStep
from edge.telemetry.telemetry import Durations, Telemetry
from edge.telemetry.traces import Traces, TracesError

__all__ = ["BootEnds", "Durations", "EndedBoot", "EndedStep", "Telemetry", "Traces", "TracesError"]
