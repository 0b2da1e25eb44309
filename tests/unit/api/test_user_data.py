"""User-data that cloud-init would drop is named when it is written; what is for others is left alone."""

from __future__ import annotations

import pytest

from tink.api.user_data import MAX_BYTES, problem

GOOD = [
    "#cloud-config\nusers: [default]\n",
    "\n  #Cloud-Config\r\npackages: [a]\n",  # cloud-init strips and lowers it
    "#cloud-config\n",
    "#cloud-config\n# nothing yet\n",
    "#cloud-config\nruncmd:\n  - !custom x\n  - .inf\n",  # not ours to judge
    "#cloud-config-archive\n- content: x\n",
    "#!/bin/sh\necho users: yes\n",
    "## template: jinja\n#cloud-config\nhostname: {{ x }\n",
    "#include\nhttp://10.0.0.1/x\n",
    "Content-Type: multipart/mixed; boundary=x\n\nusers: x\n",
    '{"ignition": {"version": "3.4.0"}}',
    "version: v1alpha1\nmachine:\n  type: worker\n",  # Talos
    "text\nlang en_US\n",  # kickstart
    "hostname: x\nmachine: y\n",  # somebody's own
    "H4sIAAAAAAAA",
    "",
    "   \n",
    "# cloud-config " + "x" * MAX_BYTES,
]
BAD = [
    ("#cloud-config\nusers:\n- name: a\n  sudo: x: y\n", "it is no YAML, line 4: mapping values are not allowed"),
    ("#cloud-config\n\tusers: []\n", "it is no YAML, line 2: "),
    ("#cloud-config\n- users\n", "no mapping of names to values"),
    ("#cloud-config\nusers\n", "no mapping of names to values"),
    ("#cloud-config\na: b\n---\nc: d\n", "it has 2 YAML documents"),
    ("# cloud-config\nusers: []\n", "its first line is not #cloud-config"),
    ("#cloud_config\nusers: []\n", "its first line is not #cloud-config"),
    ("\ufeff#cloud-config\nusers: []\n", "its first line is not #cloud-config"),
    ("users:\n- default\npackages: [a]\n", "its first line has to be #cloud-config"),
]


@pytest.mark.parametrize("text", GOOD, ids=range(len(GOOD)))
def test_what_cloud_init_or_others_take_is_no_problem(text: str) -> None:
    assert problem(text) == ""


@pytest.mark.parametrize(("text", "said"), BAD, ids=range(len(BAD)))
def test_what_cloud_init_drops_is_named(text: str, said: str) -> None:
    assert said in problem(text)


def test_no_secret_of_user_data_is_said() -> None:
    assert "hunter2" not in problem("#cloud-config\npassword: hunter2: hunter2\n  x: *hunter2\n")
