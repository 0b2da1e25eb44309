"""A Template resource, rendered for one machine: the actions that a Workflow will run.

Every string field is rendered on its own, never as part of a YAML text: whatever a Hardware or a parameter holds
(quotes, colons, newlines, braces) ends up in that field, unchanged, and nowhere else. Where a template is wrong, the
error is named after the field: `spec.actions[1].env[DEST_DISK]`.

The Template's own env and volumes are rendered once and merged into every action; the action's win, environment
variables by name and volumes by the path in the container (CRD refactor proposal, TemplateSpec).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tink.api.v1alpha2 import Raw
from tink.golang.strconv import byte_length
from tink.golang.values import Value
from tink.template import engine
from tink.template.context import build_context, expected
from tink.template.errors import TemplateError, TemplateSyntaxError
from tink.template.execution import Budget

LARGEST_RESULT: Final = 1 << 20
"""Bytes of all rendered actions together; they have to fit into the status of a Workflow, which Kubernetes bounds."""


def render_actions(template: Raw, hardware: Raw, params: Mapping[str, str]) -> list[dict[str, Any]]:
    """The actions of a Template for a Hardware and a Workflow's templateParams, as dicts with the API's JSON names.

    `name`, `timeout` and `reboots` pass through; keys and values of env are both templates. Raises TemplateError (its
    `name` is the path of the field) for templates that fail, for fields of the wrong type, when two keys or two volumes
    of one map or list become the same, when an image, a volume or a variable's name becomes empty, when a field holds
    what no container can be given, and when the result is too large.
    """
    return _Rendering(build_context(hardware, params)).actions(_spec(template))


def parse_fields(template: Raw) -> list[TemplateSyntaxError]:
    """The syntax errors in a Template, one for each wrong field; nothing is rendered. For admission."""
    errors = []
    for path, text in _texts(_spec(template)):
        try:
            engine.check(text, path)
        except TemplateSyntaxError as error:
            errors.append(error)
    return errors


def _spec(template: Raw) -> dict[str, Any]:
    spec: dict[str, Any] = expected(dict, template.get("spec"), "spec")
    return spec


def _texts(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every field that is a template, with its path; what is not a string is left to the schema."""
    owners = [(spec, "spec")]
    actions = spec.get("actions")
    if isinstance(actions, list):
        owners += [
            (action, f"spec.actions[{index}]") for index, action in enumerate(actions) if isinstance(action, dict)
        ]
    for owner, path in owners:
        found: list[tuple[str, Any]] = []
        if path != "spec":
            found += [(f"{path}.{key}", owner.get(key)) for key in ("image", "cmd", "networkNamespace", "pidNamespace")]
        for key in ("args", "volumes"):
            items = owner.get(key)
            if isinstance(items, list):
                found += [(f"{path}.{key}[{index}]", item) for index, item in enumerate(items)]
        env = owner.get("env")
        if isinstance(env, dict):
            for name, value in env.items():
                found += [(f"{path}.env[{name}]", name), (f"{path}.env[{name}]", value)]
        yield from ((place, text) for place, text in found if isinstance(text, str))


class _Rendering:
    """The fields of one Template with one set of values, sharing one budget."""

    def __init__(self, context: dict[str, Value]) -> None:
        self._context = context
        self._budget = Budget()
        self._size = 0

    def actions(self, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
        env = self._env(spec.get("env"), "spec.env")
        volumes = self._volumes(spec.get("volumes"), "spec.volumes")
        return [
            self._action(expected(dict, action, f"spec.actions[{index}]"), f"spec.actions[{index}]", env, volumes)
            for index, action in enumerate(expected(list, spec.get("actions"), "spec.actions"))
        ]

    def _action(
        self, action: Mapping[str, Any], path: str, env: Mapping[str, str], volumes: Mapping[str, str]
    ) -> dict[str, Any]:
        rendered: dict[str, Any] = {"name": expected(str, action.get("name"), f"{path}.name")}
        rendered["image"] = self._required(action.get("image"), f"{path}.image", "an image")
        if action.get("cmd") is not None:
            rendered["cmd"] = self._text(action["cmd"], f"{path}.cmd")
        if action.get("args") is not None:
            args = expected(list, action["args"], f"{path}.args")
            rendered["args"] = [self._text(arg, f"{path}.args[{index}]") for index, arg in enumerate(args)]
        merged_env = {**env, **self._env(action.get("env"), f"{path}.env")}
        if merged_env:
            rendered["env"] = merged_env
        own = self._volumes(action.get("volumes"), f"{path}.volumes")
        merged_volumes = [volume for target, volume in volumes.items() if target not in own] + list(own.values())
        if merged_volumes:
            rendered["volumes"] = merged_volumes
        for key in ("networkNamespace", "pidNamespace"):
            if action.get(key) is not None:
                rendered[key] = self._text(action[key], f"{path}.{key}")
        if action.get("timeout") is not None:
            rendered["timeout"] = expected(int, action["timeout"], f"{path}.timeout")
        if action.get("reboots") is not None:
            rendered["reboots"] = expected(bool, action["reboots"], f"{path}.reboots")
        self._weigh(rendered, path)
        return rendered

    def _weigh(self, action: Mapping[str, Any], path: str) -> None:
        for value in action.values():
            if isinstance(value, dict):
                self._size += sum(byte_length(name) + byte_length(text) for name, text in value.items())
            elif isinstance(value, list):
                self._size += sum(map(byte_length, value))
            elif isinstance(value, str):
                self._size += byte_length(value)
        if self._size > LARGEST_RESULT:
            raise TemplateError(f"{path}: the rendered actions are larger than {LARGEST_RESULT} bytes", name=path)

    def _env(self, raw: Any, path: str) -> dict[str, str]:
        rendered: dict[str, str] = {}
        for name, value in expected(dict, {} if raw is None else raw, path).items():
            place = f"{path}[{name}]"
            key = self._required(name, place, "the name of a variable")
            if "=" in key:
                raise TemplateError(f"{place}: the name of a variable must not hold '=', got {key!r}", name=place)
            if key in rendered:
                raise TemplateError(f"{place}: another variable renders to the same name, {key!r}", name=place)
            rendered[key] = self._text(value, place)
        return rendered

    def _volumes(self, raw: Any, path: str) -> dict[str, str]:
        """Rendered volumes by their paths in the container."""
        rendered: dict[str, str] = {}
        for index, item in enumerate(expected(list, [] if raw is None else raw, path)):
            place = f"{path}[{index}]"
            volume = self._required(item, place, "a volume")
            target = _container_path(volume)
            if target in rendered:
                raise TemplateError(f"{place}: {rendered[target]!r} is mounted on {target}, too", name=place)
            rendered[target] = volume
        return rendered

    def _required(self, raw: Any, path: str, what: str) -> str:
        text = self._text(raw, path)
        if not text.strip():
            raise TemplateError(f"{path}: renders to nothing, but must be {what}", name=path)
        return text

    def _text(self, raw: Any, path: str) -> str:
        text = engine.render(expected(str, raw, path), self._context, path, self._budget)
        if "\0" in text:
            raise TemplateError(f"{path}: renders to text with a NUL byte, which no container can be given", name=path)
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            raise TemplateError(f"{path}: renders to bytes that are no UTF-8", name=path)
        return text


def _container_path(volume: str) -> str:
    """`SOURCE:TARGET[:OPTIONS]`, or just `TARGET` for an anonymous volume."""
    parts = volume.split(":")
    return posixpath.normpath(parts[1] if len(parts) > 1 else parts[0])
