"""Everyday requests, errors and bad input: our API server must answer like a real kube-apiserver.

`cases/*.yaml` are sequences of requests; `answers/FILE/CASE.json` are the answers of kube-apiserver 1.36.3 with RBAC,
recorded by

    python -m tests.record conformance

Every case plays in its own namespace. Values that two servers cannot share are made symbolic in both: times, UIDs,
generated names, and resourceVersions, which are numbered for each object (`<rv1>`). `differences.yaml` lists the
accepted differences, each with its reason; a listed difference that no longer exists fails, too.

A step of a case:

    do: METHOD PATH      <cm>, <w>, ... stand for paths (PATHS), <ns> for the namespace, <x> for a value from `save`
    of: Widget           put apiVersion and kind into the body; `KIND/GROUP/VERSION` for another version
    body: {...}          sent as JSON; `raw` is sent unchanged, and may be {text, open, times, close, after}
    type, accept, headers, token
    save: {x: metadata.resourceVersion}
    each: [...]          do the step once for each value; <each> stands for it, <i> for its number
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from yarl import URL

from tests import recordings
from tests.implementation_details import in_common, without_details
from tests.waiting import PATIENCE_SECONDS, until
from tink.kubeapi import ApiServer

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
CASES = sorted((HERE / "cases").glob("*.yaml"))
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CORE, CONF = "/api/v1/namespaces/<ns>", "/apis/conf.test/v1/namespaces/<ns>"
PATHS = {
    "core": CORE,
    "cm": f"{CORE}/configmaps",
    "secrets": f"{CORE}/secrets",
    "events": f"{CORE}/events",
    "leases": "/apis/coordination.k8s.io/v1/namespaces/<ns>/leases",
    "crds": DEFINITIONS,
    "w": f"{CONF}/widgets",
    "blobs": f"{CONF}/blobs",
    "gadgets": "/apis/conf.test/v1/gadgets",
    "doors": f"{CONF}/doors",
    "gates": f"{CONF}/gates",
    "herds": f"{CONF}/herds",
    "v1": f"{CONF}/movables",
    "v1beta1": "/apis/conf.test/v1beta1/namespaces/<ns>/movables",
    "newevents": "/apis/events.k8s.io/v1/namespaces/<ns>/events",
    "tink": "/apis/tinkerbell.org/v1alpha2/namespaces/<ns>",
}
API_VERSIONS = {
    **dict.fromkeys(("Blob", "Door", "Gadget", "Gate", "Herd", "Movable", "Widget"), "conf.test/v1"),
    "Scale": "autoscaling/v1",
    "Lease": "coordination.k8s.io/v1",
    "CustomResourceDefinition": "apiextensions.k8s.io/v1",
    **dict.fromkeys(("Hardware", "OSIE", "Template", "Workflow"), "tinkerbell.org/v1alpha2"),
}
HEADERS = ("Content-Type", "Warning", "Retry-After", "Cache-Control", "Allow", "Location")
END_S = 1.0
"""How long the answer to a watch that never ends is read, in seconds. What is read is not looked at."""
AT_ONCE = 6
"""Cases played at the same time: most of the time goes by in watches that wait for their end."""


class _Loader(yaml.CSafeLoader):
    """YAML with the scalars of JSON and no others: `n`, 2020-01-01 and 00:11:22 are texts."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own protocol: a class attribute


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(true|false)$"), list("tf"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("^null$"), ["n"])
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile("^-?(0|[1-9][0-9]*)$"), list("-0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^-?[0-9]+\.[0-9]+(e[-+]?[0-9]+)?$"), list("-0123456789")
)


# --- playing ---


class Player:
    """Plays cases against the server of a kubeconfig."""

    def __init__(self, kubeconfig: Path, *, settled: bool = False) -> None:
        """Make a player. `settled`: reads from a cache wait until the cache is current."""
        self._settled = settled
        content = yaml.load(kubeconfig.read_text(), Loader=yaml.CSafeLoader)
        cluster = content["clusters"][0]["cluster"]
        if "certificate-authority-data" in cluster:
            context = ssl.create_default_context(
                cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
            )
        else:
            context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._server = cluster["server"]
        self._token = content["users"][0]["user"]["token"]
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=AT_ONCE * 2),
            timeout=aiohttp.ClientTimeout(total=PATIENCE_SECONDS),
        )

    async def close(self) -> None:
        await self._session.close()

    async def request(self, step: dict[str, Any], names: dict[str, str]) -> tuple[int, dict[str, list[str]], bytes]:
        """Send the request of a step; repeat it once if the server had closed the connection before."""
        try:
            return await self._request(step, names)
        except aiohttp.ClientConnectionError:
            try:
                return await self._request(step, names)
            except aiohttp.ClientConnectionError:
                return 0, {}, b"<connection closed>"

    async def _request(self, step: dict[str, Any], names: dict[str, str]) -> tuple[int, dict[str, list[str]], bytes]:
        method, _, path = str(put(step["do"], names)).partition(" ")
        headers = {"Authorization": f"Bearer {step.get('token', self._token)}", "User-Agent": "conformance"}
        if step.get("token") == "":
            del headers["Authorization"]
        headers["Accept"] = step.get("accept", "application/json")
        body = body_of(step, names)
        if body is not None and step.get("type", "application/json"):
            headers["Content-Type"] = step.get("type", "application/json")
        headers |= {key: str(put(value, names)) for key, value in (step.get("headers") or {}).items()}
        url = URL(self._server + path, encoded=True)
        skip = ["Content-Type"] if "Content-Type" not in headers else []
        async with self._session.request(
            method,
            url,
            data=None if body is None else io.BytesIO(body),
            headers=headers,
            skip_auto_headers=skip,
            allow_redirects=False,
        ) as answer:
            try:
                is_endless = "watch=" in path and "watch=0" not in path and "timeoutSeconds=" not in path
                async with asyncio.timeout(END_S if is_endless else PATIENCE_SECONDS):
                    text = await answer.read()
            except TimeoutError:
                text = b"<no end>"
            kept = {name: answer.headers.getall(name) for name in HEADERS if name in answer.headers}
            return answer.status, kept, text

    async def _settle(self, step: dict[str, Any], names: dict[str, str]) -> None:
        """Wait until the server's cache is as new as its store.

        Watches, and lists of `resourceVersion=0`, come from the cache, which learns of a write some milliseconds later
        (Kubernetes API concepts, "Semantics for get and list").
        """
        method, _, target = str(put(step["do"], names)).partition(" ")
        path, _, query = target.partition("?")
        if method != "GET" or not ("watch" in target or "resourceVersion" in query):
            return
        path = path.replace("/watch/", "/")
        status, _, text = await self.request({"do": f"GET {path}"}, {})
        version = at(parsed(text, "application/json"), "metadata.resourceVersion") if status == 200 else ""
        if version:
            match = f"resourceVersion={version}&resourceVersionMatch=NotOlderThan"
            await self.request({"do": f"GET {path}?{match}"}, {})

    async def prepare(self) -> None:
        """Install the resources that the cases use, and wait until they are served."""
        files = [HERE / "crds.yaml", *sorted((HERE.parents[4] / "deploy" / "crds").glob("*.yaml"))]
        for file in files:
            for definition in yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader):
                status, _, text = await self.request({"do": f"POST {DEFINITIONS}", "body": definition}, {})
                assert status in (201, 409), text
                spec = definition["spec"]
                path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
                await until(partial(self._is_served, path))

    async def _is_served(self, path: str) -> bool:
        return (await self.request({"do": f"GET {path}"}, {}))[0] == 200

    async def play(self, case: dict[str, Any]) -> list[dict[str, Any]]:
        """Play one case and return an answer for each step."""
        names = {"ns": f"conf-{case['name']}"} | {
            key: path.replace("<ns>", f"conf-{case['name']}") for key, path in PATHS.items()
        }
        namespace = {"metadata": {"name": names["ns"]}}
        status, _, text = await self.request({"do": "POST /api/v1/namespaces", "body": namespace}, {})
        assert status in (201, 409), text
        answers = []
        for step in steps_of(case):
            if self._settled:
                await self._settle(step, names)
            status, headers, raw = await self.request(step, names)
            body = parsed(raw, "".join(headers.get("Content-Type", [])))
            answers.append({"status": status, "headers": headers, "body": body})
            for name, path in (step.get("save") or {}).items():
                names[name] = str(at(body, path))
        return symbolic(answers)


def steps_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of a case, one for each value of `each`."""
    found = []
    for step in case["steps"]:
        if "each" not in step:
            found.append(step)
            continue
        bare = {key: value for key, value in step.items() if key != "each"}
        found += [put(put(bare, {"each": value}), {"i": number}) for number, value in enumerate(step["each"])]
    return found


def put(value: Any, names: dict[str, Any]) -> Any:
    """Replace names in `<...>`; a text that is only `<...>` becomes the value itself."""
    if isinstance(value, str):
        if value.startswith("<") and value.endswith(">") and value[1:-1] in names:
            return names[value[1:-1]]
        return re.sub(r"<(\w+)>", lambda m: str(names.get(m[1], m[0])), value)
    if isinstance(value, dict):
        return {put(key, names): put(item, names) for key, item in value.items()}
    return [put(item, names) for item in value] if isinstance(value, list) else value


def body_of(step: dict[str, Any], names: dict[str, str]) -> bytes | None:
    if "raw" in step:
        raw = put(step["raw"], names)
        if isinstance(raw, dict):
            count = raw["times"]
            raw = raw.get("text", "") + raw["open"] * count + raw.get("close", "") * count + raw.get("after", "")
        return str(raw).encode("latin-1")
    if "body" not in step:
        return None
    body = put(step["body"], names)
    kind, _, version = step.get("of", "").partition("/")
    if kind:
        body = {"apiVersion": version or API_VERSIONS.get(kind, "v1"), "kind": kind, **body}
    return json.dumps(body).encode()


def at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list) else (value or {}).get(part, "")
    return value


def parsed(raw: bytes, media: str) -> Any:
    """Parse a body: JSON, YAML, the lines of a watch, or text."""
    text = raw.decode("utf-8", "replace")
    if media == "application/yaml":
        return yaml.load(text, Loader=_Loader)
    try:
        whole = json.loads(text)
    except ValueError:
        try:
            return [json.loads(line) for line in text.splitlines()]
        except ValueError:
            return text[:2000]
    watched = isinstance(whole, dict) and whole.keys() == {"type", "object"}
    return [whole] if watched else whole


# --- what two servers cannot have in common ---

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_PATCHED = re.compile(r'Invalid value: "\{.*\}": ', re.DOTALL)  # its fields are in another order
_RANDOM = re.compile(r"\b(RACK-|Bad_|gen[-.]|Gen Upper\.|a/b)[a-z0-9]{5}\b")
_VERSION_WORDS = re.compile(
    r"([Rr]esource ?[Vv]ersions?(?: in precondition| in object meta)?: |current: "
    r"|(?:resource version: \d+|in record) \(|resourceVersion\\*\"?: ?\\*\")(\d+)"
)


def symbolic(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make times, UIDs, generated names and resourceVersions symbolic."""
    objects: dict[str, set[int]] = {}
    for uid, version in (one for answer in answers for one in _versions(answer["body"])):
        objects.setdefault(uid, set()).add(int(version))
    known = {str(v): f"<rv{rank}>" for versions in objects.values() for rank, v in enumerate(sorted(versions), 1)}

    def version(words: str, number: str) -> str:
        # The newest version of the server depends on the writes of the other cases, which run at the same time.
        return "0" if number == "0" else "<rv>" if words == "current: " else known.get(number, "<rv>")

    def text(value: str) -> str:
        value = _PATCHED.sub("Invalid value: <object>: ", value)
        value = _RANDOM.sub(r"\1<random>", _TIME.sub("<time>", value))
        value = _UID.sub("<uid>", value)
        return _VERSION_WORDS.sub(lambda m: m[1] + version(m[1], m[2]), value)

    def walk(value: Any, *, top: bool = False) -> Any:
        if isinstance(value, list):
            return [walk(item) for item in value]
        if not isinstance(value, dict):
            return text(value) if isinstance(value, str) else value
        out: dict[str, Any] = {}
        for key, item in value.items():
            if key == "resourceVersion" and isinstance(item, str) and item.isdigit():
                out[key] = known.get(item, "<rv>")
            elif key == "continue" and item:
                out[key] = "<continue>"
            elif key == "columnDefinitions":  # what a column is for, we say in our own words
                out[key] = [{**column, "description": ""} for column in item or ()]
            elif key == "cells":
                out[key] = [
                    "<age>" if isinstance(cell, str) and re.fullmatch(r"\d+s|\d+y\d+d", cell) else walk(cell)
                    for cell in item
                ]
            else:
                out[key] = walk(item)
        if isinstance(out.get("generateName"), str) and isinstance(out.get("name"), str):
            out["name"] = re.sub(r"[a-z0-9]{5}$", "<random>", out["name"])
        if top and out.get("kind") == "Status":
            _sort_causes(out)
        if top and ("items" in out or "rows" in out) and "resourceVersion" in (out.get("metadata") or {}):
            out["metadata"]["resourceVersion"] = "<rv>"
        return out

    made = []
    for answer in answers:
        body = answer["body"]
        events = [walk_event(event, walk) for event in body] if isinstance(body, list) else []
        events = [event for event in events if not _is_chance(event)]
        body = events if isinstance(body, list) else walk(body, top=True)
        headers = {key: [text(value) for value in values] for key, values in answer["headers"].items()}
        made.append({"status": answer["status"], "headers": headers, "body": body})
    return made


def _sort_causes(status: dict[str, Any]) -> None:
    """Sort causes: Kubernetes reports errors in the order of a Go map, and those of an update's metadata three
    times."""
    causes = (status.get("details") or {}).get("causes") or []
    head, words, _ = status.get("message", "").partition(" is invalid: ")
    if len(causes) > 1 and words:
        found = {(cause.get("field", ""), cause.get("message", "")): cause for cause in causes}
        status["details"]["causes"] = [found[key] for key in sorted(found)]
        listed = ", ".join(f"{field}: {message}" for field, message in sorted(found))
        status["message"] = f"{head}{words}[{listed}]" if len(found) > 1 else f"{head}{words}{listed}"


def _is_chance(event: Any) -> bool:
    """Return True if an event is a bookmark without a fixed time."""
    return isinstance(event, dict) and event.get("type") == "BOOKMARK" and "initial-events-end" not in json.dumps(event)


def walk_event(event: Any, walk: Any) -> Any:
    """Make an event of a watch symbolic: the version of a bookmark or table belongs to no object."""
    out = walk(event)
    if isinstance(out, dict) and isinstance(out.get("object"), dict):
        obj = out["object"]
        if (out.get("type") == "BOOKMARK" or "rows" in obj) and "resourceVersion" in (obj.get("metadata") or {}):
            obj["metadata"]["resourceVersion"] = "<rv>"
    return out


def _versions(body: Any) -> Iterator[tuple[str, str]]:
    """Return UIDs and resourceVersions of objects, without those of lists, tables and bookmarks."""
    if isinstance(body, list):
        for item in body:
            yield from _versions(item)
    elif isinstance(body, dict) and body.get("type") != "BOOKMARK":
        fields = body.get("metadata")
        if isinstance(fields, dict) and "items" not in body and "rows" not in body:
            version = fields.get("resourceVersion")
            if isinstance(version, str) and version.isdigit():
                yield fields.get("uid", ""), version
        for key in ("items", "rows", "object"):
            if isinstance(body.get(key), dict | list):
                yield from _versions(body[key])


# --- comparing ---


def without_words(answer: dict[str, Any], *, agreed: bool) -> dict[str, Any]:
    """Return an answer without its wording. `agreed`: both servers give the same status."""
    status, body = answer["status"], str(answer["body"])
    nowhere = not answer["body"] or "404 page not found" in body or "find the requested resource" in body
    if agreed and (status in (405, 406, 415) or (status == 404 and nowhere)):
        return {"status": status}  # a router or the resource behind it may refuse
    made: dict[str, Any] = in_common(answer)
    if isinstance(made["body"], dict) and made["body"].get("kind") == "Status":
        _sort_causes(made["body"])
    return made


def differences(theirs: Any, ours: Any, path: str = "") -> Iterator[str]:
    """Return the differences, one line each."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in [*theirs, *(key for key in ours if key not in theirs)]:
            where = f"{path}.{key}" if path else key
            if key not in ours:
                yield f"{where}: theirs {short(theirs[key])}, ours nothing"
            elif key not in theirs:
                yield f"{where}: theirs nothing, ours {short(ours[key])}"
            elif key == "managedFields":  # in the order of their times, which are not compared
                yield from differences(_in_order(theirs[key]), _in_order(ours[key]), where)
            else:
                yield from differences(theirs[key], ours[key], where)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for index, (one, other) in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif theirs != ours or isinstance(theirs, bool) != isinstance(ours, bool):
        yield f"{path}: theirs {short(theirs)}\n{' ' * (len(path) + 4)}ours {short(ours)}"


def _in_order(entries: Any) -> Any:
    return (
        sorted(entries, key=lambda entry: json.dumps(entry, sort_keys=True)) if isinstance(entries, list) else entries
    )


def short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 1500 else text[:1500] + "..."


@cache
def load(file: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = yaml.load(file.read_text(), Loader=_Loader)
    for case in cases:
        case["file"] = file.stem
    return cases


@cache
def answers_of(file: Path) -> dict[str, list[Any]]:
    """Return the recorded answers, without internal details of the real server."""
    read: dict[str, list[Any]] = without_details(recordings.read(HERE / "answers" / file.stem))
    return read


async def play_all(player: Player, cases: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
    """Play cases, several at a time."""
    gate = asyncio.Semaphore(AT_ONCE)
    done: dict[tuple[str, str], Any] = {}

    async def one(case: dict[str, Any]) -> None:
        async with gate:
            try:
                done[case["file"], case["name"]] = await player.play(case)
            except Exception as error:
                error.add_note(f"{case['file']}: {case['name']}")
                done[case["file"], case["name"]] = error

    await asyncio.gather(*(one(case) for case in cases))
    return done


# --- the test ---


@dataclass(frozen=True)
class Kept:
    """An accepted difference: the steps of a case, the matching fields, and the reason."""

    case: re.Pattern[str]
    steps: frozenset[int]
    fields: re.Pattern[str]
    by_chance: bool

    def excuses(self, case: str, step: int, line: str) -> bool:
        where = line.partition(": theirs")[0]
        return bool(self.case.fullmatch(case) and (not self.steps or step in self.steps) and self.fields.match(where))


@cache
def kept() -> list[Kept]:
    """Read `differences.yaml`."""
    listed = yaml.load((HERE / "differences.yaml").read_text(), Loader=_Loader) or []
    assert all(item["why"] for item in listed)
    return [
        Kept(
            re.compile(item["case"]),
            frozenset(item.get("steps") or ()),
            re.compile(item.get("fields", "")),
            item.get("chance", False),
        )
        for item in listed
    ]


def found(case: dict[str, Any], theirs: list[Any], ours: list[Any]) -> Iterator[tuple[int, str, str]]:
    """Return (number of the step, request, difference)."""
    for number, (step, one, other) in enumerate(zip(steps_of(case), theirs, ours, strict=True)):
        what = step["do"] + " " + json.dumps(step.get("body", step.get("raw", "")))[:300]
        agreed = one["status"] == other["status"]
        for line in differences(without_words(one, agreed=agreed), without_words(other, agreed=agreed)):
            yield number, what, line


async def play_ours(directory: Path) -> dict[tuple[str, str], Any]:
    server = ApiServer(directory, port=0)
    await server.start()
    player = Player(server.kubeconfig)
    try:
        await player.prepare()
        return await play_all(player, [case for file in CASES for case in load(file)])
    finally:
        await player.close()
        await server.stop()


Differences = dict[str, list[tuple[int, str, str]] | Exception]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Differences:
    """Return the differing answers of our server, by case."""
    answers = asyncio.run(play_ours(tmp_path_factory.mktemp("conformance")))
    return {
        f"{case['file']}/{case['name']}": answer
        if isinstance(answer := answers[case["file"], case["name"]], Exception)
        else list(found(case, answers_of(file)[case["name"]], answer))
        for file in CASES
        for case in load(file)
    }


@pytest.mark.parametrize("name", [f"{case['file']}/{case['name']}" for file in CASES for case in load(file)])
def test_answers_are_those_of_kubernetes(ours: Differences, name: str) -> None:
    differences = ours[name]
    if isinstance(differences, Exception):
        raise differences
    lines = [
        f"{number}: {what}\n    {line}"
        for number, what, line in differences
        if not any(excuse.excuses(name, number, line) for excuse in kept())
    ]
    assert not lines, "\n".join(lines)


def test_every_accepted_difference_still_exists(ours: Differences) -> None:
    """A difference that no longer exists must leave the list, or it would excuse the next mistake."""
    seen = [
        (name, number, line)
        for name, differences in ours.items()
        if not isinstance(differences, Exception)
        for number, _, line in differences
    ]
    stale = [excuse for excuse in kept() if not excuse.by_chance and not any(excuse.excuses(*one) for one in seen)]
    assert not stale


# --- recording ---


def record(kubeconfig: Path) -> None:
    """Record the answers of a real server."""
    asyncio.run(_record(kubeconfig))


async def _record(kubeconfig: Path) -> None:
    player = Player(kubeconfig, settled=True)
    try:
        await player.prepare()
        done = await play_all(player, [case for file in CASES for case in load(file)])
    finally:
        await player.close()
    for file in CASES:
        by_case = {case["name"]: done[file.stem, case["name"]] for case in load(file)}
        for answers in by_case.values():
            if isinstance(answers, Exception):
                raise answers
        recordings.write(HERE / "answers" / file.stem, by_case)
