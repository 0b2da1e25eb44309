"""Which manifest of an index is a machine's, and what indexes may not do."""

import hashlib
import json

import pytest

from tink.registry.manifests import DigestError, is_made_for, own_platform, resolve
from tink.registry.names import RegistryError

IMAGE = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
ATTESTATION = {"vnd.docker.reference.type": "attestation-manifest"}


class Site:
    """A registry in memory: documents by tag or digest."""

    def __init__(self):
        self.documents, self.read = {}, []

    def add(self, document, tag=""):
        content = json.dumps(document).encode()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.documents[digest] = self.documents[tag or digest] = content
        return digest

    def image(self, name, **config):
        digest = self.add({"name": name, **config})
        return self.add({"schemaVersion": 2, "name": name, "config": {"digest": digest}, "layers": []})

    def get(self, version):
        self.read.append(version)
        return self.documents[version]

    def entry(self, what):
        """A descriptor of `what`: a platform, or a platform and what the descriptor has besides; or an index."""
        if isinstance(what, list):
            return {"mediaType": INDEX, "digest": self.add(self.index(*what))}
        on, more = (what, {}) if isinstance(what, str) else what
        system, _, rest = on.partition("/")
        architecture, _, variant = rest.partition("/")
        named = {"os": system, "architecture": architecture, **({"variant": variant} if variant else {})}
        if more.pop("configured", False):
            return {"mediaType": IMAGE, "digest": self.image(on, **named), **more}
        return {"mediaType": IMAGE, "digest": self.image(on), "platform": named, **more}

    def index(self, *entries):
        return {"schemaVersion": 2, "mediaType": INDEX, "manifests": [self.entry(each) for each in entries]}

    def resolve(self, *entries, own="amd64", **more):
        self.add(self.index(*entries), "tag")
        return resolve("tag", self.get, self.get, own=own, **more)[1]["name"]


@pytest.fixture
def site():
    return Site()


def configured(on):
    return on, {"configured": True}


V4 = "linux/amd64/v4"


@pytest.mark.parametrize(
    ("own", "entries", "chosen"),
    [
        ("amd64/v4", [V4, "linux/amd64"], "linux/amd64"),
        ("amd64", [V4, "linux/amd64/v1"], "linux/amd64/v1"),
        ("amd64/v3", [V4, "linux/amd64/v2", "linux/amd64/v3"], "linux/amd64/v3"),
        ("amd64", ["linux/386", "linux/amd64"], "linux/amd64"),
        ("amd64", ["linux/arm64", "linux/386"], "linux/386"),
        ("amd64", ["linux/x86_64"], "linux/x86_64"),
        ("amd64", ["windows/amd64", "Linux/AMD64"], "Linux/AMD64"),
        ("amd64", ["linux/amd64", "linux/amd64/v1"], "linux/amd64"),
        ("arm64", ["linux/arm/v7", "linux/arm64/v8"], "linux/arm64/v8"),
        ("arm64", ["linux/arm64/v9", "linux/aarch64"], "linux/aarch64"),
        ("arm64", ["linux/arm/v5", "linux/arm/v7"], "linux/arm/v7"),
        ("arm/v7", ["linux/arm/v6", "linux/arm/v8", "linux/arm"], "linux/arm"),
        ("arm/v7", ["linux/arm/v8", "linux/arm/v5", "linux/arm/6"], "linux/arm/6"),
        ("arm/v6", ["linux/arm/v7", "linux/arm/v6"], "linux/arm/v6"),
        ("386", ["linux/amd64", "linux/i386"], "linux/i386"),
        ("riscv64", ["linux/amd64", "linux/riscv64"], "linux/riscv64"),
        ("amd64", [configured("linux/arm64"), configured("linux/amd64")], "linux/amd64"),
        ("amd64", [configured("linux/arm64"), "linux/amd64"], "linux/amd64"),
        ("amd64", [["linux/arm64"], [["linux/amd64"]]], "linux/amd64"),
        ("amd64", [[configured("linux/amd64")], "linux/386"], "linux/amd64"),
        ("amd64", ["unknown/unknown", "linux/386", ("linux/amd64", {"annotations": ATTESTATION})], "linux/386"),
        ("amd64", [("linux/amd64", {"mediaType": "application/x-new"}), ("linux/amd64/v1", {"mediaType": ""})],
         "linux/amd64/v1"),
        ("amd64", [("linux/amd64", {"platform": None})], "linux/amd64"),
        ("amd64", [("windows/amd64", {"platform": {"os": "windows"}}), "linux/amd64"], "linux/amd64"),
    ],
)  # fmt: skip
def test_manifest_is_the_one_that_containerd_takes(site, own, entries, chosen):
    assert site.resolve(*entries, own=own) == chosen


def test_entry_of_another_machine_is_not_even_read(site):
    site.resolve("linux/arm64", ["linux/amd64"], "linux/amd64", configured("linux/amd64"))
    assert len(site.read) == 2


def nested(depth):
    entries = ["linux/amd64"]
    for _ in range(depth):
        entries = [entries]
    return entries


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["linux/arm64", "windows/amd64"], "for this machine, linux/amd64; there is linux/arm64, windows/amd64"),
        ([V4], "there is linux/amd64/v4"),
        ([], "nothing that says for which"),
        ([("unknown/unknown", {}), ("linux/amd64", {"annotations": ATTESTATION})], "nothing that says"),
        ([("a/", {"platform": None}), ("b/", {"platform": 7})], "nothing that says for which"),
        (nested(5), "more than 4 deep"),
        ([configured(f"linux/mips{number}") for number in range(100)], "more than 64 documents"),
        ([nested(5)] * 100, "deep"),
    ],
)
def test_index_without_a_manifest_for_this_machine_or_without_end_is_refused(site, entries, message):
    with pytest.raises(RegistryError, match=message):
        site.resolve(*entries)


def test_document_that_is_image_and_index_is_refused(site):
    for document in ({"manifests": [], "layers": []}, {"manifests": [], "mediaType": IMAGE}, {"mediaType": LIST}):
        site.add(document, "tag")
        with pytest.raises(RegistryError, match="image and as an index"):
            resolve("tag", site.get, site.get, own="amd64")


def test_bytes_with_another_digest_are_refused_at_each_step(site):
    config = site.add({"os": "linux", "architecture": "amd64"})
    manifest = site.add({"config": {"digest": config}, "layers": []})
    index = site.add({"manifests": [{"digest": manifest}]})
    assert resolve(index, site.get, site.get, own="amd64")[0] == manifest
    for digest in (config, manifest, index):
        with pytest.raises(DigestError, match=f"{digest}: what the registry sent"):
            resolve(index, lambda version, bad=digest: site.get(version) + b" " * (version == bad),
                    lambda version, bad=digest: site.get(version) + b" " * (version == bad), own="amd64")  # fmt: skip


def test_disk_image_may_be_of_any_system_and_two_for_one_processor_are_not_chosen_among(site):
    assert site.resolve("linux/arm64", "windows/amd64", for_disk=True) == "windows/amd64"
    with pytest.raises(RegistryError, match="has 2 manifests for amd64: name one by its digest"):
        site.resolve("linux/amd64", "windows/amd64", for_disk=True)


@pytest.mark.parametrize(
    ("machine", "flags", "own"),
    [
        ("x86_64", "", "amd64"),
        ("x86_64", "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx", "amd64/v2"),
        ("aarch64", "", "arm64"),
        ("armv7l", "", "arm/v7"),
        ("armv6l", "", "arm/v6"),
        ("i686", "", "386"),
        ("riscv64", "", "riscv64"),
    ],
)
def test_machine_is_known_by_gos_name_of_its_processor(monkeypatch, machine, flags, own):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("pathlib.Path.read_text", lambda path: f"processor: 0\nflags\t\t: fpu {flags}\nflags: x\n")
    assert own_platform() == own
    assert is_made_for(own, {})
    assert is_made_for(own, {"architecture": machine})
    assert not is_made_for(own, {"architecture": "s390x"})
