"""Templates of v1alpha1: corpora, each field's fate, expressions, and equality with the old renderer."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support import objects
from tests.unit.convert.v1alpha1 import old_renderer
from tink.api.v1alpha2 import Raw, Template, Workflow
from tink.convert.documents import InputDocument, read, to_yaml
from tink.convert.findings import Findings, ObjectPlace
from tink.convert.run import ConversionResult, convert_documents
from tink.convert.v1alpha1 import template
from tink.convert.v1alpha1.expressions import rewrite
from tink.convert.v1alpha1.template_text import read as read_text
from tink.template.compile import render
from tink.template.errors import TemplateError
from tink.template.fields import parse_fields, render_actions

CORPORA = Path(__file__).parent.parent / "corpora"
ALL = sorted(path.relative_to(CORPORA) for path in CORPORA.glob("[et]*/*.in.yaml"))
RENDERED = [path for path in ALL if path.parts[0] == "templates" and not path.name.startswith("refused")]
SOURCE = ObjectPlace("in.yaml", 1, "Template", "", "t")
TASK = "spec.data.tasks[0]"
NIC = {
    "dhcp": {
        "mac": "52:54:00:00:00:01",
        "hostname": "n1",
        "ip": {"address": "10.0.0.5", "netmask": "255.255.254.0", "gateway": "10.0.0.1"},
        "name_servers": ["1.1.1.1", "9.9.9.9"],
    },
    "netboot": {"allowPXE": True, "allowWorkflow": True},
}
HARDWARE: Raw = {
    "apiVersion": "tinkerbell.org/v1alpha1",
    "kind": "Hardware",
    "metadata": {"name": "n1"},
    "spec": {"disks": [{"device": "/dev/nvme0n1"}, {"device": "/dev/sdb"}], "userData": "ud", "interfaces": [NIC]},
}

Refused = Callable[[Raw], list[str]]


def run(path: Path) -> ConversionResult:
    return convert_documents(read(path.name, (CORPORA / path).read_bytes()))


def with_data(data: Any, name: str = "t") -> Raw:
    kind = {"apiVersion": "tinkerbell.org/v1alpha1", "kind": "Template"}
    return {**kind, "metadata": {"name": name}, "spec": {"data": data}}


def convert(data: Any) -> tuple[Any, list[tuple[str, str]], dict[str, str]]:
    """Return the spec of the result (None without a result), (kind, path) of the findings, and their reasons by path.

    Findings about images without a registry are left out, because images are short here.
    """
    findings = Findings(SOURCE)
    result = template.convert_template(with_data(data), findings)
    assert bool(result) is not findings.failed
    told = [each for each in findings if "names no registry" not in each.reason]
    found = [(str(each.kind), each.path.removeprefix(f"{TASK}.")) for each in told]
    reasons: dict[str, str] = {}
    for each in findings:
        reasons[each.path] = f"{reasons.get(each.path, '')}{each.reason}\n"
    return result[0]["spec"] if result else None, found, reasons


def task(actions: str, more: str = "") -> str:
    """Return a text with one task."""
    more = textwrap.indent(textwrap.dedent(more), "  ")
    return f"name: t\ntasks:\n- name: t\n  worker: '{{{{.device_1}}}}'\n{more}\n  actions:\n" + textwrap.indent(
        textwrap.dedent(actions), "  "
    )


def action(more: str = "", head: str = "- {name: a, image: i:1}") -> str:
    if more:
        head = "- name: a\n  image: i:1\n" + textwrap.indent(textwrap.dedent(more), "  ")
    return task(head)


# --- the corpora


@pytest.mark.parametrize("path", ALL, ids=str)
def test_corpus_gives_the_result_that_is_checked_in_which_the_api_takes_and_which_is_final(
    path: Path, refused: Refused
) -> None:
    result = run(path)
    base = str(CORPORA / path).removesuffix(".in.yaml")
    assert "".join(to_yaml(result.converted)) == Path(f"{base}.out.yaml").read_text()
    report = "".join(f"{each.kind} {each.source} {each.path}: {each.reason}\n" for each in result.findings)
    assert report == Path(f"{base}.report.txt").read_text()
    for obj in result.objects:
        assert refused(obj) == [], obj["metadata"]
        if obj["kind"] == "Template":
            Template.model_validate(obj)
            assert parse_fields(obj) == []
        if obj["kind"] == "Workflow":
            Workflow.model_validate(obj)
    again = convert_documents(InputDocument(SOURCE, obj) for obj in result.objects)
    assert (again.objects, again.findings) == (result.objects, [])


def normalized(actions: list[Raw]) -> list[Raw]:
    empty: Raw = {"args": [], "env": {}, "volumes": [], "timeout": 0}
    names = ("name", "image", *empty)
    found = [{name: each.get(name, empty.get(name)) for name in names} for each in actions]
    return [{**each, "volumes": sorted(each["volumes"])} for each in found]


def without_blank_lines(actions: list[Raw]) -> list[Raw]:
    """Compare without blank lines at the end of a block of text: the report mentions them."""
    return [{**each, "env": {name: text.rstrip("\n") for name, text in each["env"].items()}} for each in actions]


@pytest.mark.parametrize("path", RENDERED, ids=str)
def test_machine_runs_the_same_actions_as_before_the_conversion(path: Path) -> None:
    old: dict[tuple[str, str], Raw] = {}
    for document in read(path.name, (CORPORA / path).read_bytes()):
        assert isinstance(document, InputDocument)
        old[document.obj["kind"], document.obj["metadata"]["name"]] = document.obj
    new = {(obj["kind"], obj["metadata"]["name"]): obj for obj in run(path).objects}
    compared = 0
    for (kind, name), obj in new.items():
        if kind != "Workflow":
            continue
        compared += 1
        hardware, used = obj["spec"]["hardwareRef"]["name"], obj["spec"]["templateRef"]["name"]
        was = old_renderer.render(
            old["Template", used], old["Hardware", hardware], old["Workflow", name]["spec"]["hardwareMap"]
        )
        # A volume of the action takes the place of the task's at the same path; a worker's engine refused both.
        for each in was:
            own = [volume for volume in each["volumes"] if volume.endswith(":/dev:ro") or volume == "/dev:/dev:ro"]
            if own:
                each["volumes"].remove("/dev:/dev")
            # waitdaemon had an engine start this image afterwards.
            if "waitdaemon" in each["image"]:
                each["image"] = each["env"].pop("IMAGE")
                each["env"].pop("WAIT_SECONDS", None)
                each["volumes"].remove("/var/run/docker.sock:/var/run/docker.sock")
        now = render_actions(new["Template", used], new["Hardware", hardware], obj["spec"]["templateParams"])
        assert without_blank_lines(normalized(now)) == without_blank_lines(was)
    assert compared == 1


# --- equality with the old renderer, for any text

PARAMS = {"device_1": "52:54:00:00:00:01", "word": "standard", "empty": "", "list-1": "x"}
VALUES = st.sampled_from(
    [
        "{{ .word }}",
        "{{- .word }}",
        "{{.word -}}",
        "{{ index .Hardware.Disks 0 }}",
        "{{ formatPartition ( index $.Hardware.Disks 1 ) 2 }}",
        "{{ (index .Hardware.Interfaces 0).DHCP.IP.Address }}",
        "{{ netmaskToCIDR (index $.Hardware.Interfaces 0).DHCP.IP.Netmask }}",
        "{{ (index .Hardware.Interfaces 0).DHCP.MAC }}",
        '{{ index . "list-1" }}',
        '{{ .word | contains "and" }}',
        '{{ hasPrefix "stan" .word }}{{ not (hasSuffix `x` .word) }}',
        "{{ (index .hardware.spec.disks 1).device }}",
        "{{ .Hardware.UserData | upper }}",
        "{{ with .word }}{{ . }}{{ $.word }}{{ end }}",
        "{{ range $i, $d := .Hardware.Disks }}{{ if $i }},{{ end }}{{ $d }}{{ end }}",
        "{{ range .hardware.spec.disks }}{{ .device }}{{ end }}",
        "{{ range (index .Hardware.Interfaces 0).DHCP.NameServers }}{{ . }} {{ end }}",
        "{{ $n := index .Hardware.Interfaces 0 }}{{ $n.DHCP.Hostname }}{{ $n.DHCP.MAC }}",
        "{{ range .Hardware.Interfaces }}{{ .DHCP.IP.Gateway }}{{ end }}",
        "{{/* nothing */}}",
        "{{ $outer }}",
        "{{ printf `%s-%d` $outer $count }}",
        "plain",
        "0600",
        "a: b",
        "a #b",
    ]
)
CONDITIONS = st.sampled_from(["if .word", "if .empty", 'if eq .word "x"', "if .Hardware.Interfaces"])
BLOCKS = CONDITIONS | st.sampled_from(["with .empty", "range .Hardware.Disks"])
SPACE = st.sampled_from(["", " ", "  "])


@st.composite
def inline(draw: st.DrawFn) -> str:
    """Texts that may stand on one line."""
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        value = draw(VALUES)
        if draw(st.booleans()):
            gaps = [draw(SPACE) for _ in range(4)]
            dash = draw(st.sampled_from(["", "-"]))
            value = (
                f"{{{{{dash} {draw(CONDITIONS)} }}}}{gaps[0]}{value}{gaps[1]}"
                f"{{{{ else }}}}{gaps[2]}other{gaps[3]}{{{{ end }}}}"
            )
        parts.append(value)
    return draw(SPACE).join(parts)


@st.composite
def field(draw: st.DrawFn) -> str:
    """A scalar with an indentation of eight: plain, quoted, or a block."""
    style = draw(st.sampled_from(["", "'", '"', "|", "|-", ">"]))
    if not style:
        text = draw(inline().filter(lambda text: ": " not in text and " #" not in text))
        return f"x{text}" if draw(st.booleans()) else text
    if style in "'\"":
        text = draw(inline())
        if style == '"':
            text = text.replace('"', "`")
            start = draw(st.sampled_from(["", "a\\n  ", "\\t"]))
            return f'"{start}{text}"'
        return f"'{text}'"
    lines = [f"          first {draw(inline())}"]
    for _ in range(draw(st.integers(0, 3))):
        indent = " " * (10 + draw(st.sampled_from([0, 2, 4])))
        if style == "|" and draw(st.booleans()):
            left, right = draw(st.sampled_from(["{{ ", "{{- "])), draw(st.sampled_from([" }}", " -}}"]))
            lines += [f"{indent}{left}{draw(BLOCKS)}{right}", f"{indent}inner", f"{indent}{left}end }}}}"]
        else:
            lines.append(f"{indent}{draw(inline())}")
    return "\n".join([style, *lines])


@settings(max_examples=100, deadline=None)
@given(st.lists(field(), min_size=1, max_size=3))
@example(["|\n          first\n          {{ if .word }}{{/* nothing */}}{{ else }}other{{ end }}"])
@example(["|\n          first\n          {{ if .empty }}some{{ end }}"])
def test_no_text_renders_otherwise_after_the_conversion(fields: list[str]) -> None:
    """Check that a text is refused with a reason, or that each field renders as the old controller rendered it."""
    env = "\n".join(f"        V{number}: {text}" for number, text in enumerate(fields))
    data = (
        "{{ $count := len .Hardware.Disks }}\n{{- $outer := printf `%s%d` .word $count }}\n"
        "name: t\ntasks:\n  - name: t\n    worker: x\n    actions:\n    - name: a\n      image: i\n"
        f"      environment:\n{env}\n"
    )
    old = with_data(data)
    try:
        was = old_renderer.render(old, HARDWARE, PARAMS)
    except Exception:
        return
    result = convert_documents([InputDocument(SOURCE, HARDWARE), InputDocument(SOURCE, old)])
    if any(each.kind == "error" for each in result.findings):
        return
    hardware, new = result.objects
    now = normalized(render_actions(new, hardware, PARAMS))
    for finding in result.findings:
        if "may stay" in finding.reason:
            name = finding.path.rpartition(".")[2]
            for (each,) in (now, was):
                assert name in each["env"]
                folded = finding.reason.startswith("line breaks")
                each["env"][name] = "".join(each["env"][name].split()) if folded else each["env"][name].strip(" \n")
    assert now == was


@pytest.mark.parametrize(
    ("line", "warns"),
    [
        ("{{ if .word }}a{{ end }}", True),
        ("{{ if .word }}{{ else }}a{{ end }}", True),
        ("{{ if .word }}a{{ else if .empty }}b{{ end }}", True),
        ("{{ if .word }}{{ if .empty }}a{{ end }}{{ else }}b{{ end }}", True),
        ("{{ if .word }}a{{ else }}{{ .word }}{{ end }}", False),
        ("a{{ if .word }}b{{ end }}", False),
        ("{{ .word }}{{ if .word }}b{{ end }}", False),
    ],
)
def test_last_line_of_a_block_that_control_flow_may_leave_blank_is_reported(line: str, warns: bool) -> None:
    findings = Findings(SOURCE)
    body = action(f"environment:\n  V: |\n    first\n    {line}")
    template.convert_template(with_data(body), findings)
    assert any(each.reason.startswith("blank lines ") for each in findings) is warns


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=" \n-:#{}|>'\"[]ab.$/*&!%`\\", max_size=80) | st.text(max_size=40))
def test_no_text_crashes_the_conversion(text: str) -> None:
    for data in (text, task(f"- name: a\n  image: {text}"), text + "\n" + action()):
        spec, found, _ = convert(data)
        assert spec is not None or found, "a refusal has a reason"


# --- fields


def test_fully_converted_template_has_no_findings() -> None:
    spec, found, _ = convert(action("timeout: 90\ncommand: [a, b]\nvolumes: ['/a:/b:ro', data:/c]"))
    assert found == []
    # `cmd` would replace the entrypoint: waitdaemon would reboot the machine instead of starting what does.
    volumes = ["/a:/b:ro", "data:/c"]
    assert spec == {"actions": [{"name": "a", "image": "i:1", "args": ["a", "b"], "volumes": volumes, "timeout": 90}]}


@pytest.mark.parametrize(
    ("written", "text"),
    [
        *((each, each) for each in ("0600", "true", "1e3", "y", "2020-01-01", ".5")),
        *(("~", ""), ("", ""), ("'~'", "~"), ("!!str 0x1F", "0x1F")),
        ('"\\x7b{ no }}"', '{{ "{{" }} no }}'),
        ('"{{ .x }} \\x7b{ no }}"', '{{ .Params.x }} {{ "{{" }} no }}'),
        ("{{ .x -}} b", "{{ .Params.x }}b"),
        *(("a{{/* nothing */}}b", "ab"), ("a {{- /* nothing */ -}} b", "ab")),
    ],
)
def test_values_of_variables_stay_as_they_were_written(written: str, text: str) -> None:
    spec, found, _ = convert(action(f"environment:\n  A: {written}"))
    assert found == []
    assert spec["actions"][0]["env"] == {"A": text}


def test_environment_and_volumes_of_the_task_are_the_templates_own() -> None:
    spec, _, _ = convert(task("- {name: a, image: i}", "environment: {A: 1}\nvolumes: ['/dev:/dev']"))
    assert spec == {"actions": [{"name": "a", "image": "i"}], "volumes": ["/dev:/dev"], "env": {"A": "1"}}


@pytest.mark.parametrize(
    ("more", "kind", "path"),
    [
        ("pid: container:x", "dropped", "actions[0].pid"),
        ("namespaces: {pid: '5'}", "dropped", "actions[0].namespaces.pid"),
        ("namespaces: {ipc: host}", "dropped", "actions[0].namespaces.ipc"),
        ("on-timeout: [a]", "dropped", "actions[0].on-timeout"),
        ("on-failure: [a]", "dropped", "actions[0].on-failure"),
        ("retries: 3", "dropped", "actions[0].retries"),
        ("timeout: soon", "dropped", "actions[0].timeout"),
        ("timeout: -1", "dropped", "actions[0].timeout"),
        ("timeout: '{{ .t }}'", "dropped", "actions[0].timeout"),
        ("volumes: [/dev]", "dropped", "actions[0].volumes[0]"),
        ("volumes: [{a: b}]", "dropped", "actions[0].volumes[0]"),
        ("environment: A", "error", "actions[0].environment"),
        ("volumes: {{ .v }}", "error", "actions[0].volumes"),
        ("command: reboot", "error", "actions[0].command"),
        ("command: [{a: b}]", "error", "actions[0].command"),
        ("environment: {A: [b]}", "error", "actions[0].environment.A"),
        ("environment: {'A=B': c}", "error", 'actions[0].environment["A=B"]'),
        ("environment: {'': c}", "error", 'actions[0].environment[""]'),
        ("environment: {A: '{{ .x | env }}'}", "error", "actions[0].environment.A"),
        ("environment: {A: '{{ $x }}'}", "error", "actions[0].environment.A"),
        (f"command: [{'a' * 131073}]", "error", "actions[0].command[0]"),
        (f"command: [{'a' * 131072}]", "error", "actions[0].command[0]"),
        (f"environment: {{A: {'a' * 131070}}}", "error", "actions[0].environment.A"),
        (f"volumes: [{', '.join(f'/a:/b{i}' for i in range(33))}]", "error", "actions[0].volumes"),
    ],
)
def test_field_without_a_place_is_reported_with_its_path(more: str, kind: str, path: str) -> None:
    _, found, _ = convert(action(more))
    assert found == [(kind, path)]


@pytest.mark.parametrize(
    ("data", "path", "reason"),
    [
        (None, "spec.data", "is empty"),
        (" \n", "spec.data", "is empty"),
        (7, "spec.data", "is a number"),
        ("- a", "spec.data", "is a list"),
        ("a: [", "spec.data", "line 1: not YAML"),
        ("a: b\na: {{ .x }}\n", "spec.data", "line 2: not YAML: key 'a' is given twice"),
        ("a: {{ .x\n", "spec.data", "line 2: no Go template: unclosed action"),
        ("name: t", "spec.data.tasks", "no task"),
        ("a: {{ if .x }}a\nb: b{{ end }}", "spec.data", "line 1: {{ if }} reaches over more than one field"),
        ("a: |\n  b\n  {{ if .x -}}\nc: d", "spec.data", "reaches over"),
        ("a: |\n  b {{ .x -}}\nc: d", "spec.data", "line 2: the dash in -}} joins this with the field below"),
        ("{{ $d := .x }}\n{{ $d = .y }}\na: b", "spec.data", "line 2: $d is set again"),
        ("a: b # {{ if .x }}\nc: d # {{ end }}", "spec.data", "line 1: control flow begins or ends in a comment"),
        ("tasks: [{name: a}, {name: b}]", "spec.data.tasks", "2 tasks (a, b)"),
        ("tasks: [{name: a, actions: []}]", f"{TASK}.actions", "at least one action"),
        (action(head="- {name: a}"), f"{TASK}.actions[0].image", "must have an image"),
        (action(head="- {name: a, image: a b}"), f"{TASK}.actions[0].image", "without spaces"),
        (action(head="- {image: a}"), f"{TASK}.actions[0].name", "must have a name"),
        ("name: [t]\ntasks: [{name: {}, actions: [{name: [a], image: a}]}]", f"{TASK}.actions[0].name", "have a name"),
        (action(head="- {name: '{{ .x }}', image: a}"), f"{TASK}.actions[0].name", "write it out"),
        (action(head="- {name: a, image: a}\n- {name: a, image: b}"), f"{TASK}.actions[1].name", "too: a"),
        (action(head="".join(f"- {{name: a{i}, image: a}}\n" for i in range(129))), f"{TASK}.actions", "128"),
        ("x" * ((1 << 20) + 1), "spec.data", "longer than"),
        ("{{.a}}" * 70_000, "spec.data", "tokens"),
    ],
)
def test_error_names_the_place_and_the_template_has_no_result(data: Any, path: str, reason: str) -> None:
    spec, _, reasons = convert(data)
    assert spec is None
    assert reason in reasons[path]


def test_line_of_an_error_is_that_of_the_text_although_an_expression_has_several() -> None:
    _, _, reasons = convert("name: t\n{{/* a\ncomment */}}\ntasks: {{ .a\n}}\nx: [\n")
    assert reasons["spec.data"].startswith("line 7: not YAML")


def test_name_of_an_action_that_depends_on_nothing_is_rendered() -> None:
    spec, found, _ = convert(action(head="- {name: '{{ \"os\" | upper }} x', image: i}"))
    assert (spec["actions"][0]["name"], found) == ("OS x", [])


@pytest.mark.parametrize(
    ("name", "image", "reboots"),
    [
        ("a", "quay.io/tinkerbell/actions/kexec:latest", True),
        ("a", "127.0.0.1/embedded/reboot", True),
        ("a", "ghcr.io/x/waitdaemon@sha256:00", True),
        ("kexec-debian", "i", True),
        ("Reboot into it", "i", True),
        ("a", "kexecutor", False),
        ("norebooting", "reboot.example.org/a", False),
    ],
)
def test_last_action_that_restarts_the_machine_gets_reboots_and_a_finding(name: str, image: str, reboots: bool) -> None:
    head = f"- {{name: '{name}', image: '{image}'}}"
    spec, found, _ = convert(action(head=head))
    assert spec["actions"][0].get("reboots", False) is reboots
    assert found == ([("changed", "actions[0]")] if reboots else [])
    spec, found, _ = convert(action(head=f"{head}\n- {{name: b, image: c}}"))
    assert (spec["actions"][0], found) == ({"name": name, "image": image}, []), "it is not the last"


@pytest.mark.parametrize("more", ["pid: host", "namespaces: {pid: host}"])
def test_action_stays_in_the_machines_process_namespace(more: str) -> None:
    spec, found, _ = convert(action(more))
    assert (spec["actions"][0].get("pidNamespace"), found) == ("host", [])


def test_fields_above_the_task_are_reported() -> None:
    text = "version: '0.2'\nid: x\nextra: 1\nglobal_timeout: 60\n" + action().replace("name: t\n", "name: other\n", 1)
    _, found, reasons = convert(text)
    dropped = [("dropped", f"spec.data.{name}") for name in ("version", "id", "extra")]
    assert found == [("changed", "spec.data.name"), ("changed", "spec.data.global_timeout"), *dropped]
    assert "spec.timeout: 60" in reasons["spec.data.global_timeout"]


def test_variable_has_its_last_value_above_the_field() -> None:
    data = "{{ $a := .x }}\n{{ $a := .y }}\n" + action("environment:\n  A: {{ $a }}") + "\n{{ $a := .z }}\n"
    spec, found, _ = convert(data)
    assert found == []
    assert spec["actions"][0]["env"] == {"A": "{{ $a := .Params.y }}{{ $a }}"}


def test_quotes_that_were_for_yaml_are_no_part_of_the_value() -> None:
    more = "command: ['{{ .x | quote }}', {{ .x | quote }}, {{ squote .x }}, a {{ .x | quote }}, {{ .x | quote -}} ]"
    spec, found, _ = convert(action(more))
    assert found == []
    quoted, plain = "{{ .Params.x | quote }}", "{{ .Params.x }}"
    assert spec["actions"][0]["args"] == [quoted, plain, plain, f"a {quoted}", plain]


@pytest.mark.parametrize("silent", ["{{/* nothing */}}", "{{ $y := .x }}"])
def test_spaces_in_an_arm_are_reported_also_beside_silent_expressions(silent: str) -> None:
    arms = "{{ if .x }}{{ .x }} {{ else }}other{{ end }}"
    for written in (f"x{arms}{silent}{silent}", f"{silent}{{{{ if .x }}}} a{{{{ end }}}}x"):
        _, found, reasons = convert(action(f"environment:\n  A: {written}"))
        assert [kind for kind, _ in found] == ["changed"], written
        assert "may stay" in "".join(reasons.values())


def test_function_for_netmasks_that_templates_use_is_there() -> None:
    assert render('{{ netmaskToPrefixLength "255.255.254.0" }}', {}) == "23"
    assert render('{{ netmaskToPrefixLength "255.0.255.0" }}', {}) == "0"
    assert render('{{ netmaskToPrefixLength "0.0.0.0" }}', {}) == "0"
    with pytest.raises(TemplateError, match="invalid netmask"):
        render('{{ netmaskToPrefixLength "x" }}', {})


def test_comments_in_the_text_are_reported_with_their_lines() -> None:
    _, found, reasons = convert("# one\n" + action("# two\n# {{ .x }}\ntimeout: 5 # three"))
    assert found == [("changed", "spec.data")]
    assert reasons["spec.data"].startswith("4 comments (lines 1, 10, 11, 12 of the text)")
    _, _, reasons = convert(action("# {{ .x }}\n# why\ntimeout: 5") + "# x\n" * 30)
    assert "27, 28, 29 ... of the text" in reasons["spec.data"]


def test_large_text_takes_no_more_than_seconds() -> None:
    """A text that would cost the square of its size if each expression were searched among all others."""
    line = "          {{ if contains `a` .x }}{{ $d }}{{ end }}\n"
    data = "{{ $d := .y }}\n" + action("environment:\n  A: |\n" + line * 1000)
    spec, _, _ = convert(data)
    assert spec is not None
    many = "".join(f"  V{i}: '{{{{ $d }}}}{{{{ contains `a` .x }}}}'\n" for i in range(400))
    _, found, _ = convert("{{ $d := .y }}\n" * 200 + action("environment:\n" + many))
    assert ("error", "actions[0].environment") in found


def test_comments_of_a_text_that_comes_as_json_are_kept_too() -> None:
    """A Template from a cluster or from `kubectl get -o json`, where only the text can have comments."""
    data = "# one\ntasks:\n- name: t\n  actions:\n  - name: a\n    image: i\n    timeout: 5 # five\n"
    (made,) = to_yaml(convert_documents(read("in.json", orjson.dumps(with_data(data)))).converted)
    assert ("# one\nspec:" in made, "timeout: 5 # five" in made) == (True, True)


# --- waitdaemon, the PID namespace, registries

_WAITS = """
- name: a
  image: ghcr.io/x/waitdaemon:0.2
  pid: host
  environment: {IMAGE: "kexec:v1", WAIT_SECONDS: 10, BLOCK_DEVICE: /dev/sda3}
  volumes: ["/var/run/docker.sock:/var/run/docker.sock"]
"""


def test_waitdaemon_becomes_its_image_and_the_restart_is_reported() -> None:
    spec, found, _ = convert(task(_WAITS))
    env = {"BLOCK_DEVICE": "/dev/sda3"}
    assert spec["actions"] == [{"name": "a", "image": "kexec:v1", "env": env, "reboots": True}]
    assert found == [("changed", "actions[0].image"), ("changed", "actions[0]")]


def test_what_waitdaemon_has_for_nerdctl_is_not_its_images() -> None:
    more = _WAITS.replace("WAIT_SECONDS: 10", "CONTAINER_RUNTIME: nerdctl, NERDCTL_HOST: 'false'").replace(
        "/var/run/docker.sock:/var/run/docker.sock", "/run/containerd/containerd.sock:/run/containerd/containerd.sock"
    )
    assert convert(task(more))[0] == convert(task(_WAITS))[0]


@pytest.mark.parametrize(
    ("image", "told"),
    [("quay.io/tinkerbell/actions/rootio:v1", True), ("x.io/rootio@sha256:00", True), ("x.io/norootio", False)],
)
def test_rootio_gets_a_finding_about_its_partitions(image: str, told: bool) -> None:
    _, found, reasons = convert(action(head=f"- {{name: a, image: '{image}'}}"))
    assert found == ([("changed", "actions[0].image")] if told else [])
    assert ("tinkerbell.org/storage" in "".join(reasons.values())) is told


def test_waitdaemon_that_is_not_the_last_action_stays_as_it_is() -> None:
    spec, found, _ = convert(task(_WAITS + "- {name: b, image: c}"))
    assert spec["actions"][0]["image"] == "ghcr.io/x/waitdaemon:0.2"
    assert (spec["actions"][0]["pidNamespace"], found) == ("host", [])


@pytest.mark.parametrize(
    ("image", "registry", "result", "told"),
    [
        ("image2disk:v1.0.0", "", "image2disk:v1.0.0", True),
        ("image2disk:v1.0.0", "10.0.0.1:5000/actions/", "10.0.0.1:5000/actions/image2disk:v1.0.0", False),
        ("debian:12", "10.0.0.1:5000", "10.0.0.1:5000/debian:12", False),
        ("debian:12", "", "debian:12", True),
        ("actions/kexec:v1", "", "actions/kexec:v1", True),
        ("actions/{{ .name }}", "10.0.0.1:5000", "10.0.0.1:5000/actions/{{ .Params.name }}", False),
        ("localhost/a", "10.0.0.1:5000", "localhost/a", False),
        ("registry:5000/a", "10.0.0.1:5000", "registry:5000/a", False),
        ("quay.io/tinkerbell/image2disk:v1", "10.0.0.1:5000", "quay.io/tinkerbell/image2disk:v1", False),
        ("{{ .image }}", "10.0.0.1:5000", "{{ .Params.image }}", False),
    ],
)
def test_image_without_a_registry_is_reported_or_gets_the_given_one(
    image: str, registry: str, result: str, told: bool
) -> None:
    document = InputDocument(SOURCE, with_data(action(head=f"- {{name: a, image: '{image}'}}")))
    converted = convert_documents([document], image_registry=registry)
    assert converted.objects[0]["spec"]["actions"][0]["image"] == result
    assert any("names no registry" in each.reason for each in converted.findings) is told


# --- spaces beside expressions that print nothing: YAML cut them off after rendering, and a field is rendered by itself

# Every short sequence of pieces in a plain scalar is rendered as v1alpha1 did and as v1alpha2 does. The values are
# equal, or the report says that spaces may stay; without control flow they are equal.
WORDS = {"word": "w", "empty": ""}
DISKS = ["/dev/sda", "/dev/sdb"]
TWO_DISKS: Raw = {"spec": {"disks": [{"device": disk} for disk in DISKS]}}
STRAIGHT = ("a", " ", "{{/* nothing */}}", "{{ $y := .word }}", "{{ .word }}")
TIGHT = "{{ if .word }}b{{ else }}c{{ end }}"
FLOW = (
    "{{ if .word }} b {{ end }}",
    "{{ if .empty }}b{{ else }} c{{ end }}",
    "{{ if .word }}{{ .word }} {{ else }}c{{ end }}",
    "{{ with .word }}{{/* nothing */}} b{{ end }}",
    "{{ if .word }}{{ if .empty }}x{{ end }} b{{ end }}",
    "{{ if .word }}b {{ if .empty }}x{{ end }}{{ end }}",
    "{{ range .Hardware.Disks }} b{{ end }}",
)
AT_ONCE = 200


def sequences(pieces: tuple[str, ...], longest: int) -> list[str]:
    joined = {"".join(each) for length in range(1, longest + 1) for each in product(pieces, repeat=length)}
    return sorted(text for text in joined if text.strip())


def compared(texts: list[str]) -> list[tuple[str, str, str, bool]]:
    """Texts with the old and the new rendering, and True if the report warns of spaces."""
    env = "".join(f"      V{index}: {text}\n" for index, text in enumerate(texts))
    data = f"name: t\ntasks:\n- name: t\n  actions:\n  - name: a\n    image: i\n    environment:\n{env}"
    old = with_data(data)
    findings = Findings(SOURCE)
    (new,) = template.convert_template(old, findings)
    warned = {each.path.rpartition(".")[2] for each in findings if each.reason.startswith("spaces ")}
    (was,) = old_renderer.render(old, TWO_DISKS, WORDS)
    (now,) = render_actions(new, objects.hardware(storageDevices=DISKS), WORDS)
    names = [f"V{index}" for index in range(len(texts))]
    return [(text, was["env"][name], now["env"][name], name in warned) for text, name in zip(texts, names, strict=True)]


def quiet() -> list[str]:
    """Spaces in the middle, and arms without spaces at their ends, need no finding."""
    texts = sequences(("a b", *STRAIGHT[2:], TIGHT), 3)
    return texts + [
        f"a{one}{flow}{two}z" for flow in FLOW for one in ("", *STRAIGHT[1:]) for two in ("", *STRAIGHT[1:])
    ]


@pytest.mark.parametrize(
    ("texts", "may_warn"),
    [
        (sequences(STRAIGHT, 4), False),
        (quiet(), False),
        *((sequences((*STRAIGHT, flow), 3), True) for flow in FLOW),
    ],
    ids=["silent", "quiet", *(f"flow{number}" for number in range(len(FLOW)))],
)
def test_spaces_beside_expressions_are_kept_or_reported(texts: list[str], may_warn: bool) -> None:
    for start in range(0, len(texts), AT_ONCE):
        for text, was, now, warned in compared(texts[start : start + AT_ONCE]):
            assert (may_warn and warned) or (text, now, warned) == (text, was, False)


CASES = yaml.safe_load((Path(__file__).parent / "expressions.yaml").read_text())


@pytest.mark.parametrize(("old", "new"), [*CASES["moved"], *((text, text) for text in CASES["unchanged"])])
def test_moved_data_gets_its_new_path_and_other_text_is_unchanged(old: str, new: str) -> None:
    result = rewrite(old)
    assert (result.text, result.notices, result.errors) == (new, [], [])


@pytest.mark.parametrize(
    ("old", "new", "notice"),
    [(*case, "address") for case in CASES["interfaces"]] + [(*case, "exchanged") for case in CASES["exchanged"]],
)
def test_order_of_interfaces_and_swapped_operands_are_reported(old: str, new: str, notice: str) -> None:
    result = rewrite(old)
    assert (result.text, result.errors, len(result.notices)) == (new, [], 1)
    assert notice in result.notices[0]


@pytest.mark.parametrize(("text", "error"), CASES["gone"])
def test_removed_data_is_an_error_that_names_it(text: str, error: str) -> None:
    assert error in " ".join(rewrite(text).errors)


_ALONE = [
    "{{ .x }}",
    "{{ index .Hardware.Disks 0 }}",
    "a {{ .Params.y | quote }}",
    '{{ printf "%s" .x }}',
    "{{- .x -}} ",
]
_TOGETHER = [
    '{{ define "t" }}{{ .Disks }}{{ end }}{{ template "t" .Hardware }}',
    "{{ $x = .a }}",
    "{{ $x := .a }}{{ $x.b }}",
    "{{ if .x }}{{ .y }}{{ end }}",
    "{{ range .Hardware.Disks }}{{ . }}{{ end }}",
]


@pytest.mark.parametrize("text", ["".join(pair) for pair in product(_ALONE + _TOGETHER, repeat=2)])
def test_expression_is_rewritten_alike_alone_and_among_others(text: str) -> None:
    # A comment has no end that can be found without the lexer, so that all expressions are rewritten together.
    comment = "{{/* c */}}"
    assert rewrite(f"{text}{comment}").text == f"{rewrite(text).text}{comment}"
    assert rewrite(f"{text}{comment}").notices == rewrite(text).notices


@pytest.mark.parametrize("path", RENDERED, ids=str)
def test_text_is_read_alike_with_an_expression_that_only_the_lexer_ends(path: Path) -> None:
    for each in read(path.name, (CORPORA / path).read_bytes()):
        data = each.obj["spec"].get("data") if isinstance(each, InputDocument) else None
        if isinstance(data, str):
            assert read_text(f"{data}\n# {{{{/* '}}}}' */}}}}\n").value == read_text(data).value


def test_results_of_rewriting_are_not_shared() -> None:
    text = "{{ $name := .Hardware.Metadata.Instance.Hostname }}{{ $name }}"
    rewrite(text).notices.clear()
    assert rewrite(text).notices
