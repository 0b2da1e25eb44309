"""Changes pytest for a mutation test. `python -m tests.mutation` copies this file beside the tree that it
measures, since the measured commit need not have it.

MUTATION_RECORD=FILE: write to FILE which tests run which lines below MUTATION_PACKAGE, and the processor time of each.
MUTATION_ORDER=FILE: run the tests named in FILE first, and end a test that takes far more processor time than recorded.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

COLLECTION_SECONDS = 120
TEST_SECONDS = 20
FACTOR = 10
"""A test may take TEST_SECONDS and FACTOR times its recorded processor time."""
MEMORY = 4 * 2**30


def _limit_processor_time(seconds: float) -> None:
    """End this process by SIGXCPU after as many more seconds of processor time, however long they take."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + seconds) + 1, hard))


@pytest.hookimpl(tryfirst=True)  # before hypothesis loads the profile that the command line names
def pytest_configure(config: pytest.Config) -> None:
    from hypothesis import HealthCheck, settings  # not earlier than its own plugin

    too_slow = [HealthCheck.too_slow]
    settings.register_profile(
        "mutation", deadline=None, suppress_health_check=too_slow, derandomize=True, database=None
    )


class Recorder:
    def __init__(self, path: str) -> None:
        import coverage

        self._path = Path(path)
        package = str(Path(os.environ["MUTATION_PACKAGE"]).resolve() / "*")
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=[package])
        self._coverage.start()
        self._seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        began = time.process_time()
        result = yield
        self._seconds[item.nodeid] = time.process_time() - began
        self._coverage.switch_context("")
        return result

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        number = {name: index for index, name in enumerate(self._seconds)} | {"": -1}
        lines = {
            Path(file).relative_to(Path.cwd()).as_posix(): {
                line: [number[context] for context in contexts if context in number]
                for line, contexts in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        self._path.write_text(json.dumps({"tests": self._seconds, "lines": lines}))


class Order:
    def __init__(self, path: str) -> None:
        order = json.loads(Path(path).read_text())
        self._seconds = order["seconds"]
        self._first = set(order["first"])
        self._failed = Path(order["failed"])
        _limit_processor_time(COLLECTION_SECONDS)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort those that cover the mutant to the front, the cheapest file of them first."""
        cost = Counter[Path]()
        for item in items:
            if item.nodeid in self._first:
                cost[item.path] += self._seconds[item.nodeid]
        place = {path: place for place, (path, _) in enumerate(reversed(cost.most_common()))}
        items.sort(key=lambda item: place[item.path] if item.nodeid in self._first else len(place))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        _limit_processor_time(TEST_SECONDS + FACTOR * self._seconds.get(nodeid, 0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.write_text(report.nodeid)


resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    if path := os.environ.get("MUTATION_RECORD"):
        pluginmanager.register(Recorder(path))
    if path := os.environ.get("MUTATION_ORDER"):
        pluginmanager.register(Order(path))
