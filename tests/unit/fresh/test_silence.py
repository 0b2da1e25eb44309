"""What listens to `make run` hears how long nothing is said, through a pipe and on a terminal."""

import sys

from tests.fresh.silence import Listener, listen


def test_silence_is_measured_between_what_was_said_last_and_next():
    listener = Listener(100.0)
    listener.heard("one\ntwo\n", 101.0)
    listener.heard("\rthree", 107.5)
    listener.heard("\n", 108.0)
    longest = listener.longest(2)
    assert [(one.seconds, one.began, one.before, one.after) for one in longest] == [
        (6.5, 1.0, "two", "three"),
        (1.0, 0.0, "the start", "one"),
    ]


def test_command_is_heard_as_its_user_hears_it_and_its_end_counts():
    script = "import sys; print(sys.stdout.isatty()); sys.exit(3)"
    for terminal in (False, True):
        said = []
        run = listen([sys.executable, "-c", script], said.append, terminal=terminal)
        assert "".join(said).strip() == str(terminal)
        assert run.status == 3
        assert run.processor_seconds > 0
        assert run.listener.silences[-1].after == "the end"
        assert run.listener.silences[-1].before == str(terminal)
