"""What a run finds: counted while it goes on (`recorder`), shown (`screen`), and told at its end (`report`, `bars`)."""

from edge.fleet.results.bars import DEFAULT_BARS, Bar, BarError, parse
from edge.fleet.results.recorder import Failure, Recorder, percentile
from edge.fleet.results.report import Process, Report, judged, lines, numbers
from edge.fleet.results.screen import DRAW_SECONDS, Screen
from edge.fleet.results.steps import MEASURED, Question, Step, Whole

__all__ = [
    "DEFAULT_BARS",
    "DRAW_SECONDS",
    "MEASURED",
    "Bar",
    "BarError",
    "Failure",
    "Process",
    "Question",
    "Recorder",
    "Report",
    "Screen",
    "Step",
    "Whole",
    "judged",
    "lines",
    "numbers",
    "parse",
    "percentile",
]
