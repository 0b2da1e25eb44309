"""The template language as Go 1.26 and Sprig v3.3 print it (recorded by tests/interop), construct by construct."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.unit.template.sprig_left_out import LEFT_OUT
from tink.template.compile import ProgramCache, check, render
from tink.template.errors import TemplateError, TemplateExecutionError, TemplateSyntaxError
from tink.template.functions import FUNCTIONS
from tink.template.sprig import SPRIG

DATA: dict[str, Any] = {
    "s": "abc",
    "uni": "héllo",
    "i": 42,
    "f": 2.5,
    "big": 1e6,
    "t": True,
    "no": False,
    "nil": None,
    "l": ["a", 2, None],
    "words": ["x", "y", "z"],
    "empty": [],
    "m": {"b": 1, "a": {"deep": "found"}},
    "dev": "/dev/nvme0n1",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain }} text", "plain }} text"),
        ("{{.s}}{{.i}}{{.f}}{{.big}}{{.t}}{{.nil}}", "abc422.51e+06true<no value>"),
        ("{{.l}} {{.m}}", "[a 2 <nil>] map[a:map[deep:found] b:1]"),
        ("a \n {{- .i -}} \n b", "a42b"),
        ("a {{- /* gone */ -}} b", "ab"),
        ("{{-3}} {{- 3}}", "-33"),
        ('{{"q\\"\\x41\\u00e9"}}{{`raw\\n`}}', 'q"Aéraw\\n'),
        ("{{'a'}} {{0x1F}} {{017}} {{1_000}} {{1e3}} {{1.50}}", "97 31 15 1000 1000 1.5"),
        ("{{.m.a.deep}} {{$.m.a.deep}} {{(.m).a.deep}} {{(index .m `a`).deep}}", "found found found found"),
        ("{{$x := .i}}{{$x}}{{$x = 7}}{{$x}}", "427"),
        ("{{$x := 1}}{{if .t}}{{$x := 2}}{{$x}}{{end}}{{$x}}", "21"),
        ("{{$x := 1}}{{range .words}}{{$x = .}}{{end}}{{$x}}", "z"),
        ("{{if .empty}}1{{else if .nil}}2{{else if .s}}3{{else}}4{{end}}", "3"),
        ("{{with .m.a}}{{.deep}}{{$.s}}{{end}}{{with .empty}}x{{else with .i}}{{.}}{{end}}", "foundabc42"),
        ("{{range $i, $w := .words}}{{$i}}{{$w}}{{end}}", "0x1y2z"),
        ("{{range $k, $v := .m}}{{$k}};{{end}}{{range .empty}}x{{else}}none{{end}}", "a;b;none"),
        ("{{range 3}}{{.}}{{end}}{{range .nil}}x{{else}}nil{{end}}", "012nil"),
        ("{{range .words}}{{if eq . `y`}}{{continue}}{{end}}{{.}}{{end}}", "xz"),
        ("{{range .words}}{{if eq . `y`}}{{break}}{{end}}{{.}}{{end}}", "x"),
        ('{{define "d"}}<{{.}}>{{end}}{{template "d" .s}}{{block "e" .i}}[{{.}}]{{end}}', "<abc>[42]"),
        ("{{.s | printf `%s-%s` `x` | len}}", "5"),
        ("{{and .t 0 .missing}} {{or .no `d` .missing}} {{not .nil}}", "0 d true"),
        ("{{eq .nil `x`}} {{eq .s `b` `abc`}} {{ne .i 41}} {{lt 1 2}} {{ge `b` `a`}}", "false true true true true"),
        ("{{len .uni}} {{slice .uni 0 1}} {{index .uni 0}} {{index .l 1}}", "6 h 104 2"),
        ("{{index .m `zz`}}{{slice .l 1 2}}", "<no value>[2]"),
        ("{{html `<a>&'`}} {{js `'<`}} {{urlquery `a b/é`}}", "&lt;a&gt;&amp;&#39; \\'\\u003C a+b%2F%C3%A9"),
        ("{{print 1 2 `a` `b` 3}}{{println .i .s}}", "1 2ab342 abc\n"),
        ("{{contains .s `b`}} {{hasPrefix .dev `/dev/nvme`}} {{hasSuffix .s `c`}}", "true true true"),
    ],
)
def test_template_renders_as_go_renders_it(text: str, expected: str) -> None:
    assert render(text, DATA) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{.x}}", 'template: t:1:2: executing "t" at <.x>: map has no entry for key "x"'),
        ("é\n {{.m.a.x}}", 'template: t:2:5: executing "t" at <.m.a.x>: map has no entry for key "x"'),
        ("{{.s.x}}", 'template: t:1:4: executing "t" at <.s.x>: can\'t evaluate field x in type interface {}'),
        ("{{.nil.x}}", 'template: t:1:6: executing "t" at <.nil.x>: nil pointer evaluating interface {}.x'),
        ("{{len 3}}", 'template: t:1:2: executing "t" at <len 3>: error calling len: len of type int'),
        ("{{contains .i `x`}}", "<.i>: wrong type for value; expected string; got int"),
        ("{{contains 1 `x`}}", "<1>: expected string; found 1"),
        ("{{eq 1 1.0}}", "error calling eq: incompatible types for comparison: int and float64"),
        ("{{index .l 9}}", "error calling index: index out of range: 9"),
        ("{{not}}", "wrong number of args for not: want 1 got 0"),
        ("{{.s 1}}", "s is not a method but has arguments"),
        ('{{template "zz"}}', 'template "zz" not defined'),
        ('{{template `a"b`}}', r'template "a\"b" not defined'),
        ("{{define `d`}}{{.x}}{{end}}{{template `d` .m}}", 'executing "d" at <.x>: map has no entry for key "x"'),
        ("{{range .i 1}}{{end}}", "i is not a method but has arguments"),
        ("{{range .s}}{{end}}", "range can't iterate over abc"),
        ("{{1 | formatPartition .dev | len 1}}", "wrong number of args for len"),
    ],
)
def test_values_that_do_not_fit_are_refused_in_the_words_of_go(text: str, message: str) -> None:
    with pytest.raises(TemplateExecutionError) as caught:
        render(text, DATA, "t")
    assert message in str(caught.value)
    assert (caught.value.name, caught.value.line) == ("t", 2 if "\n" in text else 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n{{", "template: t:2: unclosed action"),
        ("{{if .t}}\n{{end", "template: t:2: unclosed action"),
        ("{{if .t}}", "template: t:1: unexpected EOF"),
        ("{{end}}", "template: t:1: unexpected {{end}}"),
        ("{{nope}}", 'template: t:1: function "nope" not defined'),
        ("{{$x}}", 'template: t:1: undefined variable "$x"'),
        ("{{break}}", "template: t:1: {{break}} outside {{range}}"),
        ("{{.a | 1}}", "template: t:1: non executable command in pipeline stage 2"),
        ("{{(.a}}", "template: t:1: unclosed left paren"),
        ("{{.hardware.disks[0]}}", "template: t:1: bad character U+005B '['"),
        ("{{define `a`}}1{{end}}{{define `a`}}2{{end}}", 'multiple definition of template "a"'),
        ("{{089}}", 'template: t:1: integer overflow: "089"'),
        ("{{`a}}", "template: t:1: unterminated raw quoted string"),
    ],
)
def test_texts_that_are_no_templates_are_refused_in_the_words_of_go(text: str, message: str) -> None:
    with pytest.raises(TemplateSyntaxError) as caught:
        check(text, "t")
    assert message in str(caught.value)
    assert caught.value.line > 0


@pytest.mark.parametrize(
    "text",
    [
        "{{.s.upper}}",
        "{{.s.__class__}}",
        "{{.l.append}}",
        "{{.m.items}}",
        "{{.m.keys}}",
        "{{(printf).__globals__}}",
        "{{.i.to_bytes 4}}",
        "{{$.__class__.__mro__}}",
        "{{call .s}}",
        "{{index . `__class__` `x`}}",
    ],
)
def test_nothing_of_python_can_be_reached_from_a_template(text: str) -> None:
    with pytest.raises(TemplateError):
        render(text, DATA)


def test_objects_that_are_no_values_are_never_shown() -> None:
    class Secret:
        def __str__(self) -> str:
            return "leaked"

    for shown in (".x", "printf `%v` .x", ".x.y", "toString .x", "toJson .x", "eq .x 1", "kindOf .x"):
        with pytest.raises(TemplateError):
            render(f"{{{{{shown}}}}}", {"x": Secret()})


def test_bytes_that_are_split_by_slice_come_together_again() -> None:
    assert render("{{slice .uni 0 2}}{{slice .uni 2}}", DATA) == "héllo"
    assert render('{{"\\xc3"}}{{"\\xa9"}}', DATA) == "é"
    assert render('{{printf "%q" (slice .uni 0 2)}}', DATA) == '"h\\xc3"'
    lone_surrogate = {"x": "a\ud800b"}
    assert render("{{len .x}} {{printf `%q` .x}} {{urlquery .x}}", lone_surrogate) == '5 "a\ufffdb" a%EF%BF%BDb'


@pytest.mark.parametrize(
    ("device", "partition"),
    [
        ("/dev/sda", "/dev/sda1"),
        ("/dev/vdb", "/dev/vdb1"),
        ("/dev/xvda", "/dev/xvda1"),
        ("/dev/hda", "/dev/hda1"),
        ("/dev/nvme0n1", "/dev/nvme0n1p1"),
        ("/dev/mmcblk0", "/dev/mmcblk0p1"),
        ("/dev/loop0", "/dev/loop0p1"),
        ("/dev/md127", "/dev/md127p1"),
        ("/dev/disk/by-id/wwn-0x50", "/dev/disk/by-id/wwn-0x50-part1"),
        ("/dev/mapper/root", "/dev/mapper/root1"),
        ("", "1"),
    ],
)
def test_partition_path_is_the_one_that_linux_makes(device: str, partition: str) -> None:
    assert render("{{formatPartition .d 1}}", {"d": device}) == partition
    assert render("{{ 1 | formatPartition .d }}", {"d": device}) == partition


def test_cache_keeps_what_was_used_last_and_never_more_than_its_capacity() -> None:
    cache = ProgramCache(capacity=30)
    first = cache.get("{{.aaaaaa}}", "t")
    cache.get("{{.bbbbbb}}", "t")
    assert cache.get("{{.aaaaaa}}", "t") is first
    cache.get("{{.cccccc}}", "t")
    assert len(cache) == 2
    assert cache.get("{{.aaaaaa}}", "t") is first
    cache.get("{{." + "d" * 100 + "}}", "t")
    assert len(cache) == 2


RECORDED: dict[str, Any] = orjson.loads(Path(__file__).with_name("sprig.json").read_bytes())


@pytest.mark.parametrize("name", sorted(SPRIG))
def test_function_gives_what_sprig_gives_and_fails_in_its_words(name: str) -> None:
    rows = [row for row in RECORDED["rows"] if name in row[0].replace("(", " ").split()]
    assert rows, f"{name} is in no recorded call"
    for expression, output, *error in rows:
        try:
            found = (render(f"{{{{{expression}}}}}", RECORDED["data"], "t"), [])
        except TemplateError as failure:
            found = (None, [str(failure)])  # type: ignore[assignment]
        assert found == (output, error), expression


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{minf 0 -0.0}} {{minf -0.0 0 1}} {{maxf -0.0 0 -1}} {{maxf 0 -0.0}}", "-0 -0 0 0"),
        ("{{snakecase `ÄİB`}} {{kebabcase `aİ`}} {{camelcase `AİB`}}", "äib a-i Aib"),
        ("{{indent 2 `a\nb`}} {{toJson `<é\n>`}}", '  a\n  b "\\u003cé\\n\\u003e"'),
        ("{{keys .m}} {{values .m}} {{kindIs `string` .s}}", "[a k] [1 v] true"),
        ("{{sha256sum `` | trunc 8}} {{splitList `,` `a,b` | len}} {{trunc (add 1 2) .s}}", "e3b0c442 2 Hel"),
    ],
)
def test_function_gives_in_odd_corners_what_sprig_gives(text: str, expected: str) -> None:
    assert render(text, RECORDED["data"]) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{fail `disk missing`}}", "error calling fail: disk missing"),
        ("{{b64dec `%%`}}", "error calling b64dec: illegal base64 data"),
    ],
)
def test_function_refuses_in_the_words_of_sprig(text: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        render(text, RECORDED["data"])


def test_left_out_functions_of_sprig_are_missing_and_have_a_reason() -> None:
    assert set(LEFT_OUT) & set(FUNCTIONS) == {"slice", "contains", "hasPrefix", "hasSuffix"}
    assert not set(LEFT_OUT) & set(SPRIG)
    assert all(LEFT_OUT.values())


def test_template_that_changes_a_map_changes_it_for_itself_alone() -> None:
    data = {"m": {"a": {"b": 1}}, "l": [{"x": 1}]}
    text = "{{$_ := set .m.a `b` 2}}{{$_ := set (index .l 0) `x` 2}}{{$_ := unset . `m`}}{{.}}"
    assert render(text, data) == "map[l:[map[x:2]]]"
    assert data == {"m": {"a": {"b": 1}}, "l": [{"x": 1}]}
    assert render("{{$m := merge (dict `a` 1) .m}}{{$m}}", data) == "map[a:1]"
    assert render("{{define `d`}}{{$_ := set . `a` 5}}{{end}}{{template `d` .m}}{{.m}}", data) == "map[a:5]"
    assert data["m"] == {"a": {"b": 1}}
