"""Container images, by skopeo: from registries, OCI layouts, archives and engines into one OCI layout, which is kept.

What an earlier run has brought is not fetched again (skopeo looks for blobs by their digests), so that a download that
was interrupted goes on at the layer where it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edge.artifacts import Descriptor, ImageLayout, LayoutError, is_name
from edge.bundle.manifest import BundleError
from edge.bundle.sources.shell import run
from tink.agent.images import parse
from tink.agent.model import ActionError
from tink.registry import host_of

ALL = "all"
_TRANSPORTS = ("containers-storage:", "dir:", "docker:", "docker-archive:", "docker-daemon:", "oci:", "oci-archive:")
_POLICIES = (Path.home() / ".config/containers/policy.json", Path("/etc/containers/policy.json"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """An image: as machines ask for it (`repository:tag`), and where skopeo finds it (containers-transports(5))."""

    name: str
    source: str

    @classmethod
    def of(cls, text: str) -> Wanted:
        """`REF`, or `NAME:TAG=TRANSPORT:...`, or `NAME:TAG=REF`. Raises BundleError."""
        name, given, source = text.partition("=")
        if not given:
            name, source = "", text
        if not source.startswith(_TRANSPORTS):
            try:
                reference = parse(source)
            except ActionError as error:
                raise BundleError(f"--image {text}: {error}") from error
            tag = reference.tag
            if reference.digest and not given:
                raise BundleError(f"--image {text}: give it a name: --image NAME:TAG={source}")
            name = name or f"{reference.path}:{tag}"
            source = f"docker://{source}"
        elif not given:
            raise BundleError(f"--image {text}: give it a name, as Templates will have it: --image NAME:TAG={source}")
        if not is_name(name):
            raise BundleError(f"--image {text}: {name!r} is no repository:tag in lower case")
        return cls(name, source)


def fetch(wanted: Wanted, layout: Path, *, platform: str, insecure: Iterable[str]) -> Descriptor:
    """Have an image in the layout. `platform`: a processor (`amd64`), or all. Raises BundleError, OSError."""
    layout.mkdir(parents=True, exist_ok=True)
    which = ["--multi-arch", "all"] if platform == ALL else []
    chosen = ["--override-os", "linux"] + (["--override-arch", platform] if platform != ALL else [])
    policy = [] if any(path.exists() for path in _POLICIES) else ["--insecure-policy"]  # skopeo wants one of the two
    is_plain = any(wanted.source.startswith(f"docker://{host_of(host)}/") for host in insecure)
    plain = ["--src-tls-verify=false"] if is_plain else []
    command = ["skopeo", *policy, *chosen, "copy", "--quiet", "--retry-times", "3", *which, *plain]
    try:
        run([*command, wanted.source, f"oci:{layout}:{wanted.name}"], what=f"image {wanted.name}", package="skopeo")
    except BundleError as error:
        host = wanted.source.removeprefix("docker://").partition("/")[0]
        if "x509:" in str(error):
            place = f"/etc/containers/certs.d/{host}/ca.crt"
            raise BundleError(
                f"{error}\nput the certificate that signs its own into {place}, or --insecure-registry {host}"
            ) from error
        if "HTTP response to HTTPS client" not in str(error):
            raise
        raise BundleError(
            f"{error}\nit speaks plain HTTP: --insecure-registry {host}, if you trust the way there"
        ) from error
    try:
        return ImageLayout(layout).images()[wanted.name]
    except (LayoutError, KeyError) as error:
        raise BundleError(f"image {wanted.name}: what skopeo has made in {layout} can't be read: {error}") from error
