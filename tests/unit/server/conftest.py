"""A server over the API in this process, and a scripted agent that speaks gRPC with it on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from proto import metadata
from proto import workflow_pb2 as pb
from proto import workflow_pb2_grpc as pb_grpc
from tests.interop.authority import AUTHORITY_USAGE
from tests.support.api import InProcessApi
from tests.support.objects import MAC, action, hardware, workflow
from tests.waiting import PATIENCE_SECONDS
from tink.api.v1alpha2 import Raw
from tink.kube.resources import HARDWARE, WORKFLOW, ResourceType
from tink.server.activity import AgentActivity
from tink.server.auth import AgentAuth, AgentAuthorizer, AgentDirectory
from tink.server.events import EventStore
from tink.server.server import WorkflowServer
from tink.server.settings import ServerSettings
from tink.server.streams import ServerParts
from tink.server.workflows import WorkflowIndex


class ScriptedAgent:
    """An agent that does what the test says. gRPC gives it a connection that others have, too, unless it is `apart`."""

    def __init__(self, port: int, *, apart: bool = False) -> None:
        options = [("grpc.use_local_subchannel_pool", int(apart))]
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
        self.stub: Any = pb_grpc.WorkflowServiceStub(self.channel)
        self.call: Any = None

    def connect(self, agent_id: str = MAC, holds: tuple[str, ...] | None = None) -> None:
        """`holds` are the uids that the agent says it has; None: it does not say."""
        sent = None if holds is None else [(metadata.WORKFLOW, uid) for uid in holds or ("",)]
        self.call = self.stub.GetWorkflows(pb.GetWorkflowsRequest(agent_id=agent_id), metadata=sent)

    async def accepted(self, agent_id: str = MAC, holds: tuple[str, ...] | None = None) -> None:
        """Connect, and return when the server has accepted the stream."""
        self.connect(agent_id, holds)
        await self.call.initial_metadata()

    async def command(self) -> tuple[str, str]:
        """The next command: its kind, and the Workflow's id."""
        message = await self.call.read()
        assert message is not grpc.aio.EOF, await self.call.code()
        if message.WhichOneof("cmd") == "start_workflow":
            return "start", message.start_workflow.workflow.workflow_id
        return "stop", message.stop_workflow.workflow_id

    async def silent(self) -> bool:
        """Return True if no command arrives before the answers to later calls. This ends the use of the stream."""
        reading = asyncio.ensure_future(self.call.read())
        for _ in range(3):
            await self.refused(pb.Event())
        return reading.cancel()

    async def ending(self) -> tuple[grpc.StatusCode, str]:
        """The status with which the server ends the stream."""
        return await self.call.code(), await self.call.details()

    async def publish(self, event: pb.Event) -> None:
        await self.stub.PublishEvent(pb.PublishEventRequest(event=event), timeout=PATIENCE_SECONDS)

    async def refused(self, event: pb.Event) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.publish(event)
        return caught.value.code(), caught.value.details() or ""


class Rig:
    def __init__(self) -> None:
        self.api = InProcessApi()
        self.workflows = self.api.informer(WORKFLOW)
        self.hardware = self.api.informer(HARDWARE)
        self.seen: list[AgentActivity] = []
        self.now = 1_800_000_000.0
        self.server: Any = None
        self._agents: list[ScriptedAgent] = []

    async def start(self, **settings: Any) -> None:
        address = settings.pop("address", "127.0.0.1:0")
        self.server = WorkflowServer(
            self.api,
            workflows=self.workflows,
            hardware=self.hardware,
            addresses=[address],
            settings=ServerSettings(**settings),
            observe=self.seen.append,
            clock=lambda: self.now,
        )
        await self.server.start()

    async def close(self) -> None:
        if self.server is not None:
            await self.server.stop()
        for call in self.api.calls:
            if call.verb == "patch" and call.resource == WORKFLOW:
                assert (call.subresource, set(call.body)) == ("status", {"metadata", "status"}), "the status, no more"
            elif call.verb == "patch" and call.subresource == "status":
                assert set(call.body) == {"status"}, "the inventory, no more"
                assert set(call.body["status"]) == {"inventory"}, "the inventory, no more"
                assert set(call.body["status"]["inventory"]) == {"inBand"}, "the inventory, no more"
            elif call.verb == "patch":
                assert (set(call.body), set(call.body["metadata"])) == ({"metadata"}, {"annotations"}), "no more"
        for agent in self._agents:
            await agent.channel.close()
        # gRPC has one queue of what its calls have come to, for all event loops: what it finishes after this one is
        # closed fails in the loop, and the log, of the next test.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            await asyncio.wait(left, timeout=5)

    def agent(self, *, apart: bool = False) -> ScriptedAgent:
        agent = ScriptedAgent(self.server.port, apart=apart)
        self._agents.append(agent)
        return agent

    async def serve(self, state: str | None = None, **settings: Any) -> None:
        """Start with a machine, and with its Workflow in `state`."""
        await self.start(**settings)
        self.machine()
        if state is not None:
            self.workflow(state=state)

    async def connected(self, agent_id: str = MAC, holds: tuple[str, ...] | None = None) -> ScriptedAgent:
        """Return an agent whose stream the server has accepted."""
        agent = self.agent()
        await agent.accepted(agent_id, holds)
        return agent

    def machine(self, name: str = "h", mac: str = MAC, ip: str | None = "127.0.0.1", namespace: str = "d") -> None:
        self.api.put(hardware(name, mac, ip, namespace=namespace))

    def workflow(
        self, name: str = "w", state: str = "Pending", *, hardware: str = "h", created: int = 0, **status: Any
    ) -> None:
        """Put in a prepared Workflow with two actions a0 and a1."""
        begun = "Running" if state in ("Running", "Cancelling") else "Pending"
        status = {"actions": [action("a0", begun), action("a1", name="second")], **status}
        metadata = {"creationTimestamp": f"2027-01-15T07:00:{created:02}Z"}
        self.api.put(workflow(name, state, namespace="d", hardware=hardware, metadata=metadata, **status))

    @property
    def patches(self) -> int:
        """How many patches the server has asked for."""
        return self.api.count("patch")

    def read(self, name: str = "w", resource: ResourceType = WORKFLOW) -> Raw:
        """Return an object as the API has it."""
        found = self.api.read(resource, name, "d")
        assert found is not None
        return found

    def hold(self) -> None:
        """Have patches be carried out, but not answered until `gate` is open."""
        self.gate = self.api.hold("patch")

    def remove(self, name: str = "w", resource: ResourceType = WORKFLOW) -> None:
        self.api.remove(resource, name, "d")

    def set_state(self, name: str, state: str, **status: Any) -> None:
        self.api.change(WORKFLOW, name, "d", status={"state": state, **status})

    def reboots(self, name: str = "w") -> None:
        """Run the last action of the Workflow, which reboots the machine."""
        first, last = self.read(name)["status"]["actions"]
        rebooting = {**last, "state": "Running", "rendered": {**last["rendered"], "reboots": True}}
        self.set_state(name, "Running", actions=[{**first, "state": "Succeeded"}, rebooting])

    def state(self, name: str = "w") -> str:
        state: str = self.read(name)["status"]["state"]
        return state

    def kinds(self) -> list[str]:
        return [str(activity.kind) for activity in self.seen]


FIRST, LONGEST = 5.0, 60.0


class Bench:
    """An EventStore over the rig's API, fed by the rig's informer."""

    def __init__(self, rig: Rig, **options: Any) -> None:
        self.rig = rig
        self.index = WorkflowIndex()
        rig.workflows.add_event_handler(lambda new, _: self.index.apply(new), self.index.remove)
        self.store = EventStore(
            rig.api,
            self.index,
            lambda: rig.now,
            rejection_first=FIRST,
            rejection_longest=LONGEST,
            chance=lambda: 0.0,
            **options,
        )

    @property
    def reads(self) -> int:
        """How often the store has read a Workflow from the API."""
        return self.rig.api.count("get")

    def seen(self, name: str = "w") -> Raw:
        workflow = self.index.get(f"uid-{name}")
        assert workflow is not None
        return workflow

    def status(self, name: str = "w") -> Raw:
        status: Raw = self.rig.read(name)["status"]
        return status

    def taking(self, event: Any, name: str = "w") -> asyncio.Future[bool]:
        return asyncio.ensure_future(self.take(event, name))

    async def take(self, event: Any, name: str = "w") -> bool:
        return await self.store.take(self.seen(name), event)


def parts(
    index: WorkflowIndex,
    events: Any,
    spawn: Callable[[Coroutine[Any, Any, None]], Any],
    *,
    observe: Callable[[AgentActivity], None] = lambda _: None,
    clock: Callable[[], float] = lambda: 0.0,
    **settings: Any,
) -> ServerParts:
    """Return the parts of a server without Hardware. `events` stores the events of the Workflows in `index`."""
    agents = AgentDirectory()
    authorizer = AgentAuthorizer(agents, AgentAuth.NONE, None, clock)
    return ServerParts(ServerSettings(**settings), agents, authorizer, index, events, observe, spawn, clock)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """Not started: the test gives the settings."""
    made = Rig()
    yield made
    await made.close()


def started(action: str, workflow: str = "w") -> pb.Event:
    return pb.Event(workflow_id=f"uid-{workflow}", action_started=pb.Event.ActionStarted(action_id=action))


def succeeded(action: str, workflow: str = "w") -> pb.Event:
    return pb.Event(workflow_id=f"uid-{workflow}", action_succeeded=pb.Event.ActionSucceeded(action_id=action))


def failed(action: str, reason: str, message: str = "m", workflow: str = "w") -> pb.Event:
    event = pb.Event.ActionFailed(action_id=action, failure_reason=reason, failure_message=message)
    return pb.Event(workflow_id=f"uid-{workflow}", action_failed=event)


def rejected(reason: str = "Busy", workflow: str = "w") -> pb.Event:
    event = pb.Event.WorkflowRejected(failure_reason=reason, failure_message="m")
    return pb.Event(workflow_id=f"uid-{workflow}", workflow_rejected=event)


@dataclass(frozen=True)
class Certified:
    """A certificate and its key, in PEM."""

    pem: bytes
    key: bytes


Certify = Callable[..., Certified]


Signer = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def _authority() -> Signer:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    builder = _builder(name, name, key, 60).add_extension(constraints, critical=True)
    return builder.add_extension(AUTHORITY_USAGE, critical=True).sign(key, hashes.SHA256()), key


@pytest.fixture(scope="session")
def authority() -> Signer:
    """The authority that signs the certificates of `certify`."""
    return _authority()


@pytest.fixture(scope="session")
def foreign_authority() -> Signer:
    """One that calls itself as ours does."""
    return _authority()


@pytest.fixture(scope="session")
def certify(authority: Signer) -> Certify:
    """`certify(common="", alternative=[], days=1, begins=-30)`: a certificate that begins and ends in so many days.

    `also` are more extensions; `signer` is who signs it instead of `authority`.
    """

    def make(
        common: str = "",
        alternative: Sequence[x509.GeneralName] = (),
        days: float = 1,
        begins: float = -30,
        also: Sequence[x509.ExtensionType] = (),
        signer: Signer | None = None,
    ) -> Certified:
        issuer, signer_key = signer or authority
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)] if common else [])
        builder = _builder(name, issuer.subject, key, days, begins).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()), critical=False
        )
        if alternative:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternative), critical=not common)
        for extension in also:
            builder = builder.add_extension(extension, critical=False)
        certificate = builder.sign(signer_key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Certified(certificate.public_bytes(serialization.Encoding.PEM), private)

    return make


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float, begins: float = -30
) -> Any:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=begins))
        .not_valid_after(now + timedelta(days=days))
        # Both identifiers, or Python 3.13 trusts no chain (VERIFY_X509_STRICT).
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


@pytest.fixture
def bench(rig: Rig) -> Bench:
    return Bench(rig)
