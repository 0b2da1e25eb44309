"""No template, however made, may hang, exhaust memory or crash its caller."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tink.template.compile import RenderBudget, RenderLimits, compile_text, render
from tink.template.errors import TemplateError, TemplateExecutionError, TemplateSyntaxError
from tink.template.functions import FUNCTIONS
from tink.template.lexer import KEYWORDS
from tink.template.signatures import ANY, Function

BIG = "x" * 200_000
DATA: dict[str, object] = {
    "s": "abc",
    "big": BIG,
    "l": list(range(1000)),
    "m": {str(n): n for n in range(1000)},
    "nil": None,
    "f": 2.5,
}
DATA["lists"] = [[number] for number in range(2000)]
# Two values of 2 to the power of 40 elements each, made of 40 lists.
SHARED = "{{$x := list 1}}{{$y := list 1}}{{range 40}}{{$x = list $x $x}}{{$y = list $y $y}}{{end}}"


def counted(share: int = 5) -> RenderBudget:
    """Return a budget whose clock stands still: only steps, sizes and depths can run out.

    It has a fifth of the usual steps: each function has to count its own.
    """
    return RenderBudget(RenderLimits(steps=RenderLimits().steps // share), clock=lambda: 0.0)


@pytest.mark.parametrize(
    "text",
    [
        "{{range 9007199254740993}}{{end}}",
        "{{range .l}}{{range $.l}}{{range $.l}}{{end}}{{end}}{{end}}",
        "{{$x := `a`}}{{range 100}}{{$x = print $x $x}}{{end}}",
        "{{$x := list 1}}{{range 100}}{{$x = list $x $x}}{{end}}{{$x}}",
        "{{$x := list 1}}{{range 5000}}{{$x = list $x}}{{end}}{{$x}}",
        "{{$x := list 1}}{{range 5000}}{{$x = list $x}}{{end}}{{toJson $x}}",
        "{{$x := list 1}}{{range 40}}{{$x = concat $x $x}}{{end}}",
        "{{range .l}}{{range $.l}}{{$x := upper $.big}}{{end}}{{end}}",
        "{{range .l}}{{range $.l}}{{$x := sha256sum $.big}}{{end}}{{end}}",
        "{{range .l}}{{range $.l}}{{$x := keys $.m}}{{end}}{{end}}",
        "{{range .l}}{{$.m}}{{end}}{{range .l}}{{$.m}}{{end}}",
        "{{range .l}}{{$.big}}{{end}}",
        "{{range .l}}{{range $k, $v := $.m}}{{break}}{{end}}{{range $k, $v := $.m}}{{break}}{{end}}{{end}}" * 9,
        "{{printf `%1000000d` 1 | printf `%1000000s%1000000s%1000000s` 1 2}}",
        "{{printf `%.1000000f%.1000000f` .f .f}}",
        "{{repeat 1000000000 `a`}}",
        "{{repeat 1000 .big}}",
        "{{replace `x` .big .big}}",
        "{{replace `` .big .big}}",
        "{{indent 1000000000 `a`}}",
        "{{until 1000000000}}",
        "{{regexReplaceAll `x` .big .big}}",
        "{{range .l}}{{$x := regexMatch `[^y]*?(x{1,90}){5}y` $.big}}{{end}}",
        "{{range .l}}{{range $.l}}{{$x := regexMatch (printf `\\\\pL{1,4}a{%d}` .) `x`}}{{end}}{{end}}",
        "{{join .big (splitList `` .big)}}",
        "{{define `r`}}{{template `r` .}}{{end}}{{template `r` .}}",
        "{{define `r`}}{{template `r` .}}{{template `r` .}}{{end}}{{template `r` .}}",
        "{{define `r`}}{{range .l}}{{template `r` $}}{{end}}{{end}}{{template `r` .}}",
        "{{define `a`}}{{template `b` .}}{{end}}{{define `b`}}{{template `a` .}}{{end}}{{template `a` .}}",
        "{{.s" + " | print" * 20_000 + "}}",
        f"{SHARED}{{{{has $x (list $y)}}}}",
        f"{SHARED}{{{{deepEqual $x $y}}}}",
        f"{SHARED}{{{{uniq (list $x $y)}}}}",
        f"{SHARED}{{{{without (list $x) $y}}}}",
        f"{SHARED}{{{{$z := deepCopy $x}}}}",
        f"{SHARED}{{{{$z := dict `a` $x | merge (dict `b` $y) | deepCopy}}}}",
        "{{$x := dict}}{{$_ := set $x `x` $x}}{{$x}}",
        "{{$x := dict}}{{$_ := set $x `x` $x}}{{toPrettyJson $x}}",
        "{{$x := dict}}{{$_ := set $x `x` $x}}{{deepCopy $x}}",
        "{{$x := dict}}{{$y := dict}}{{$_ := set $x `x` $x}}{{$_ := set $y `x` $y}}{{merge $x $y}}",
        "{{$x := dict}}{{$y := dict}}{{$_ := set $x `x` $x}}{{$_ := set $y `x` $y}}{{deepEqual $x $y}}",
        "{{range 1000}}{{derivePassword 1 `long` `a` `b` `c`}}{{end}}",
        "{{range .l}}{{uniq $.lists}}{{end}}",
        "{{untilStep 0 1000000000 1}}",
        "{{seq 1 1000000000}}",
        "{{wrapWith 1 .big .big}}",
        "{{wrap 1 .big | wrapWith 1 .big}}",
        "{{range .l}}{{range $.l}}{{$x := snakecase $.big}}{{end}}{{end}}",
        "{{range .l}}{{range $.l}}{{$x := semverCompare (repeat 60 `>1 `) `2.0.0`}}{{end}}{{end}}",
        "{{chunk 1 .l | toPrettyJson | indent 900}}",
    ],
)
def test_explosive_template_ends_by_its_steps_or_sizes(text: str) -> None:
    with pytest.raises(TemplateExecutionError):
        render(text, DATA, budget=counted())


@pytest.mark.parametrize(
    "text",
    [
        "{{if .s}}" * 10_000,
        "{{" + "(" * 10_000,
        "{{print " + "(" * 1000 + ".s" + ")" * 1000 + "}}",
        "{{if .s}}" * 500 + "{{end}}" * 500,
        "{{range .l}}" * 500 + "{{end}}" * 500,
        "{{" * 100_000,
        "x" * 2_000_000 + "{{.s}}",
        "{{.s}}" * 170_000,
    ],
)
def test_text_that_is_too_deep_or_too_long_is_refused(text: str) -> None:
    with pytest.raises(TemplateSyntaxError):
        render(text, DATA, budget=counted())


def test_a_megabyte_of_parameters_is_read_or_refused() -> None:
    data = {"p": "x" * (1 << 20), "many": {str(number): "v" * 100 for number in range(10_000)}}
    short = "{{len .p}} {{len .many}} {{trunc 3 .p}} {{contains .p `y`}}"
    assert render(short, data, budget=counted(1)) == "1048576 10000 xxx false"
    for text in (
        "{{.p}}",
        "{{.many}}",
        "{{range .many}}{{.}}{{end}}",
        "{{.p | upper | quote | b64enc}}",
        "{{toJson .}}",
    ):
        with pytest.raises(TemplateExecutionError):
            render(text, data, budget=counted(1))


def test_a_function_that_breaks_takes_only_its_template_with_it() -> None:
    for broken in (KeyError("k"), TypeError("t"), OverflowError("o"), UnicodeEncodeError("utf-8", "x", 0, 1, "u")):

        def fail(*arguments: object, error: Exception = broken) -> None:
            raise error

        functions = {**FUNCTIONS, "one": Function("one", fail, (ANY,)), "two": Function("two", fail, (ANY, ANY))}
        for text in ("{{one 1}}", "{{two 1 2}}", "{{1 | two 2}}"):
            with pytest.raises(TemplateExecutionError, match="error calling"):
                compile_text(text, functions).render({})


def test_long_chains_of_else_if_are_no_nesting() -> None:
    text = "{{if .nil}}0" + "".join(f"{{{{else if eq .s `{n}`}}}}{n}" for n in range(2000)) + "{{else}}none{{end}}"
    assert render(text, DATA) == "none"


def test_limits_are_the_callers() -> None:
    with pytest.raises(TemplateExecutionError, match="more than 50 steps"):
        render("{{range 100}}{{end}}", DATA, budget=RenderBudget(RenderLimits(steps=50)))
    with pytest.raises(TemplateExecutionError, match="larger than 10 bytes"):
        render("{{.s}}{{.s}}{{.s}}é", DATA, budget=RenderBudget(RenderLimits(output=10)))
    assert render("{{.s}}{{.s}}{{.s}}é"[:-1], DATA, budget=RenderBudget(RenderLimits(output=10))) == "abcabcabc"


def test_time_of_the_processor_is_bounded() -> None:
    seconds = iter(range(1000))
    budget = RenderBudget(RenderLimits(seconds=4), clock=lambda: float(next(seconds)))
    with pytest.raises(TemplateExecutionError, match=r"at <upper .big>: the template takes more than 4 s"):
        render("{{$x := upper .big}}" * 10, DATA, budget=budget)


def test_budget_is_shared_by_the_templates_that_are_given_it() -> None:
    budget = RenderBudget(RenderLimits(steps=300))
    render("{{range 100}}{{end}}", DATA, budget=budget)
    render("{{range 100}}{{end}}", DATA, budget=budget)
    with pytest.raises(TemplateExecutionError):
        render("{{range 150}}{{end}}", DATA, budget=budget)


WORDS = [*KEYWORDS, *FUNCTIONS, "$x :=", "$i, $x :=", "$x =", "{{if .s}}", "{{range .l}}", "{{range 3}}", "{{with .m}}"]
WORDS += ["{{define `a`}}", "{{template `a` .}}", "{{end}}", "{{else}}", "{{", "}}", "{{-", "-}}", "{{/*", "*/}}", "\n"]
WORDS += [".", ".s", ".l", ".m", ".nil", ".f", ".x", "$", "$x", "|", "(", ")", ",", "nil", "true", "0", "1", "-1"]
WORDS += ["2.5", "1e9", "'a'", '"a"', "`%v`", "`%5d|%q`", "`(`", "é", "'", "`"]

BOUNDED = settings(max_examples=150, derandomize=True)


def _assert_renders_or_refuses(text: str) -> None:
    try:
        assert isinstance(render(text, DATA), str)
    except TemplateError:
        return


@given(st.text())
@BOUNDED
def test_any_text_renders_or_is_refused(text: str) -> None:
    _assert_renders_or_refuses(text)
    _assert_renders_or_refuses("{{" + text + "}}")


@given(st.lists(st.sampled_from(WORDS), max_size=25), st.sampled_from(["{{%s}}", "%s", "{{if .s}}{{%s}}{{end}}"]))
@BOUNDED
def test_any_heap_of_template_words_renders_or_is_refused(words: list[str], frame: str) -> None:
    _assert_renders_or_refuses(frame.replace("%s", " ".join(words)))


FIELDS = [".s", ".big", ".l", ".m", ".nil", ".f", "(list .m .nil)"]
LITERALS = ["1", "-1", "1000000000", "2.5", "true", "nil", "`a`", '"\\xff"', "`(`", "`%d`"]


@given(st.sampled_from(sorted(FUNCTIONS)), st.lists(st.sampled_from(FIELDS + LITERALS), max_size=4), st.booleans())
@BOUNDED
def test_any_function_takes_or_refuses_any_arguments(name: str, arguments: list[str], piped: bool) -> None:
    call = " ".join([name, *arguments])
    _assert_renders_or_refuses(f"{{{{.s | {call}}}}}" if piped else f"{{{{{call}}}}}")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(st.characters(codec=None), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
VERBS = st.sampled_from("vdsqtxXobOcUeEfFgGTpwz")


@given(JSON, VERBS, st.sampled_from(["", "#", "+", "08", "-8.2", " ", "+#12.3", "#.0"]))
@BOUNDED
def test_any_value_can_be_printed_with_any_verb(value: object, verb: str, flags: str) -> None:
    text = (
        f"{{{{.v}}}}{{{{printf `%{flags}{verb}` .v}}}}{{{{html .v}}}}{{{{js .v}}}}{{{{urlquery .v}}}}{{{{quote .v}}}}"
    )
    _assert_renders_or_refuses(text.replace("{{.v}}", "{{print .v}}"))
    assert isinstance(render(text, {"v": value}), str)
