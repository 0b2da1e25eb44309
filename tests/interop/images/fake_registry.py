"""A small HTTP server on loopback that plays what a real registry does on bad days: asks for tokens, breaks
connections, redirects, lies. And what a test pulls from it, or fails to."""

import asyncio
import contextlib
import hashlib
import http.server
import io
import json
import tarfile
import threading

import pytest

from tests.waiting import PATIENCE_SECONDS
from tink.agent.model import ActionError


async def pull(store, image, stop=None):
    await asyncio.wait_for(store.pull(image, stop or asyncio.Event()), PATIENCE_SECONDS)
    return store.get(image)


async def refusal(store, image):
    """The message with which the pull of `image` fails; nothing of it may stay."""
    with pytest.raises(ActionError) as caught:
        await pull(store, image)
    assert caught.value.reason == "ImagePullFailed"
    assert str(caught.value).startswith(f"image {image}: ")
    assert list(store.work.iterdir()) == []
    return str(caught.value)


def tar(**files):
    buffer = io.BytesIO()
    with tarfile.TarFile(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def digest_of(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


class FakeRegistry:
    """Serves `paths` (path -> status, headers, body). `hooks` (path -> function of the handler) come first.

    `requests` lists path and headers of what was asked.
    """

    def __init__(self):
        self.paths, self.hooks, self.requests = {}, {}, []
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments):
                pass

            def do_GET(self):
                path = self.path.partition("?")[0]
                fake.requests.append((self.path, dict(self.headers)))
                if path in fake.hooks and fake.hooks[path](self):
                    return
                status, headers, body = fake.paths.get(path, (404, {}, b'{"errors": [{"code": "NAME_UNKNOWN"}]}'))
                self.reply(status, headers, body)

            def reply(self, status, headers, body):
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # who asked has hung up
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def image(self, layer=None, *, name="x", tag="1", config=b'{"architecture": "amd64"}', **manifest):
        """Put an image of one layer there; the paths of its manifest, configuration and layer."""
        layer = tar(file=b"content") if layer is None else layer
        document = {
            "schemaVersion": 2,
            "config": {"digest": digest_of(config), "size": len(config)},
            "layers": [{"digest": digest_of(layer), "size": len(layer)}],
            **manifest,
        }
        body = json.dumps(document).encode()
        paths = [f"/v2/{name}/manifests/{tag}"]
        self.paths[paths[0]] = (200, {"Content-Type": "application/vnd.oci.image.manifest.v1+json"}, body)
        self.paths[f"/v2/{name}/manifests/{digest_of(body)}"] = self.paths[paths[0]]
        for content in (config, layer):
            paths.append(f"/v2/{name}/blobs/{digest_of(content)}")
            self.paths[paths[-1]] = (200, {}, content)
        return [*paths, digest_of(body)]

    def breaks(self, path, content, lengths):
        """Break the next answers to `path` off after so many bytes of the range asked for; the offsets of these."""
        begun, lengths = [], list(lengths)

        def answer(handler):
            if not lengths:
                return False
            offset = int(handler.headers.get("Range", "bytes=0-")[6:-1])
            begun.append(offset)
            span = {"Content-Range": f"bytes {offset}-{len(content) - 1}/{len(content)}"} if offset else {}
            headers = {"Content-Length": str(len(content) - offset), **span}
            handler.reply(206 if offset else 200, headers, content[offset : offset + lengths.pop()])
            handler.close_connection = True
            return True

        self.hooks[path] = answer
        return begun
