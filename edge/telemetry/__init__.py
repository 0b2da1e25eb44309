"""The durations of boots that have ended, step by step, as metrics and as traces.

ends            finds the boots that have ended, and their steps, in the journey
telemetry       the task that collects them once a second, and their histograms for Prometheus
traces          one OpenTelemetry trace for each boot, by OTLP: an extra, `pip install 'tinkedge[otlp]'`
"""

from edge.telemetry.ends import BootEnds, EndedBoot, EndedStep
from edge.telemetry.telemetry import Durations, Telemetry
from edge.telemetry.traces import Traces, TracesError

__all__ = ["BootEnds", "Durations", "EndedBoot", "EndedStep", "Telemetry", "Traces", "TracesError"]
