"""Sprig's functions: argument order (subject last), and the odd corners that templates rely on."""

from __future__ import annotations

import pytest

from tink.template.engine import render
from tink.template.errors import TemplateExecutionError

DATA = {
    "s": "Hello",
    "l": ["b", "a", None, 3],
    "m": {"k": "v", "a": 1},
    "nil": None,
    "zero": 0,
    "t": True,
    "w": ["x", "y"],
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{.nil | default `d`}} {{default `d` .s}} {{default `d` ``}} {{default `d`}}", "d Hello d d"),
        (
            "{{empty .zero}} {{empty .s}} {{coalesce 0 `` .s}} {{ternary `y` `n` .t}} {{.t | ternary `y` `n`}}",
            "true false Hello y y",
        ),
        ("{{nospace ` a b `}} {{upper .s}} {{lower .s}} {{upper `straße é`}}", "ab HELLO hello STRAßE É"),
        (
            "{{trim `  a `}}|{{trimAll `-` `--a-`}}|{{trimPrefix `a` `ab`}}|{{trimSuffix `b` `ab`}}",
            "a|a|b|a",
        ),
        (
            "{{replace `l` `L` .s}} {{repeat 3 `ab`}} {{trunc 2 .s}} {{trunc -2 .s}} {{substr 1 3 .s}}",
            "HeLLo ababab He lo el",
        ),
        ('{{quote .s .nil `a"`}} {{squote .s 1}} {{cat `a` .nil 1}}', '"Hello" "a\\"" \'Hello\' \'1\' a 1'),
        ("{{snakecase `ÄİB`}} {{kebabcase `aİ`}} {{camelcase `AİB`}}", "äib a-i Aib"),
        ("{{minf 0 -0.0}} {{minf -0.0 0 1}} {{maxf -0.0 0 -1}} {{maxf 0 -0.0}}", "-0 -0 0 0"),
        ("{{indent 2 `a\nb`}}{{nindent 1 `c`}}", "  a\n  b\n c"),
        ("{{join `,` .l}} {{join `,` `x`}} {{splitList `,` `a,b` | len}} {{(split `,` `a,b`)._1}}", "b,a,3 x 2 b"),
        (
            "{{toString 1.5}} {{toString .nil}} {{toJson .m}} {{toJson `<é\n>`}}",
            '1.5 <nil> {"a":1,"k":"v"} "\\u003cé\\n\\u003e"',
        ),
        ("{{toJson 1e21}} {{toJson 1e-7}} {{toJson 2.5}} {{toJson .l}}", '1e+21 1e-7 2.5 ["b","a",null,3]'),
        (
            '{{(fromJson `{"a": [1, 2.5]}`).a}} {{fromJson `{`}} {{printf `%T` (fromJson `1`)}}',
            "[1 2.5] <no value> float64",
        ),
        (
            "{{b64enc .s}} {{b64dec `SGVsbG8=`}} {{sha256sum `` | trunc 8}} {{base `/dev/sda`}}",
            "SGVsbG8= Hello e3b0c442 sda",
        ),
        (
            "{{list 1 `a`}} {{first .l}} {{last .l}} {{rest .w}} {{initial .w}} {{reverse .w}}",
            "[1 a] b 3 [y] [x] [y x]",
        ),
        (
            "{{append .w 1}} {{prepend .w 1}} {{concat .w .w}} {{has `x` .w}} {{has 1 .w}} {{sortAlpha .l}}",
            "[x y 1] [1 x y] [x y x y] true false [3 a b]",
        ),
        ("{{until 3}} {{first (list)}} {{range until 2}}{{.}}{{end}}", "[0 1 2] <no value> 01"),
        (
            "{{get .m `k`}} {{get .m `zz`}}| {{hasKey .m `k`}} {{keys .m}} {{values .m}} {{dict `a` 1 `b`}}",
            "v | true [a k] [1 v] map[a:1 b:]",
        ),
        (
            "{{add 1 2 3}} {{add1 1}} {{sub 5 3}} {{mul 2 3 4}} {{div 7 2}} {{div -7 2}} {{mod -7 2}}",
            "6 2 2 24 3 -3 -1",
        ),
        (
            "{{max 1 5 2}} {{min 4 2}} {{int `12`}} {{int `0x10`}} {{int `x`}} {{int 2.9}}",
            "5 2 12 16 0 2",
        ),
        ("{{float64 `1.5`}} {{atoi `-3`}} {{atoi `x`}}", "1.5 -3 0"),
        ("{{mul 9223372036854775807 2}} {{atoi `99999999999999999999`}}", "-2 9223372036854775807"),
        (
            "{{regexFind `\\d+` `ab12c3`}} {{regexFindAll `\\d` `1a2` -1}}",
            "12 [1 2]",
        ),
        (
            "{{regexReplaceAll `a(x*)b` `-ab-axxb-` `${1}W`}} {{regexReplaceAll `a(x*)b` `-ab-axxb-` `$1W`}}",
            "-W-xxW- ---",
        ),
        (
            "{{regexReplaceAll `x*` `abxd` `-`}} {{regexReplaceAll `` `é` `-`}}",
            "-a-b-d- -é-",
        ),
        ("{{regexMatch `^/dev/nvme\\d+` `/dev/nvme0`}} {{regexMatch `(` `x`}}", "true false"),
        ("{{regexReplaceAllLiteral `b` `abc` `$0`}}", "a$0c"),
        ("{{kindOf .l}} {{kindOf .m}} {{kindIs `string` .s}} {{kindOf .nil}}", "slice map true invalid"),
        ("{{trunc (add 1 2) .s}}", "Hel"),
    ],
)
def test_sprig_function_gives_what_sprig_gives(text: str, expected: str) -> None:
    assert render(text, DATA) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{fail `disk missing`}}", "error calling fail: disk missing"),
        ("{{div 1 0}}", "error calling div: runtime error: integer divide by zero"),
        ("{{b64dec `%%`}}", "error calling b64dec: illegal base64 data"),
        ("{{regexReplaceAll `(` `x` `y`}}", "error parsing regexp"),
        ("{{first .s}}", "Cannot find first on type string"),
        ("{{repeat -1 `a`}}", "negative Repeat count"),
        ("{{get .s `k`}}", "expected map[string]interface {}; got string"),
        ("{{ternary 1 2 3}}", "expected bool; found 3"),
    ],
)
def test_sprig_function_refuses_what_would_be_wrong(text: str, message: str) -> None:
    with pytest.raises(TemplateExecutionError) as caught:
        render(text, DATA)
    assert message in str(caught.value)
