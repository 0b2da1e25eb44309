"""The embedded Kubernetes API server: the parts put together, over HTTPS and a state on disk.

    request -> http -> core (write, read) -> store (SQLite)
                |               |             |
            discovery       resources         v  every stored change
                                             broadcaster -> watches; registry (definitions); controllers

All persistent state is in the data directory: `state.db` with its write-ahead log, the certificate authority and the
token, readable by their owner only. After a restart clients continue with the same kubeconfig and resourceVersions. If
the disk can't be written, the stored objects can still be read (`refusal`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType

import orjson
from aiohttp import web
from prometheus_client.registry import Collector

from tink.files import data_directory, private_files
from tink.files.key_file import KeyFile, KeyFileError
from tink.kubeapi.apiserver import credentials
from tink.kubeapi.apiserver.access import USERS_FILE, Authenticator, UserFileError
from tink.kubeapi.apiserver.admission.review import AdmissionPlugin
from tink.kubeapi.apiserver.conversion import VersionConverter
from tink.kubeapi.apiserver.core import Core, utc_now
from tink.kubeapi.apiserver.errors import ApiServerError
from tink.kubeapi.apiserver.http.app import Api
from tink.kubeapi.apiserver.http.monitoring import ApiServerMetrics, http_logger
from tink.kubeapi.apiserver.store.object_store import ObjectStore
from tink.kubeapi.apiserver.store.objects import Event, Key, StorageError
from tink.kubeapi.apiserver.write.pipeline import Admit, add_nothing
from tink.kubeapi.schema.shapes import Raw
from tink.net.addresses import join_host_port
from tink.net.connection_limit import LimitedSite
from tink.waiting import log_failure

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0  # Time for running requests to finish when the server stops, in seconds
SESSION_SECONDS = 1.0  # Interval between checks of the rights of users with open requests
_DAY_SECONDS = 86400.0
ANYWHERE = "0.0.0.0"  # noqa: S104 - the operator says so
"""All IPv4 addresses of this host, including loopback."""


class ApiServer:
    """One API server over one data directory, at `host` and, for other hosts, at `addresses`. Start and stop it once.

    Port 0 takes a free one. The certificate is valid for all addresses and for `names`. `admit` receives each
    write before the webhooks do. `plugin` reviews writes in this process. `converters` convert the objects of
    definitions (by the definition's name) between their versions in this process.
    """

    def __init__(
        self,
        data_dir: Path,
        host: str = "127.0.0.1",
        port: int = 6443,
        *,
        addresses: Sequence[str] = (),
        names: Sequence[str] = (),
        history: int = 10_000,
        admit: Admit = add_nothing,
        plugin: AdmissionPlugin | None = None,
        converters: Mapping[str, VersionConverter] = MappingProxyType({}),
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._data_dir = data_dir
        self.kubeconfig = data_dir / "kubeconfig"  # The kubeconfig file, once the server has started
        self._addresses = tuple(addresses)
        self._names = tuple(names)
        self._host = host
        self._port = port
        self._now = now
        store = ObjectStore(
            data_dir / "state.db",
            self._committed,
            history=history,
            beside=(data_dir / "token", data_dir / "pki" / "ca.key"),
        )
        self._core = Core(store, now, admit=admit, plugin=plugin, converters=converters)
        self._runner: web.AppRunner | None = None
        self._api: Api | None = None

    @property
    def refusal(self) -> str:
        """Why the state is read-only at present; "" if it can be written."""
        return self._core.store.refusal

    @property
    def url(self) -> str:
        """The URL of the server, e.g. https://127.0.0.1:6443."""
        return f"https://{join_host_port(self._host, self._port)}"

    def metrics(self) -> Collector:
        """Return the Prometheus collector of a started server."""
        if self._api is None:
            raise RuntimeError("the API server has not been started")
        return ApiServerMetrics(self._api.counts, self._data_dir / "state.db", lambda: self.refusal)

    async def start(self) -> None:
        """Open the state, listen, and write the kubeconfig. Raises ApiServerError with advice."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        try:
            data_directory.claim(self._data_dir)
        except data_directory.DataDirectoryError as error:
            raise ApiServerError(str(error)) from error
        store = self._core.store
        await store.open()  # first: token and authority then show that a state existed
        try:
            if not store.refusal:
                private_files.sweep(self._data_dir, "token", "kubeconfig", "state.newest", "pki", "serving")
            authority = credentials.load_authority(self._data_dir / "pki", self._now())
            token = credentials.load_token(self._data_dir / "token")
            show = partial(self._keep_kubeconfig, authority)
            tokens = KeyFile(self._data_dir / "token", "the administrator's token", changed=show)
            authenticator = Authenticator(tokens.holds, self._data_dir / USERS_FILE, self._now)
        except (UserFileError, KeyFileError) as error:
            raise ApiServerError(str(error)) from error
        except OSError as error:
            raise ApiServerError(f"data directory {self._data_dir}: {error}") from error
        shown = [self._host, *(each for each in self._addresses if each != ANYWHERE), *self._names]
        context = credentials.server_context(authority, shown, self._now())
        try:
            await self._core.load()
        except StorageError as error:
            raise ApiServerError(f"{self._data_dir / 'state.db'}: {error}") from error
        api = self._api = Api(self._core, authenticator)
        # Cancelled when the client disconnects: a watch would notice it only at the next change.
        self._runner = web.AppRunner(
            api.application(),
            handler_cancellation=True,
            shutdown_timeout=STOP_SECONDS,
            access_log=None,
            logger=http_logger(api.request_log),
            auto_decompress=False,  # as in Kubernetes: a small body must not become a large one
        )
        await self._runner.setup()
        await self._listen(self._runner, context)
        try:
            credentials.keep_kubeconfig(self.kubeconfig, self.url, authority, token)
        except OSError as error:
            raise ApiServerError(f"{self.kubeconfig}: cannot be written: {error.strerror}") from error
        self._core.start_controllers()
        self._core.tasks += [
            asyncio.create_task(_every(SESSION_SECONDS, api.sessions.recheck), name="apiserver sessions"),
            asyncio.create_task(_every(_DAY_SECONDS, authenticator.warn_of_expiry), name="apiserver tokens"),
        ]
        for task in self._core.tasks:
            log_failure(task, log, f"{task.get_name()} has ended: it begins again when this process does")
        log.info("Kubernetes API at %s, kubeconfig in %s", self.url, self.kubeconfig)

    def _keep_kubeconfig(self, authority: credentials.Authority, token: str) -> None:
        """Write the kubeconfig after the administrator's token has changed."""
        try:
            credentials.keep_kubeconfig(self.kubeconfig, self.url, authority, token)
        except OSError as error:
            log.error("%s has the previous token, because it cannot be written: %s", self.kubeconfig, error.strerror)

    async def _listen(self, runner: web.AppRunner, context: ssl.SSLContext) -> None:
        """Listen at `host` and at the addresses. Raises ApiServerError. Each of the two has its own connection limit,
        so that other hosts cannot use up the connections of this one."""
        if ANYWHERE in self._addresses:
            await self._listen_at(LimitedSite(runner, ANYWHERE, self._port, context, "API"), ANYWHERE)
            return
        await self._listen_at(LimitedSite(runner, self._host, self._port, context, "embedded API"), self._host)
        if self._addresses:
            hosts = ", ".join(self._addresses)
            site = LimitedSite(runner, self._addresses, self._port, context, f"API at {hosts}", free=True)
            await self._listen_at(site, hosts)
            log.info("the API also listens for other hosts: %s, port %d", hosts, self._port)
        for address in self._addresses:
            if not _is_ours(address):
                log.warning(
                    "--api-address %s: this host does not have the address; the API listens there as soon as it does",
                    address,
                )

    async def _listen_at(self, site: LimitedSite, hosts: str) -> None:
        try:
            await site.start()
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno == errno.EADDRINUSE:
                why = (
                    f"another program has the port ('ss -ltnp sport = :{self._port}' names it): stop it, or choose "
                    "another port with --api-port"
                )
            raise ApiServerError(f"cannot listen on {hosts}:{self._port}: {why}") from error
        self._port = site.port

    async def alive(self) -> None:
        """Return once the writing thread has answered. While it does not, no write is stored."""
        await self._core.store.current()

    async def stop(self) -> None:
        """End watches, let running requests finish, and close the state. Harmless if the server is not running."""
        self._core.broadcaster.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await self._core.stop()

    async def find(self, key: str, namespace: str, name: str) -> Raw | None:
        """Read a stored object; `key` is such as `tinkerbell.org/hardware`. Return None if there is none. Raises
        StorageError."""
        stored = await self._core.store.get(Key(key, namespace, name))
        found: Raw | None = None if stored is None else orjson.loads(stored.body)
        return found

    def _committed(self, event: Event) -> None:
        """Log a stored change, even if its request is cancelled or fails, and pass the change on."""
        if self._api is not None:
            self._api.audit.committed(event)
        self._core.committed(event)


async def _every(seconds: float, act: Callable[[], None]) -> None:
    while True:
        act()
        await asyncio.sleep(seconds)


def _is_ours(address: str) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
