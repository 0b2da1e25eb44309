"""What `tinkedge lab` refuses before anything is built."""

import pytest
from click.testing import CliRunner

from edge.commands.lab import lab


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--ipv6 --dual-stack", "--ipv6 is a rack without IPv4, --dual-stack one with both"),
        ("--static", "--static is for a machine that starts from a medium"),
        ("--full --medium usb", "a BIOS starts a USB stick and never the disk after it"),
    ],
)
def test_options_that_exclude_each_other_are_named(words, said):
    result = CliRunner().invoke(lab, words.split())
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
