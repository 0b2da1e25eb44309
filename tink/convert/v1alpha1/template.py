"""Convert Templates of v1alpha1, a text of YAML with expressions, to v1alpha2's typed actions.

`template_text` reads the text, `expressions` rewrites the expressions in its fields, and this module gives the fields
their new places. The meaning of the old fields is what the Tink controller, server and workers did with them
(tinkerbell/tinkerbell, tink/):

- A task is the Template now. Its volumes and environment become the Template's own. Those of an action still win.
- `command` followed the image's entrypoint, as `args` do. v1alpha2's `cmd` would replace the entrypoint.
- `worker` named the machine. The Workflow's hardwareRef does that now.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from tink import waitdaemon
from tink.api import bounds, rules
from tink.api.v1alpha2 import API_VERSION, Raw, as_mapping
from tink.api.yaml import plain_scalar
from tink.convert import constraints
from tink.convert.documents import END
from tink.convert.fields import Fields, carried, says_nothing, type_name
from tink.convert.findings import Findings
from tink.convert.v1alpha1.expressions import rewrite
from tink.convert.v1alpha1.template_text import Content, read, read_written
from tink.exec_limits import MAX_STRING_BYTES, unstartable_template
from tink.template import TemplateError
from tink.template.compile import render

DATA = "spec.data"
_FORMAT_VERSION = "0.1"
_PARAM = re.compile(r"\{\{-?\s*\.(?:Params\.)?\w+\s*-?\}\}\Z", re.ASCII)
_NEW_NAMES = {"environment": ".env", "command": ".args"}
_SHARED_NAME = re.compile(r"^(spec(?:\.actions\[[0-9]+\])?)\.(environment|command)(?=[.\[]|\Z)")
_NAMESPACES = re.compile(r"(?<=\])\.namespaces(?:\.network)?\Z")
_PID = re.compile(r"(?<=\])\.(?:namespaces\.)?pid\Z")
_MAX_LINES_SHOWN = 20
_SURELY_STARTABLE = MAX_STRING_BYTES // 4
"""Characters of a text, of at most 4 bytes each, that Linux accepts if none is NUL."""
_HUB = (
    "{image} names no registry, so it is Docker Hub's; tink-worker put its own (docker_registry=) before each image: "
    "--image-registry HOST does the same"
)
_ROOTIO = (
    "it makes the partitions and filesystems of the Hardware's annotation tinkerbell.org/storage, and fails without: "
    "convert makes it of v1alpha1's metadata.instance.storage. It asks port 50061 of MIRROR_HOST (--legacy-ports "
    "50061), or METADATA_SERVICE_PORT"
)
_REACTION = "v1alpha2 has no reactions to failures: let the action itself clean up"


def convert_template(obj: Raw, findings: Findings, registry: str = "") -> list[Raw]:
    """Return the Template; nothing if there is an error. `registry` is put before images that name none."""
    return _Conversion(obj, findings, registry).result()


def actions_of(text: str, name: str, findings: Findings, body: Raw | None = None) -> Raw | None:
    """Return the spec that `convert_template` makes of a text, whose comments are ignored; None if there is an error.

    `name` is that of the Template. `body` is the value that PyYAML has written the text of, if that is known. Then the
    text is read only if its value is not certain, or to name the line of an error.
    """
    obj = {"metadata": {"name": name}, "spec": {"data": text}}
    content = read_written(body) if body is not None else None
    if content is not None:
        made = _Conversion(obj, Findings(findings.source), "", content).result()
        if made:
            return as_mapping(made[0]["spec"])
    made = _Conversion(obj, findings, "", read(text, with_comments=False)).result()
    return as_mapping(made[0]["spec"]) if made else None


def global_timeout(obj: Raw) -> int | None:
    """Return the seconds that a v1alpha1 Template allows a Workflow; None if it has no readable limit."""
    data = as_mapping(obj.get("spec")).get("data")
    found = read(data).value if isinstance(data, str) else None
    return _seconds(as_mapping(found).get("global_timeout")) or None


class _Conversion:
    """The conversion of one Template."""

    def __init__(self, obj: Raw, findings: Findings, registry: str, content: Content | None = None) -> None:
        """Convert an object. `content` is that of its text, if the text was read before."""
        self._top = Fields(obj, findings)
        self._findings = findings
        self._registry = registry.rstrip("/")
        self._read = content
        self._content = Content(None)
        self._places: dict[str, str] = {}
        """Path in the text -> path in the result, for fields that `_place` does not know."""

    def result(self) -> list[Raw]:
        top = self._top
        top.ignore("apiVersion", "kind")
        metadata = carried(top, self._findings)
        spec = top.fields("spec")
        data = spec.take("data")
        spec.rest()
        if not says_nothing(top.take("status")):
            self._findings.changed("status", "it is written by services, not by users: v1alpha2's have their own")
        top.rest()
        result = self._text(data, metadata)
        if self._findings.failed:
            return []
        self._findings.moved(DATA, "spec")
        return [{"apiVersion": API_VERSION, "kind": "Template", "metadata": metadata, "spec": result}]

    def _text(self, data: Any, metadata: Raw) -> Raw:
        if not isinstance(data, str) or not data.strip():
            what = "empty" if says_nothing(data) or isinstance(data, str) else type_name(data)
            self._findings.error(DATA, f"must be a text with the Template's tasks, is {what}")
            return {}
        self._content = self._read if self._read is not None else read(data)
        for problem in self._content.problems:
            self._findings.error(DATA, str(problem))
        if not self._content.problems and not isinstance(self._content.value, dict):
            self._findings.error(DATA, f"must have a list of tasks, is {type_name(self._content.value)}")
        if self._findings.failed:
            return {}
        result = self._workflow(Fields(self._content.value, self._findings, DATA), metadata)
        self._comments()
        return result

    def _comments(self) -> None:
        """Move comments of the text to their fields in the result, if the result is written as YAML."""
        comments = self._content.comments
        if not comments:
            return
        for each in comments:
            paths = tuple(self._places.get(path) or _place(path) for path in each.paths) or ("spec",)
            self._findings.comments.append(replace(each, paths=paths))
        lines = ", ".join(str(each.line) for each in comments[:_MAX_LINES_SHOWN]) + (
            " ..." if comments[_MAX_LINES_SHOWN:] else ""
        )
        count = "1 comment (line" if len(comments) == 1 else f"{len(comments)} comments (lines"
        self._findings.changed(
            DATA,
            f"{count} {lines} of the text): in YAML they stand at their fields now; JSON and an API server have "
            "no place for them",
        )

    # --- the text's own levels

    def _workflow(self, body: Fields, metadata: Raw) -> Raw:
        if body.peek("version") == _FORMAT_VERSION:
            body.ignore("version")
        if (name := body.take("name")) not in (None, metadata["name"]):
            body.changed("name", f"the Template's only name is metadata.name, {metadata['name']}")
        seconds = _seconds(body.peek("global_timeout"))
        if seconds is None:
            body.drop("global_timeout", "must be a number of seconds")
        elif seconds:
            body.changed(
                "global_timeout",
                f"it belongs to the Workflow in v1alpha2, as spec.timeout: {seconds}. Workflows that are converted "
                "together with this Template get it",
            )
        body.ignore("global_timeout")
        tasks = body.each("tasks") if self._is(body, "tasks", list, "a list") else []
        body.rest()
        if len(tasks) != 1:
            names = ", ".join(str(task.peek("name") or "?") for task in tasks)
            body.error(
                "tasks",
                f"there are {len(tasks)} tasks ({names}): v1alpha2's Template is for one machine, make one of each"
                if tasks
                else "there is no task",
            )
            return {}
        return self._task(tasks[0], (metadata["name"], name))

    def _task(self, task: Fields, names: tuple[Any, ...]) -> Raw:
        name = task.take("name")
        if name is not None and name not in names:
            task.changed("name", "the Template itself is the task now: the name is dropped")
        worker = task.take("worker")
        if worker is not None and not (isinstance(worker, str) and _PARAM.match(worker.strip())):
            task.changed("worker", f"{worker}: the Workflow's hardwareRef decides which machine it runs on")
        result: Raw = {"actions": []}
        actions = task.each("actions") if self._is(task, "actions", list, "a list") else []
        for index, action in enumerate(actions):
            result["actions"].append(self._action(action, last=index == len(actions) - 1))
        seen: set[str] = set()
        for action in actions:
            name = action.peek("name")
            if not isinstance(name, str):
                continue  # reported by _action_name
            if name in seen:
                action.error("name", f"another action has this name, too: {name}")
            seen.add(name)
        if not actions:
            task.error("actions", "there must be at least one action")
        self._bound(task.at("actions"), bounds.MAX_ACTIONS, len(actions))
        self._shared(task, result)
        task.rest()
        return result

    def _shared(self, fields: Fields, result: Raw) -> None:
        """Convert the fields that tasks and actions share: volumes and environment."""
        if volumes := self._volumes(fields):
            result["volumes"] = volumes
        if env := self._env(fields):
            result["env"] = env

    # --- actions

    def _action(self, action: Fields, *, last: bool) -> Raw:
        result: Raw = {"name": self._action_name(action), "image": self._image(action)}
        if command := self._command(action):
            result["args"] = command
        self._shared(action, result)
        self._timeout(action, result)
        namespaces = action.fields("namespaces")
        network = namespaces.peek("network")
        if text := self._text_of(namespaces, "network", bounds.MAX_NAMESPACE_CHARACTERS):
            result["networkNamespace"] = text
        elif network is None:
            namespaces.ignore("network")
        restarts = last and waitdaemon.restarts(result)
        in_machines_own = [self._pid(each) for each in (action, namespaces)]
        if any(in_machines_own) and not restarts:  # an action that reboots gets it anyway
            result["pidNamespace"] = "host"
        namespaces.rest()
        for key in ("on-timeout", "on-failure"):
            action.drop(key, _REACTION)
        action.rest()
        if restarts:
            self._unwrap(action, result)
            result["reboots"] = True
            self._findings.changed(
                action.path,
                "the last action seems to restart the machine: reboots: true was set, so that the Workflow succeeds "
                "although no agent reports its end. Take it out if the action does not",
            )
        return result

    @staticmethod
    def _pid(fields: Fields) -> bool:
        """Return True if the field requests the machine's own PID namespace."""
        if fields.peek("pid") == "host":
            fields.ignore("pid")
            return True
        fields.drop("pid", constraints.PID_NAMESPACE)
        return False

    def _unwrap(self, action: Fields, result: Raw) -> None:
        """Replace waitdaemon by the $IMAGE that it makes an engine start after its own end, as `reboots` does."""
        image = waitdaemon.unwrap(result)
        if not image:
            return
        action.changed(
            "image",
            f"waitdaemon needs an engine's socket; its {image} is the action now, and the Workflow ends when the "
            "machine has gone down",
        )

    def _action_name(self, action: Fields) -> str:
        """Return the action's name. v1alpha2 does not render it, so a name that depends on no data is rendered here."""
        at, name = action.at("name"), action.take("name")
        if not isinstance(name, str) or not name:
            self._findings.error(at, "an action must have a name")
            return ""
        if "{{" in name:
            try:
                name = render(rewrite(name).text, {}, at)
            except TemplateError:
                self._findings.error(at, f"{name}: names of actions are not rendered in v1alpha2: write it out")
                return ""
        if not name or len(name) > bounds.MAX_NAME_CHARACTERS or "{{" in name:
            self._findings.error(at, f"must have 1 to {bounds.MAX_NAME_CHARACTERS} characters and no {{{{")
        return name

    def _image(self, action: Fields) -> str:
        image = self._text_of(action, "image", bounds.MAX_IMAGE_CHARACTERS)
        if not image:
            action.error("image", "an action must have an image")
        elif refusal := constraints.image(image):
            action.error("image", refusal)
        elif _names_no_registry(image):
            if self._registry:
                image = f"{self._registry}/{image}"
            else:
                action.changed("image", _HUB.format(image=image))
        if waitdaemon.image_name(image) == "rootio":
            action.changed("image", _ROOTIO)
        return image

    def _command(self, action: Fields) -> list[str]:
        """Return the arguments of the image's entrypoint, from `command`."""
        at, command = action.at("command"), action.take("command")
        if command is None:
            return []
        if not isinstance(command, list) or not all(isinstance(part, str | None) for part in command):
            self._findings.error(at, "must be a list of texts")
            return []
        self._bound(at, bounds.MAX_ARGS, len(command))
        found = []
        for index, part in enumerate(command):
            text = self._rendered(f"{at}[{index}]", part or "", bounds.MAX_TEXT_CHARACTERS)
            found.append(text)
            self._startable(f"{at}[{index}]", text)
        return found

    def _timeout(self, action: Fields, result: Raw) -> None:
        timeout = action.peek("timeout")
        if timeout is None:
            action.ignore("timeout")
            return
        seconds = _seconds(timeout)
        if seconds is not None:
            action.ignore("timeout")
            result["timeout"] = seconds
        else:
            action.drop("timeout", "must be a number of seconds; v1alpha2 does not render it")

    # --- texts

    def _volumes(self, fields: Fields) -> list[str]:
        found: list[str] = []
        if not self._is(fields, "volumes", list, "a list"):
            return found
        for at, volume in fields.texts("volumes"):
            into = _place(fields.at("volumes").removeprefix(f"{DATA}."))
            if refusal := constraints.volume(volume):
                self._findings.dropped(at, refusal)
                self._places[at.removeprefix(f"{DATA}.")] = into
            else:
                self._places[at.removeprefix(f"{DATA}.")] = f"{into}[{len(found)}]"
                found.append(self._rendered(at, volume, bounds.MAX_VOLUME_CHARACTERS))
        self._bound(fields.at("volumes"), bounds.MAX_VOLUMES, len(found))
        return found

    def _env(self, fields: Fields) -> dict[str, str]:
        found: dict[str, str] = {}
        if not self._is(fields, "environment", dict, "an object"):
            return found
        for at, name, text in fields.mapping("environment"):
            if text is not None and not isinstance(text, str):
                self._findings.error(at, f"must be a text, is {type_name(text)}")
                continue
            new = self._rendered(at, name, bounds.MAX_TEXT_CHARACTERS)
            if not new or ("=" in new and "{{" not in new):
                self._findings.error(at, rules.ENV_NAMES.message)
            found[new] = self._rendered(at, text or "", bounds.MAX_TEXT_CHARACTERS)
            self._startable(at, found[new], new)
        self._bound(fields.at("environment"), bounds.MAX_VARIABLES, len(found))
        return found

    def _is(self, fields: Fields, key: str, kind: type, name: str) -> bool:
        """Return True if a field has its type or is absent. Otherwise report an error: it must not be lost."""
        value = fields.peek(key)
        if value is None or isinstance(value, kind):
            return True
        fields.error(key, f"must be {name}, is {type_name(value)}")
        fields.ignore(key)
        return False

    def _text_of(self, fields: Fields, key: str, longest: int) -> str:
        value = fields.take(key)
        if value is not None and not isinstance(value, str):
            fields.error(key, f"must be a text, is {type_name(value)}")
            return ""
        return self._rendered(fields.at(key), value or "", longest)

    def _rendered(self, at: str, text: str, longest: int) -> str:
        """Return a field's text with rewritten expressions."""
        found = rewrite(text)
        line = self._content.lines.get(text, 0)
        for error in found.errors:
            self._findings.error(at, f"line {line} of the text: {error}")
        for notice in found.notices:
            self._findings.changed(at, notice)
        if loose := self._content.edges.get(text):
            where = "in it" if loose == "line breaks" else "at its ends"
            self._findings.changed(
                at, f"{loose} {where} may stay: YAML cut them off after rendering; v1alpha2 renders the field by itself"
            )
        if len(found.text) > longest:
            self._findings.error(at, f"longer than {longest} characters, the most that v1alpha2 takes")
        return found.text

    def _startable(self, at: str, text: str, name: str | None = None) -> None:
        """Report a text that Linux does not accept as an argument, or as a variable with this name.

        Longer texts were reported before.
        """
        both = text if name is None else f"{name}={text}"
        if len(text) > bounds.MAX_TEXT_CHARACTERS or (len(both) < _SURELY_STARTABLE and "\0" not in both):
            return
        part = {"args": [text]} if name is None else {"env": {name: text}}
        for excess in unstartable_template({"spec": {"actions": [part]}}):
            self._findings.error(at, excess.message)

    def _bound(self, at: str, most: int, count: int) -> None:
        if count > most:
            self._findings.error(at, f"v1alpha2 takes {most} of them, here are {count}")


def _place(path: str) -> str:
    """Return the path in the result of a field of the text, or of the nearest field: the paths of comments."""
    if path == END:
        return path
    if not path.startswith("tasks[0]."):
        return "spec"
    path = _PID.sub(".pidNamespace", f"spec{path.removeprefix('tasks[0]')}")
    path = _NAMESPACES.sub(".networkNamespace", path)
    return _SHARED_NAME.sub(lambda match: match[1] + _NEW_NAMES[match[2]], path)


def _seconds(text: Any) -> int | None:
    """Return a number of seconds from its YAML text; None for any other value."""
    if not isinstance(text, str) or not text.strip():
        return None
    try:
        number = plain_scalar(text.strip())
    except ValueError:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= bounds.MAX_TIMEOUT_SECONDS:
        return None
    return number


def _names_no_registry(image: str) -> bool:
    """Return True if an image name has no registry (by Docker's rule) and does not begin with an expression."""
    first, slash, _ = image.partition("/")
    return "{{" not in first and not (slash and ("." in first or ":" in first or first == "localhost"))
