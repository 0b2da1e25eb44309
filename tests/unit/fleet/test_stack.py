"""The fleet's measurements of the programs that it starts."""

import subprocess

from edge.fleet.site.stack import family
from tests.waiting import wait_until


def test_processes_of_a_role_are_counted_with_their_children():
    command = ["sh", "-c", "sleep 600 & sleep 600 & wait"]
    with subprocess.Popen(command) as parent:
        try:
            wait_until(lambda: len({*family(parent.pid)}) == 3)
            assert next(family(parent.pid)) == parent.pid
        finally:
            for pid in reversed([*family(parent.pid)]):
                subprocess.run(["kill", str(pid)], check=False)
    assert [*family(parent.pid)] == [parent.pid], "it has ended"
