"""Runs inside a machine, with the Python modules of its cloud-init: crawls metadata as DataSourceEc2 does.

Reads from the file in its argument a JSON list of objects with "url" (an entry of `metadata_urls`), "address" (the
address to ask from, so that one process can be many machines) and, if it is not to be false, "strict_id"; prints a JSON
list of what came of each.
"""

import json
import logging
import socket
import sys
import tempfile
from pathlib import Path

import requests
from cloudinit import distros, helpers, url_helper
from cloudinit.sources import DataSourceEc2

asked = []
address = ""
_Socket = socket.socket
_request = requests.Session.request


class Socket(_Socket):
    def connect(self, peer):
        self.bind((address, 0))
        return super().connect(peer)


def request(session, **arguments):
    response = _request(session, **arguments)
    asked.append(f"{arguments['method']} {arguments['url']} {response.status_code}")
    return response


class Warnings(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def crawl(url, strict_id):
    warnings = Warnings()
    logging.getLogger().handlers = [warnings]
    del asked[:]
    directory = tempfile.mkdtemp()
    paths = helpers.Paths({"cloud_dir": directory, "run_dir": directory})
    distro = distros.fetch("debian")("debian", {}, paths)
    settings = {"metadata_urls": [url], "strict_id": strict_id, "max_wait": 1, "timeout": 5}
    source = DataSourceEc2.DataSourceEc2({"datasource": {"Ec2": settings}}, distro, paths)
    found = source.get_data()
    if not found:
        return {"found": False, "asked": list(asked), "warnings": warnings.messages}
    hostname = source.get_hostname()
    userdata = source.get_userdata_raw()
    return {
        "found": True,
        "instance-id": source.get_instance_id(),
        "hostname": getattr(hostname, "hostname", hostname),
        "keys": sorted(source.get_public_ssh_keys()),
        "metadata": source.metadata,
        "user-data": userdata if isinstance(userdata, str) else userdata.decode("latin-1"),
        "network": source.network_config,
        "asked": list(asked),
        "warnings": warnings.messages,
    }


# What is not there does not come by waiting: on Amazon's machines it asks six times for what only Amazon has.
url_helper.time.sleep = lambda seconds: None
socket.socket = Socket
requests.Session.request = request
answers = []
for case in json.loads(Path(sys.argv[1]).read_text()):
    address = case["address"]
    try:
        answers.append(crawl(case["url"], case.get("strict_id", False)))
    except Exception as error:
        answers.append({"found": False, "error": repr(error), "asked": list(asked)})
print(json.dumps(answers))
