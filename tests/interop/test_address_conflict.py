"""A declined address is shown on the Hardware that the API has, and nothing else of it changes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from edge.machines import ConditionWriter, Inventory
from tests.waiting import PATIENCE_SECONDS
from tink.api.crds import generate
from tink.apiserver import ApiServer
from tink.kube.cache import Informer
from tink.kube.client import KubeClient
from tink.kube.manifests import apply_object
from tink.kube.resources import CRD, HARDWARE

MAC = "52:54:00:12:34:56"
SPEC = {"networkInterfaces": {MAC: {"dhcp": {"ip": "10.0.0.5"}}}}


async def test_conflict_of_a_machine_comes_and_goes_on_its_hardware(tmp_path: Path) -> None:
    api = ApiServer(tmp_path, port=0)
    await api.start()
    client = await KubeClient.connect(api.kubeconfig)
    informer, inventory, writer = Informer(client, HARDWARE), Inventory(), ConditionWriter(client)
    told: list[str] = []
    tasks = []
    try:
        for definition in generate():
            await apply_object(client, CRD, definition, "test")
        await client.create(HARDWARE, {"metadata": {"name": "a", "namespace": "default"}, "spec": SPEC} | KIND)
        informer.add_event_handler(lambda new, _: inventory.apply(new))
        informer.add_event_handler(writer.apply)
        tasks = [asyncio.create_task(informer.run()), asyncio.create_task(writer.run())]
        await asyncio.wait_for(informer.wait_for_cache_sync(), PATIENCE_SECONDS)
        inventory.on_change(told.append)
        machine = inventory.by_mac(MAC)
        assert machine is not None
        writer.changed(machine, "10.0.0.5", time.time() + 600)
        assert await status(informer, "True") == "DeclinedByClient"
        writer.changed(machine, "10.0.0.5", None)
        assert await status(informer, "False") == "QuarantineEnded"
        obj = informer.get("default", "a")
        assert obj is not None
        assert obj["spec"] == {
            "networkInterfaces": {
                MAC: {
                    "dhcp": {"ip": "10.0.0.5", "leaseTimeSeconds": 86400},
                    "disableDhcp": False,
                    "disableNetboot": False,
                }
            }
        }
        assert obj["metadata"]["generation"] == 1
        assert told == [], "no answer of the machine has to be compiled anew"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()
        await api.stop()


KIND = {"apiVersion": HARDWARE.api_version, "kind": HARDWARE.kind}


async def status(informer: Informer, wanted: str) -> str:
    """The reason of the condition, when it has that status."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = ((informer.get("default", "a") or {}).get("status") or {}).get("conditions") or [{}]
            if found[0].get("status") == wanted:
                assert found[0]["type"] == "AddressConflict"
                return str(found[0]["reason"])
            await asyncio.sleep(0.01)
