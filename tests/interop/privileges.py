"""The roles of deploy/rbac.yaml, and a gate before the API that lets a component through as its roles allow it."""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

ROLES = Path(__file__).parents[2] / "deploy" / "rbac.yaml"

# --- roles -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wish:
    """The attributes of a request (kubernetes.io, "Authorization Overview"); `name` is empty for a collection."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str


@dataclass(frozen=True)
class Grant:
    """One verb on one resource, in one namespace or (empty) in all, for one object or (empty) for any."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str

    def allows(self, wish: Wish) -> bool:
        same = (self.verb, self.group, self.resource) == (wish.verb, wish.group, wish.resource)
        return same and self.namespace in ("", wish.namespace) and self.name in ("", wish.name)


def wish(method: str, path: str, query: dict[str, str]) -> Wish:
    parts = path.strip("/").split("/")
    group, parts = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    plural, name, subresource = [*parts, "", ""][:3]
    verb = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}.get(method, "get")
    if verb == "get" and not name:
        verb = "watch" if query.get("watch") == "true" else "list"
        # A selector for one name is that name, to Kubernetes' authorizers (k8s.io/apiserver, RequestInfoFactory).
        name = query.get("fieldSelector", "").partition("metadata.name=")[2]
    return Wish(verb, group, f"{plural}/{subresource}" if subresource else plural, namespace, name)


def grants(account: str, roles: Path = ROLES, namespace: str = "") -> set[Grant]:
    """Everything that a service account may do by these roles; those without a namespace are applied to `namespace`."""
    objects = list(yaml.load_all(roles.read_text(), Loader=yaml.CSafeLoader))
    rules = {(obj["kind"], obj["metadata"]["name"]): obj["rules"] for obj in objects if "rules" in obj}
    found = set()
    for obj in objects:
        if account not in [subject["name"] for subject in obj.get("subjects", [])]:
            continue
        for rule in rules[obj["roleRef"]["kind"], obj["roleRef"]["name"]]:
            found |= {
                Grant(verb, group, resource, obj["metadata"].get("namespace", namespace), name)
                for verb in rule["verbs"]
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for name in rule.get("resourceNames", [""])
            }
    return found


# --- the gate --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Upstream:
    """The API behind the gates, and a token for it."""

    url: str
    trust: ssl.SSLContext
    token: str

    @classmethod
    def read(cls, kubeconfig: Path) -> Upstream:
        content = yaml.load(kubeconfig.read_text(), Loader=yaml.CSafeLoader)
        cluster = content["clusters"][0]["cluster"]
        if encoded := cluster.get("certificate-authority-data"):
            trust = ssl.create_default_context(cadata=base64.b64decode(encoded).decode())
        else:
            trust = ssl.create_default_context(cafile=cluster["certificate-authority"])
        return cls(cluster["server"], trust, content["users"][0]["user"]["token"])


class Gate:
    """A proxy between a component and its API that checks the component's rights. `kubeconfig` leads to the proxy."""

    def __init__(self, account: str, upstream: Upstream, directory: Path) -> None:
        self.kubeconfig = directory / f"kubeconfig-{account}"
        self.wishes: set[Wish] = set()
        self.refused: list[Wish] = []
        self.before: Callable[[Wish], Awaitable[None]] | None = None
        """Called before the proxy forwards a request."""
        self._grants = grants(account)
        self._upstream = upstream
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=upstream.trust), timeout=aiohttp.ClientTimeout(total=None)
        )
        app = web.Application(client_max_size=2**22)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)

    async def start(self, listener: socket.socket | None = None) -> None:
        """Start to serve on `listener`, such as one of a network namespace; None: on loopback."""
        await self._runner.setup()
        await web.SockSite(self._runner, listener or socket.create_server(("127.0.0.1", 0))).start()
        cluster = {"server": f"http://127.0.0.1:{self._runner.addresses[0][1]}"}
        config = {
            "apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {}}], "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }  # fmt: skip
        self.kubeconfig.write_text(yaml.safe_dump(config))

    async def stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    def allow(self, more: set[Grant]) -> None:
        self._grants |= more

    def unused(self) -> list[Grant]:
        return sorted((grant for grant in self._grants if not any(map(grant.allows, self.wishes))), key=str)

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        if "sendInitialEvents" in request.query:  # as of an API that can't: then it takes both, list and watch
            return web.json_response({"kind": "Status", "code": 422, "reason": "Invalid", "message": "no"}, status=422)
        wanted = wish(request.method, request.path, dict(request.query))
        self.wishes.add(wanted)
        if not any(grant.allows(wanted) for grant in self._grants):
            self.refused.append(wanted)
            status = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": f"no role allows {wanted}"}
            return web.json_response(status, status=403)
        if self.before is not None:
            await self.before(wanted)
        headers = {name: request.headers[name] for name in ("Accept", "Content-Type") if name in request.headers}
        headers["Authorization"] = f"Bearer {self._upstream.token}"
        async with self._session.request(
            request.method, self._upstream.url + request.path_qs, data=await request.read(), headers=headers
        ) as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
            await response.prepare(request)
            with contextlib.suppress(ConnectionError, aiohttp.ClientError):
                async for piece in answer.content.iter_any():
                    await response.write(piece)
            return response
