"""Rewrite Go template expressions of v1alpha1 for v1alpha2 where the data has moved; leave the others unchanged.

v1alpha1 gave a template (tinkerbell/tinkerbell, tink/controller/internal/workflow/reconciler.go): the keys of the
Workflow's hardwareMap at the top; `.Hardware` with Disks, Interfaces, UserData, VendorData and Metadata, a selection of
its own under Go names; `.hardware`, the whole Hardware under JSON names; `.references`, other objects.
`tink.template.fields` has the data of v1alpha2. A `Shape` is a part of the old data that has another form today. Data
without a Shape is the same in both versions.

The text of a field is parsed with the parser of `tink.template`. A walk over the tree keeps the Shape of dot and of
each variable. Each change is an edit of the text at the positions of its tokens, so all other text stays as it was
written. An expression that depends on no other one is rewritten by itself, once for all texts that have it.

`contains`, `hasPrefix` and `hasSuffix` change the order of their operands. The controllers in use took them from Sprig,
where the part comes first. In v1alpha2 the text comes first, as in Go's strings package and in Tink before Sprig.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tink.api.annotations import INSTANCE_ID_ANNOTATION
from tink.template import TemplateSyntaxError, nodes
from tink.template.functions import FUNCTIONS
from tink.template.lexer import TokenKind, lex
from tink.template.parser import FIRST_SLOT, MAX_TOKENS, parse

FIRST_MAC = "(keys {root}.Hardware.NetworkInterfaces | sortAlpha | first)"
"""The key of the "first" interface: the lowest MAC address. `{root}` becomes "$" where dot is not the root."""


@dataclass(frozen=True, slots=True)
class Rename:
    """The change of one field name on a path through the data."""

    name: str = ""
    """The new name, perhaps with dots; empty if the name is removed."""
    to: Shape | None = None
    instead: str = ""
    """An expression that replaces the whole path up to this name."""
    notice: str = ""
    """A notice for the user."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A part of the old data that has another form in v1alpha2."""

    steps: Mapping[str, Rename] = field(default_factory=dict)
    gone: str = ""
    """The reason why names that are not in `steps` have no place; empty if they are unchanged."""
    whole: str = ""
    """The reason why only its fields can be used; empty if it can be used as a whole."""
    element: Shape | None = None
    """The Shape of an element in a `range` over it."""
    indexed: Shape | None = None
    """The Shape that `index` with 0 returns, if it was a list and is a map today."""


_NO_PLACE = "v1alpha2's Hardware has no place for it: give it as one of the Workflow's templateParams, as .Params.NAME"
_WHOLE = "it has another form in v1alpha2: name the fields that you need"
LOWEST = (
    "v1alpha2 knows interfaces by their MAC addresses: instead of the first one, it is that with the lowest address"
)
_NO_METADATA = f"it was metadata of the instance, and {_NO_PLACE}"

_HOSTNAME = Rename(
    instead=f"(index {{root}}.Hardware.NetworkInterfaces {FIRST_MAC}).DHCP.Hostname",
    notice=f"the metadata's hostname is the DHCP's of an interface; {LOWEST}",
)
_ID = Rename(instead=f'(index {{root}}.hardware.metadata.annotations "{INSTANCE_ID_ANNOTATION}")')
_MAC = Rename(instead=FIRST_MAC, notice=LOWEST)

_INSTANCE = Shape({"ID": _ID, "Hostname": _HOSTNAME, "id": _ID, "hostname": _HOSTNAME}, _NO_METADATA, _WHOLE)
_METADATA = Shape({"Instance": Rename(to=_INSTANCE), "instance": Rename(to=_INSTANCE)}, _NO_METADATA, _WHOLE)


_ADDRESS = (
    ("Address", "IP", "address", "ip"),
    ("Netmask", "Netmask", "netmask", "netmask"),
    ("Gateway", "Gateway", "gateway", "gateway"),
)
_DHCP = (
    ("Hostname", "Hostname", "hostname", "hostname"),
    ("LeaseTime", "LeaseTimeSeconds", "lease_time", "leaseTimeSeconds"),
    ("NameServers", "Nameservers", "name_servers", "nameservers"),
    ("TimeServers", "Timeservers", "time_servers", "timeservers"),
    ("VLANID", "VLANID", "vlan_id", "vlanId"),
)
"""The old and the new name in Go, and both names in JSON."""


def _interface(*, first: bool, go: bool) -> Shape:
    """Return the Shape of the first interface, or of an element of a range, which does not know its MAC address."""
    at = 0 if go else 2
    address, dhcp = ({row[at]: Rename(row[at + 1]) for row in table} for table in (_ADDRESS, _DHCP))
    dhcp["IP" if go else "ip"] = Rename(to=Shape(address, _NO_PLACE, _WHOLE))
    if first:
        dhcp["MAC" if go else "mac"] = _MAC
    own, disabled = ("DHCP", "DisableDHCP") if go else ("dhcp", "disableDHCP")
    steps = {own: Rename(own, Shape(dhcp, _NO_PLACE, _WHOLE)), disabled: Rename("DisableDHCP" if go else "disableDhcp")}
    return Shape(steps, _NO_PLACE, _WHOLE)


def _interfaces(*, go: bool) -> Shape:
    return Shape(
        whole="it was a list, and is a map by MAC address in v1alpha2",
        element=_interface(first=False, go=go),
        indexed=_interface(first=True, go=go),
    )


_DISK = Shape({"device": Rename()}, _NO_PLACE)
_DISKS = Shape(element=_DISK)

_LEGACY = Shape(
    {
        "Interfaces": Rename("NetworkInterfaces", _interfaces(go=True)),
        "UserData": Rename("Instance.Userdata"),
        "VendorData": Rename("Instance.Vendordata"),
        "Metadata": Rename(to=_METADATA),
    },
    whole=_WHOLE,
)
_SPEC_STEPS = {
    "disks": Rename("storageDevices", _DISKS),
    "interfaces": Rename("networkInterfaces", _interfaces(go=False)),
    "userData": Rename("instance.userdata"),
    "vendorData": Rename("instance.vendordata"),
}
_SPEC = Shape({**_SPEC_STEPS, "bmcRef": Rename("bmcRef"), "metadata": Rename(to=_METADATA)}, _NO_PLACE, _WHOLE)
# In proposal 0028, .hardware seems to be the spec. The implementation has the whole object there.
_OBJECT = Shape(
    {
        **_SPEC_STEPS,
        "metadata": Rename("metadata", Shape({"instance": Rename(to=_INSTANCE)})),
        "spec": Rename("spec", _SPEC),
    },
    whole=_WHOLE,
)

ROOT = Shape({"Hardware": Rename("Hardware", _LEGACY), "hardware": Rename("hardware", _OBJECT)}, whole=_WHOLE)
"""All data. Names that are not listed here are keys of the hardwareMap."""
GONE_ROOTS = {"references": "v1alpha2's templates see no other object than the Hardware"}
PARAMS = "Params"


_PART_FIRST = ("contains", "hasPrefix", "hasSuffix")
_RENAMED = {"netmaskToCIDR": "netmaskToPrefixLength"}
"""Names of EKS Anywhere -> names of v1alpha2."""
_TRUTH = ("and", "or", "not", "len", "empty")
_SWAPPED = (
    "{name}: v1alpha1's Sprig took the part before the text, v1alpha2 takes the text first: the two were exchanged. If "
    "this template was written for a Tink without Sprig (contains TEXT PART), exchange them again"
)
_MAX_EXCERPT_CHARACTERS = 120


@dataclass(slots=True)
class Rewritten:
    """The result of `rewrite`."""

    text: str
    notices: list[str] = field(default_factory=list)
    """Expressions whose meaning has changed, or may have changed."""
    errors: list[str] = field(default_factory=list)
    """Expressions that could not be rewritten. If there are any, `text` is useless."""


def rewrite(text: str) -> Rewritten:
    """Rewrite a field's text of a v1alpha1 Template for v1alpha2. Raises nothing: `errors` says what is wrong."""
    if "{{" not in text:
        return Rewritten(text)
    found = _rewritten_one_by_one(text) if len(text) <= MAX_TOKENS else None
    if found is None:
        found = _known_text(text) if len(text) <= MAX_KNOWN_TEXT_CHARACTERS else _rewritten(text)
    return replace(found, notices=[*found.notices], errors=[*found.errors])


EXPRESSION = re.compile(r"""\{\{(?:[^{}"'`/]|"[^"\\\n{}]*")*\}\}""")
"""An expression that ends at its first `}}`: without comments, and without quotes that could hide its end."""
MAX_KNOWN_EXPRESSIONS = 2048
MAX_KNOWN_CHARACTERS = 200
"""Maximum number of expressions that are kept rewritten, and their maximum length."""
MAX_KNOWN_TEXTS = 256
MAX_KNOWN_TEXT_CHARACTERS = 4096
"""Maximum number of texts that are kept rewritten, and their maximum length: scripts that many Templates have."""


def _rewritten_one_by_one(text: str) -> Rewritten | None:
    """Rewrite each expression by itself; None if one of them depends on others, or has an error."""
    parts: list[str] = []
    notices: dict[str, None] = {}
    at = 0
    while (start := text.find("{{", at)) >= 0:
        match = EXPRESSION.match(text, start)
        found = _known_expression(match[0]) if match is not None and len(match[0]) <= MAX_KNOWN_CHARACTERS else None
        if match is None or found is None:
            return None
        parts += [text[at:start], found.text]
        notices.update(dict.fromkeys(found.notices))
        at = match.end()
    return Rewritten("".join([*parts, text[at:]]), [*notices])


@lru_cache(MAX_KNOWN_EXPRESSIONS)
def _known_expression(expression: str) -> Rewritten | None:
    """Rewrite an expression by itself; None if it has an error, as a part of control flow or an outer variable has."""
    found = _rewritten(expression)
    return None if found.errors else found


@lru_cache(MAX_KNOWN_TEXTS)
def _known_text(text: str) -> Rewritten:
    return _rewritten(text)


def _rewritten(text: str) -> Rewritten:
    try:
        trees = parse(text, _AnyName(), "the expression")
    except TemplateSyntaxError as error:
        return Rewritten(text, errors=[str(error).removeprefix("template: ")])
    return _Rewriting(text, trees).result()


class _AnyName:
    """A set of functions with every name. The rewriting checks the names that the text calls."""

    def __contains__(self, name: object) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: Callable[[], str]


class _Rewriting:
    def __init__(self, text: str, trees: dict[str | None, nodes.Tree]) -> None:
        self._text = text
        self._trees = trees
        self._tokens = lex(text)
        self._at = {token.position: index for index, token in enumerate(self._tokens)}
        self._edits: list[_Edit] = []
        self._starts: list[int] = []
        self._result = Rewritten(text)
        self._variables: dict[int, Shape | None] = {FIRST_SLOT: ROOT}
        self._invoked: dict[str, Shape | None] = {}

    def result(self) -> Rewritten:
        self._list(self._trees[None].body, ROOT)
        for name in self._trees:
            if name is not None and name not in self._invoked:
                self._list(self._trees[name].body, None)
        if not self._result.errors:
            self._edits.sort(key=lambda edit: (edit.start, -edit.end))
            self._starts = [edit.start for edit in self._edits]
            self._result.text = self._edited(0, len(self._text))
        return self._result

    def _error(self, start: int, end: int, message: str) -> None:
        excerpt = self._text[start:end]
        if len(excerpt) > _MAX_EXCERPT_CHARACTERS:
            excerpt = excerpt[:_MAX_EXCERPT_CHARACTERS] + "…"
        message = f"{excerpt}: {message}"
        if message not in self._result.errors:
            self._result.errors.append(message)

    def _notice(self, message: str) -> None:
        if message not in self._result.notices:
            self._result.notices.append(message)

    # --- edits

    def _replace(self, start: int, end: int, text: str) -> None:
        if self._text[start:end] != text:
            self._edits.append(_Edit(start, end, lambda: text))

    def _edited(self, start: int, end: int) -> str:
        """Return a part of the text with its edits. An edit inside a larger edit is applied by the larger one."""
        parts: list[str] = []
        at = start
        for index in range(bisect_left(self._starts, start), bisect_left(self._starts, end)):
            edit = self._edits[index]
            if edit.start >= at and edit.end <= end:
                parts += [self._text[at : edit.start], edit.text()]
                at = edit.end
        return "".join([*parts, self._text[at:end]])

    # --- statements

    def _list(self, body: list[nodes.Statement], dot: Shape | None) -> None:
        for node in body:
            match node:
                case nodes.ActionNode():
                    shape = self._pipe(node.pipe, dot)
                    if not node.pipe.variables:
                        self._check_whole(node.pipe, shape)
                case nodes.BranchNode():
                    for is_with, pipe, inner in node.arms:
                        shape = self._pipe(pipe, dot)
                        if not is_with:
                            self._check_whole(pipe, shape, truth=True)
                        self._list(inner, shape if is_with else dot)
                    self._list(node.otherwise or [], dot)
                case nodes.RangeNode():
                    self._list(node.body, self._range(node, dot))
                    self._list(node.otherwise or [], dot)
                case nodes.InvokeNode():
                    self._invoke(node, dot)
                case _:
                    pass

    def _range(self, node: nodes.RangeNode, dot: Shape | None) -> Shape | None:
        """Visit the pipeline of a `range` and return the Shape of dot in its body."""
        shape = self._pipe(node.pipe, dot)
        element = shape.element if shape is not None else None
        variables = [variable.slot for variable in node.pipe.variables if variable.slot is not None]
        for slot in variables:
            self._variables[slot] = None
        if variables:
            self._variables[variables[-1]] = element
        if shape is not None and shape.indexed is not None:
            self._notice("the interfaces come in the order of their MAC addresses in v1alpha2")
            if len(variables) > 1:
                self._whole_error(node.pipe, "v1alpha2's interfaces have no numbers, but MAC addresses")
        elif shape is not None and shape.whole:
            self._whole_error(node.pipe, shape.whole)
        return element

    def _invoke(self, node: nodes.InvokeNode, dot: Shape | None) -> None:
        shape = self._pipe(node.pipe, dot) if node.pipe is not None else None
        tree = self._trees.get(node.name)
        if tree is None:
            return
        if node.name in self._invoked:
            if self._invoked[node.name] is not shape:
                self._error(node.position, node.position, f'template "{node.name}" is used with different data')
            return
        self._invoked[node.name] = shape
        outside = self._variables
        self._variables = {FIRST_SLOT: shape}
        self._list(tree.body, shape)
        self._variables = outside

    # --- pipelines

    def _pipe(self, pipe: nodes.PipeNode, dot: Shape | None) -> Shape | None:
        shape: Shape | None = None
        for index, command in enumerate(pipe.commands):
            shape = self._command(command, dot, shape, pipe.commands[0] if index else None)
        for variable in pipe.variables:
            if variable.slot is not None:
                self._variables[variable.slot] = shape
        return shape

    def _command(
        self, command: nodes.CommandNode, dot: Shape | None, piped: Shape | None, first: nodes.CommandNode | None
    ) -> Shape | None:
        """Visit one command. `first` is the first command of the pipeline; None if this one is the first."""
        function = command.operands[0]
        if not isinstance(function, nodes.IdentifierNode):
            return self._operand(function, dot)
        arguments = command.operands[1:]
        shapes = [self._operand(argument, dot) for argument in arguments]
        self._function(function)
        if function.name in _PART_FIRST:
            self._swap(function, first)
        if function.name == "index":
            return self._index(arguments, shapes, dot)
        for argument, shape in zip(arguments, shapes, strict=True):
            self._check_whole(argument, shape, truth=function.name in _TRUTH)
        if first is not None:
            self._check_whole(first, piped, truth=function.name in _TRUTH)
        return None

    def _function(self, node: nodes.IdentifierNode) -> None:
        end = node.position + len(node.name)
        name = _RENAMED.get(node.name, node.name)
        if name not in FUNCTIONS:
            self._error(node.position, end, "v1alpha2 has no such function")
        self._replace(node.position, end, name)

    def _index(self, arguments: list[nodes.Operand], shapes: list[Shape | None], dot: Shape | None) -> Shape | None:
        if not arguments or shapes[0] is None:
            return None
        base, shape = arguments[0], shapes[0]
        key = arguments[1] if len(arguments) > 1 else None
        if shape is ROOT:
            # Templates use `index . "device-1"` for keys that are no identifiers.
            if isinstance(key, nodes.StringNode) and key.text not in ROOT.steps and key.text not in GONE_ROOTS:
                end = base.position + len(str(base))
                self._replace(end, end, f".{PARAMS}" if str(base) != "." else PARAMS)
            else:
                self._check_whole(base, ROOT)
            return None
        if shape.indexed is None:
            self._check_whole(base, shape)
            return shape.element
        if not isinstance(key, nodes.NumberNode) or key.integer != 0:
            self._whole_error(base, "v1alpha2 has the interfaces by MAC address: only index 0 can be carried over")
        else:
            self._notice(LOWEST)
            self._replace(key.position, key.position + len(key.text), self._rooted(FIRST_MAC, dot))
        return shape.indexed

    # --- operands

    def _operand(self, node: nodes.Operand, dot: Shape | None) -> Shape | None:
        match node:
            case nodes.DotNode():
                return dot
            case nodes.FieldNode():
                start = self._at[node.position] - (1 if len(node.names) > 1 else 0)
                return self._path(node.names, dot, start, start, dot)
            case nodes.VariableNode():
                shape = self._variables.get(node.slot) if node.slot is not None else None
                start = self._at[node.position]
                return self._path(node.names, shape, start, start - 1, dot) if node.names else shape
            case nodes.ChainNode():
                shape = self._operand(node.base, dot)
                start = self._at[node.position]
                return self._path(node.names, shape, start, self._opening(start - 1), dot)
            case nodes.PipeNode():
                return self._pipe(node, dot)
            case nodes.IdentifierNode():
                self._function(node)
                return None
            case _:
                return None

    def _opening(self, closing: int) -> int:
        """Return the index of the token that begins an operand ending with a parenthesis or a function name."""
        depth = 0
        for index in range(closing, -1, -1):
            kind = self._tokens[index].kind
            depth += (kind is TokenKind.RIGHT_PAREN) - (kind is TokenKind.LEFT_PAREN)
            if not depth:
                return index
        return closing

    def _path(self, names: list[str], shape: Shape | None, first: int, base: int, dot: Shape | None) -> Shape | None:
        """Follow names from a Shape, rewrite them, and return the Shape that they lead to.

        The tokens of the names begin at index `first`, those of the whole operand at index `base`.
        """
        tokens = self._tokens[first : first + len(names)]
        start, end = tokens[0].position, tokens[-1].position + len(tokens[-1].text)
        now: list[str] = []
        for index, name in enumerate(names):
            if shape is None:
                now += names[index:]
                break
            if shape is ROOT and name not in ROOT.steps:
                if name in GONE_ROOTS:
                    self._error(start, end, GONE_ROOTS[name])
                now += [PARAMS, *names[index:]]
                shape = None
                break
            step = shape.steps.get(name)
            if step is None:
                if shape.gone:
                    self._error(self._tokens[base].position, end, shape.gone)
                now += names[index:]
                shape = None
                break
            if step.notice:
                self._notice(step.notice)
            if step.instead:
                rest = "".join(f".{each}" for each in names[index + 1 :])
                self._replace(self._tokens[base].position, end, self._rooted(step.instead, dot) + rest)
                return None
            now += step.name.split(".") if step.name else []
            shape = step.to
        written = "".join(f".{name}" for name in now)
        self._replace(start, end, written or ("." if base == first else ""))
        return shape

    def _rooted(self, expression: str, dot: Shape | None) -> str:
        return expression.replace("{root}", "" if dot is ROOT else "$")

    def _check_whole(self, node: nodes.ParseNode, shape: Shape | None, *, truth: bool = False) -> None:
        """Report a value used as a whole of which only the fields keep their meaning. `truth`: an emptiness test."""
        if shape is not None and shape.whole and not (truth and shape.indexed is not None):
            self._whole_error(node, shape.whole)

    def _whole_error(self, node: nodes.ParseNode, reason: str) -> None:
        self._result.errors.append(f"{node}: {reason}")

    # --- contains, hasPrefix, hasSuffix

    def _swap(self, function: nodes.IdentifierNode, first: nodes.CommandNode | None) -> None:
        self._notice(_SWAPPED.format(name=function.name))
        index = self._at[function.position]
        spans = self._spans(index + 1)
        if first is None and len(spans) == 2:
            (start, middle), (after, end) = spans
            between = self._text[middle:after]
            self._edits.append(
                _Edit(start, end, lambda: self._edited(after, end) + between + self._edited(start, middle))
            )
        elif first is not None and len(spans) == 1:
            # TEXT | contains PART -> contains (TEXT) PART
            begin = first.position
            pipe = next(at for at in range(index, -1, -1) if self._tokens[at].kind is TokenKind.PIPE)
            stop = self._tokens[pipe].position
            after = function.position + len(function.name)
            self._edits.append(_Edit(begin, after, lambda: f"{function.name} ({self._edited(begin, stop).rstrip()})"))
        else:
            self._error(function.position, function.position + len(function.name), "takes a part and a text")

    def _spans(self, index: int) -> list[tuple[int, int]]:
        """Return start and end of each operand that follows a function's name."""
        spans: list[tuple[int, int]] = []
        depth = 0
        fresh = True
        for token in self._tokens[index:]:
            if not depth and token.kind in (TokenKind.PIPE, TokenKind.RIGHT_DELIM, TokenKind.RIGHT_PAREN):
                break
            depth += (token.kind is TokenKind.LEFT_PAREN) - (token.kind is TokenKind.RIGHT_PAREN)
            if token.kind is TokenKind.SPACE and not depth:
                fresh = True
                continue
            end = token.position + len(token.text)
            spans = [*spans, (token.position, end)] if fresh else [*spans[:-1], (spans[-1][0], end)]
            fresh = False
        return spans
