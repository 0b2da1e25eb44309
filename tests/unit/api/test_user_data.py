"""User-data that cloud-init ignores. The verdicts are those of cloud-init's own code (its main of 2026-08)."""

from __future__ import annotations

import base64
import gzip

import pytest

from tink.api.user_data import MAX_BYTES, is_recognised, problem

CONFIG = "#cloud-config\npackages: [a]\n"


def encoded(text: str) -> str:
    return base64.encodebytes(text.encode()).decode()


def gzipped(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode())).decode()


def mime(kind: str, content: str, first: str = "MIME-Version: 1.0\n", more: str = "") -> str:
    parts = f"--b\nContent-Type: {kind}\n{more}\n{content}\n--b--\n"
    return f'{first}Content-Type: multipart/mixed; boundary="b"\n\n{parts}'


ACCEPTED = [
    CONFIG,
    "\n  #Cloud-Config\r\npackages: [a]\n",  # cloud-init strips and lowers it
    "#cloud-config\n",
    "#cloud-config\n# nothing yet\n",
    "#cloud-config\n---\na: 1\na: 2\nb: .inf\nc: !!set {x}\nd: 190:20:30\n",  # not for Kubernetes, but for PyYAML
    "#cloud-config\nruncmd: ['cat <<EOF']\n",
    "#cloud-config\nbase: &x {a: 1}\nb: {<<: *x}\n",
    "#cloud-config-archive\n- content: x\n- '#!/bin/sh'\n",
    '#cloud-config-jsonp\n[{"op": "add", "path": "/x", "value": 1}]\n',
    "#!/bin/sh\necho users: yes\n",
    "## template: jinja\n\n#cloud-config\nhostname: {{ x }}\n",
    "#include-once\nhttp://10.0.0.1/x\n",
    "#include http://10.0.0.1/x\n",
    mime("text/cloud-config", CONFIG),
    mime("text/plain", CONFIG),
    mime("text/x-shellscript-per-boot", "echo"),
    mime("text/cloud-config", encoded(CONFIG), more="Content-Transfer-Encoding: base64\n"),
    "#cloud-config\nwrite_files: [{path: /a, content: 'MIME-Version: 1.0'}]\n",
    gzipped(CONFIG),
    "",
    "   \n",
]
FOR_OTHERS = [
    '{"ignition": {"version": "3.4.0"}}',
    "version: v1alpha1\nmachine:\n  type: worker\n",  # Talos
    "#version=RHEL9\nlang en_US\n",  # kickstart
    "#ps1_sysnative\nWrite-Host\n",  # cloudbase-init
    "hostname: x\nmachine: y\n",
    "TWFu",  # base64 of something else
]
IGNORED = [
    ("#cloud-config\nusers:\n- name: a\n  sudo: x: y\n", "it is no YAML, line 4: mapping values are not allowed"),
    ("#cloud-config\n\tusers: []\n", "it is no YAML, line 2: "),
    (
        "#cloud-config\nhostname:\tm1\n",
        "it is no YAML, line 2: while scanning for the next token, found character '\\t'",
    ),
    ("#cloud-config\nruncmd: [!secret hunter2]\n", "line 2: a value has a tag that cloud-init rejects"),
    ("#cloud-config\npassword: !hunter2\n", "line 2: a value has a tag that cloud-init rejects"),
    ("#cloud-config\nhostname: {{ ds.meta_data.x }}\n", "it is no YAML, line 2: a key is no scalar"),
    ("#cloud-config\nbirthday: 2020-13-45\n", "a number or date is invalid"),
    ("#cloud-config\na: *x\n", "it is no YAML, line 2: found undefined alias"),
    ("#cloud-config\n- users\n", "no mapping of names to values"),
    ("#cloud-config\nusers\n", "no mapping of names to values"),
    ("#cloud-config\na: b\n---\nc: d\n", "it has 2 YAML documents"),
    ("#cloud-config\\npackages: [a]\\n", "all of it is in its first line"),
    ("# cloud-config\nusers: []\n", "its first line is not #cloud-config"),
    ("# cloud-config " + "x" * MAX_BYTES, "its first line is not #cloud-config"),
    ("#cloud_config\nusers: []\n", "its first line is not #cloud-config"),
    ("\ufeff" + CONFIG, "its first line is not #cloud-config"),
    ("# made by a tool\n\n" + CONFIG, "it does not begin with its first line (#cloud-config)"),
    ("---\n" + CONFIG, "it does not begin with its first line"),
    ("```yaml\n" + CONFIG + "```\n", "it does not begin with its first line"),
    ('"' + CONFIG.replace("\n", "\\n") + '"', "it does not begin with its first line"),
    ("# comment\n#!/bin/sh\necho\n", "it does not begin with its first line (#!/bin/sh)"),
    ("# x\n" + CONFIG + "y: z\n" * MAX_BYTES, "it does not begin with its first line"),
    ("users:\n- default\npackages: [a]\n", "its first line has to be #cloud-config"),
    ("---\npackages: [a]\nfinal_message: x\n", "its first line has to be #cloud-config"),
    ('{"packages": ["a"], "runcmd": []}', "its first line has to be #cloud-config"),
    ("## template:jinja\n" + CONFIG, "its first line is not `## template: jinja`"),
    ("## template: jinja\npackages: [a]\n", "the line after `## template: jinja`"),
    ("#upstart-job\n", "no #upstart-job any more"),
    ("#include\n# http://10.0.0.1/x\n", "it includes no URL"),
    ("#cloud-config-archive\ncontent: x\n", "no list of parts"),
    ("#cloud-config-archive\n- {type: text/yaml, content: x}\n", "part 1 has the type 'text/yaml'"),
    ("#cloud-config-jsonp\n{}\n", "no list in JSON"),
    (encoded(CONFIG), "it is base64"),
    (encoded("#!/bin/sh\n"), "it is base64"),
    (gzipped("packages: [a]\n"), "its first line has to be #cloud-config"),
    (mime("text/cloud-config", CONFIG, first=""), "no `MIME-Version: 1.0`"),
    (mime("text/cloud-config", CONFIG, first="\nMIME-Version: 1.0\n"), "its MIME header is not at its beginning"),
    (mime("text/x-yaml", CONFIG), "part 1 has the type 'text/x-yaml', which cloud-init does not handle"),
    (mime("text/plain", "hello"), "part 1 has the type 'text/plain'"),
    (mime("text/cloud-config", "#cloud-config\na: b: c"), "part 1: it is no YAML, line 2"),
    (mime("text/cloud-config", CONFIG).replace('"b"', "c"), "no part was found"),
]


@pytest.mark.parametrize("text", ACCEPTED, ids=range(len(ACCEPTED)))
def test_user_data_that_cloud_init_handles_has_no_problem(text: str) -> None:
    assert problem(text) == ""
    assert is_recognised(text)


@pytest.mark.parametrize("text", FOR_OTHERS, ids=range(len(FOR_OTHERS)))
def test_user_data_of_other_programs_has_no_problem_but_cloud_init_does_not_recognise_it(text: str) -> None:
    assert problem(text) == ""
    assert not is_recognised(text)


@pytest.mark.parametrize(("text", "reason"), IGNORED, ids=range(len(IGNORED)))
def test_problem_names_what_cloud_init_ignores_and_quotes_no_secret(text: str, reason: str) -> None:
    assert reason in problem(text)
    assert "hunter2" not in problem(text)


PAIRS = zip("abcdefgh", "bcdefghi", strict=True)
MULTIPART = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b"
HOSTILE = {
    "deep": "#cloud-config\n" + "[" * 30_000,
    "laughs": "#cloud-config\na: &a [0]\n" + "".join(f"{b}: &{b} [{'*' + a + ',*' + a}]\n" for a, b in PAIRS),
    "merges": "#cloud-config\nm0: &m0 {}\n"
    + "".join(f"m{n}: &m{n} {{<<: [*m{n - 1},*m{n - 1}]}}\n" for n in range(1, 999)),
    "parts": f"{MULTIPART}\n\n" + "--b\n\nx\n" * 5_000,
    "nested": "".join(f"{MULTIPART}{n}\n\n--b{n}\n" for n in range(400)),
    "bomb": gzipped("a" * 50_000_000),
    "comments": "# x\n" * 500_000,
    "quotes": "`" * 1_000_000,
    "charset": mime("text/cloud-config; charset=x", "\udcff"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_user_data_gets_an_answer(name: str) -> None:
    assert isinstance(problem(HOSTILE[name]), str)
    assert isinstance(is_recognised(HOSTILE[name]), bool)
