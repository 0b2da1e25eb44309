"""The actions of a v1alpha1 Template for one machine: the text rendered as a whole, read as YAML, in v1alpha2's fields.

Tinkerbell renders the text, and go-yaml reads the result into Go structs (tinkerbell/tinkerbell,
tink/controller/internal/workflow). So a text field takes a scalar as it is written (`MODE: 0600` is "0600"), unknown
fields are ignored, and a null in a list of texts is left out. Each field has the meaning that `tinkedge convert` gives
it (`tink.convert.v1alpha1.template`). One difference: a Workflow names its machine by hardwareRef, so `worker` of one
task has no meaning. Several tasks must have the same worker. Tinkerbell runs them one after the other, each on the
machine of its worker (tink/server/internal/grpc/grpc.go), so their actions here are those of one task.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import yaml

from tink import waitdaemon
from tink.api import bounds, rules
from tink.api.v1alpha2 import Raw, as_mapping
from tink.api.yaml import MAX_BYTES, MAX_RATIO, Document, Parser, YamlError, as_yaml_error, plain_scalar
from tink.convert import constraints
from tink.convert.fields import type_name
from tink.template import (
    MAX_RESULT_BYTES,
    NO_REFERENCES,
    RenderedTemplate,
    TemplateError,
    render_actions,
    render_v1alpha1,
)
from tink.versions import NEW, OLD, convert, text_of

ERROR: Final = "error rendering template: "
"""The beginning of the message of every error, as in Tinkerbell's condition TemplateRenderedSuccess."""
_REFERENCES: Final = re.compile(r"(?<![\w)\]])\.references\b")
"""An expression that reads the references of the Hardware, and not `.hardware.spec.references`."""
_DATA: Final = "spec.data"
_NULLS: Final = ("", "~", "null", "Null", "NULL")
_SCALARS: Final = ("!", *(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool")))
_TOO_LONG: Final = f"longer than {bounds.MAX_TEXT_CHARACTERS} characters"


def render_template(template: Raw, hardware: Raw, params: Mapping[str, str]) -> RenderedTemplate:
    """Render a stored Template for a stored Hardware and a Workflow's templateParams.

    A Template that was written in v1alpha1 is rendered as Tinkerbell does, from its text. Raises TemplateError.
    """
    text = text_of(template)
    if text is None:
        return RenderedTemplate(render_actions(template, hardware, params))
    return render(text, convert({**hardware, "apiVersion": NEW, "kind": "Hardware"}, OLD), params)


def render(text: str, hardware: Raw, hardware_map: Mapping[str, str]) -> RenderedTemplate:
    """Render the text of a v1alpha1 Template for a v1alpha1 Hardware and a Workflow's hardwareMap.

    Raises TemplateError, whose message is one sentence that begins with `ERROR`: the text is no template, the data do
    not fit, the output has more than 256 KiB, is no YAML, or is no task that one machine can run. Neither the rendered
    text nor the data are in the message, because they hold secrets.
    """
    try:
        found = _Reading().workflow(_as_written(render_v1alpha1(text, hardware, hardware_map)))
    except YamlError as error:
        message = f"line {error.line} of the rendered text: {error}" if error.line else f"the rendered text: {error}"
        raise TemplateError(f"{ERROR}{message}", name=_DATA, line=error.line) from None
    except TemplateError as error:
        message = " ".join(str(error).split())
        raise TemplateError(f"{ERROR}{message}", name=_DATA, line=error.line, column=error.column) from None
    if _reads_references(text):
        found = replace(found, ignored=(f".references: {NO_REFERENCES}", *found.ignored))
    return found


def _reads_references(text: str) -> bool:
    """Return True if an expression of a template reads the references of the Hardware."""
    if ".references" not in text:
        return False
    return any(_REFERENCES.search(part.partition("{{")[2]) for part in text.split("}}"))


def _as_written(text: str) -> Any:
    """Return the first YAML document of a text, with scalars as texts. An unquoted null is None. Raises YamlError."""
    try:
        parser = Parser(text)
        document = Document(max(MAX_BYTES, MAX_RATIO * len(text)))
        while not isinstance(event := parser.get_event(), yaml.DocumentEndEvent | yaml.StreamEndEvent):
            if isinstance(event, yaml.StreamStartEvent | yaml.DocumentStartEvent):
                continue
            if isinstance(event, yaml.ScalarEvent):
                is_plain = not event.style and event.tag is None
                if not (is_plain and (event.value in _NULLS or event.value == "<<")) and (
                    event.tag is None or event.tag in _SCALARS
                ):
                    event.tag, event.style = "!", event.style or '"'
            document.take(event)
        return document.value()
    except (yaml.YAMLError, ValueError) as error:
        raise as_yaml_error(error, text) from None


class _Reading:
    """Reads the fields of one rendered text."""

    def __init__(self) -> None:
        self._ignored: list[str] = []
        self._size = 0

    def workflow(self, body: Any) -> RenderedTemplate:
        tasks = [
            _mapping(task, f"tasks[{index}]")
            for index, task in enumerate(_typed(_mapping(body, "the text"), "tasks", list, "", []))
        ]
        self._check_workers(tasks)
        found: list[Raw] = []
        for number, task in enumerate(tasks):
            self._task(task, f"tasks[{number}]", found, last=number == len(tasks) - 1)
        return RenderedTemplate(found, _seconds(body, "global_timeout", ""), tuple(self._ignored))

    def _check_workers(self, tasks: list[Raw]) -> None:
        """Raise TemplateError unless there is one task, or several that one machine runs in their order."""
        if not tasks:
            raise _wrong("tasks", "there is none: a Template has a task with actions")
        workers = [_typed(task, "worker", str, f"tasks[{index}]", "") for index, task in enumerate(tasks)]
        for index, worker in enumerate(workers if len(tasks) > 1 else ()):
            if not worker:
                raise _wrong(f"tasks[{index}].worker", "it is empty, and each of several tasks needs the same one")
            if worker != workers[0]:
                raise _wrong(
                    f"tasks[{index}].worker",
                    "it is not the machine of tasks[0], and a Workflow runs on one machine: make a Template and a "
                    "Workflow for each",
                )

    def _task(self, task: Raw, at: str, found: list[Raw], *, last: bool) -> None:
        """Add the actions of a task to `found`."""
        env, volumes = _env(task, at), self._volumes(task, at)
        actions = _typed(task, "actions", list, at, [])
        if not actions or len(found) + len(actions) > bounds.MAX_ACTIONS:
            count = f"{len(found)} and {len(actions)}" if found else f"{len(actions)}"
            raise _wrong(f"{at}.actions", f"there are {count} of them: 1 to {bounds.MAX_ACTIONS} can be run")
        for index, action in enumerate(actions):
            path = f"{at}.actions[{index}]"
            made = self._action(_mapping(action, path), path, env, volumes, last=last and index == len(actions) - 1)
            if any(made["name"] == other["name"] for other in found):
                raise _wrong(f"{path}.name", "another action has this name, too")
            found.append(made)

    def _action(self, action: Raw, at: str, env: dict[str, str], volumes: dict[str, str], *, last: bool) -> Raw:
        name, image = _typed(action, "name", str, at, ""), _typed(action, "image", str, at, "")
        if not 1 <= len(name) <= bounds.MAX_NAME_CHARACTERS:
            raise _wrong(f"{at}.name", f"an action has a name of 1 to {bounds.MAX_NAME_CHARACTERS} characters")
        if not image or len(image) > bounds.MAX_IMAGE_CHARACTERS or constraints.image(image):
            raise _wrong(f"{at}.image", rules.IMAGE.message)
        result: Raw = {"name": name, "image": image}
        if command := _texts(action, "command", at):
            result["args"] = command
        if merged := {**env, **_env(action, at)}:
            result["env"] = merged
        own = self._volumes(action, at)
        if mounted := [volume for target, volume in volumes.items() if target not in own] + list(own.values()):
            result["volumes"] = mounted
        if "timeout" in action:
            result["timeout"] = _seconds(action, "timeout", at)
        restarts = last and waitdaemon.restarts(result)
        self._namespaces(action, at, result, restarts=restarts)
        if restarts:
            waitdaemon.unwrap(result)
            result["reboots"] = True
        for key in ("on-timeout", "on-failure"):
            if action.get(key):
                self._ignored.append(f"{at}.{key}: there are no reactions to failures")
        self._measure(result, at)
        return result

    def _namespaces(self, action: Raw, at: str, result: Raw, *, restarts: bool) -> None:
        namespaces = _mapping(action.get("namespaces") or {}, f"{at}.namespaces")
        if network := _typed(namespaces, "network", str, f"{at}.namespaces", ""):
            result["networkNamespace"] = network
        # The newer field wins (Tinkerbell's api/v1alpha1, ActionNamespaces).
        pid = _typed(namespaces, "pid", str, f"{at}.namespaces", "") or _typed(action, "pid", str, at, "")
        if pid == "host" and not restarts:  # an action that reboots gets it anyway
            result["pidNamespace"] = "host"
        elif pid and pid != "host":
            self._ignored.append(f"{at}.pid: {constraints.PID_NAMESPACE}")

    def _volumes(self, fields: Raw, at: str) -> dict[str, str]:
        """Return the volumes by their paths in the container. Later ones win."""
        found: dict[str, str] = {}
        for index, volume in enumerate(_texts(fields, "volumes", at)):
            if refusal := constraints.volume(volume):
                self._ignored.append(f"{at}.volumes[{index}]: {refusal}")
                continue
            found[posixpath.normpath(volume.split(":")[1])] = volume
        return found

    def _measure(self, action: Raw, at: str) -> None:
        """Raise TemplateError if the actions together are too large for a Workflow's status."""
        texts = [action["image"], *action.get("args", ()), *action.get("volumes", ())]
        for name, value in action.get("env", {}).items():
            texts += [name, value]
        self._size += sum(len(text.encode()) for text in texts)
        if self._size > MAX_RESULT_BYTES:
            raise _wrong(at, f"the rendered actions are larger than {MAX_RESULT_BYTES} bytes")


def _wrong(path: str, reason: str) -> TemplateError:
    return TemplateError(f"{path}: {reason}", name=_DATA)


def _mapping(value: Any, at: str) -> Raw:
    if not isinstance(value, dict):
        raise _wrong(at, f"must be an object, is {type_name(value)}")
    return value


def _typed(fields: Raw, key: str, kind: type, at: str, absent: Any) -> Any:
    """Return a field of a type; `absent` if it is null or does not exist."""
    value = fields.get(key)
    if value is None:
        return absent
    path = f"{at}.{key}" if at else key
    if not isinstance(value, kind):
        raise _wrong(path, f"must be {type_name(kind())}, is {type_name(value)}")
    return _checked(value, path) if isinstance(value, str) else value


def _texts(fields: Raw, key: str, at: str) -> list[str]:
    items = _typed(fields, key, list, at, [])
    if not all(isinstance(item, str | None) for item in items):
        raise _wrong(f"{at}.{key}", "must be a list of texts")
    return [_checked(item, f"{at}.{key}[{index}]") for index, item in enumerate(items) if item is not None]


def _env(fields: Raw, at: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in _typed(fields, "environment", dict, at, {}).items():
        if not isinstance(value, str | None):
            raise _wrong(f"{at}.environment", f"the value of a variable must be a text, is {type_name(value)}")
        if not name or "=" in name:
            raise _wrong(f"{at}.environment", rules.ENV_NAMES.message)
        found[_checked(name, f"{at}.environment")] = _checked(value or "", f"{at}.environment.{name[:80]}")
    return found


def _checked(text: str, path: str) -> str:
    """Return a text that a container can be given."""
    if len(text) > bounds.MAX_TEXT_CHARACTERS:
        raise _wrong(path, _TOO_LONG)
    if "\0" in text:
        raise _wrong(path, "must not hold a NUL character, which no container can be given")
    return text


def _seconds(fields: Raw, key: str, at: str) -> int:
    """Return a number of seconds; 0 if there is none. go-yaml cuts the fraction of a number off."""
    value = as_mapping(fields).get(key)
    path = f"{at}.{key}" if at else key
    try:
        number = plain_scalar(value) if isinstance(value, str) else value
    except ValueError:
        number = ""
    if number is None:
        return 0
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= bounds.MAX_TIMEOUT_SECONDS:
        raise _wrong(path, "must be a number of seconds")
    return int(number)
