"""A stand-in for the Hugging Face Hub on this machine: models, downloads and commits."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

_REPO = r"(?P<repo>[^/]+/[^/]+)"


class Hub:
    """The models of the server, and what clients asked for.

    Attributes:
        models: the files of each model, by name and path.
        requests: the method and the path of each request.
        cut: paths of files that are sent only in part.
        status: status of all answers; 200 for a working server.
        address: the URL of the server.
    """

    def __init__(self) -> None:
        self.models: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []
        self.cut: set[str] = set()
        self.status = 200
        self.address = ""

    def commit(self, name: str) -> str:
        """Returns the id of the only commit of a model, which depends on its content."""
        content = sorted(self.models[name].items())
        return hashlib.sha1(repr(content).encode()).hexdigest()

    def downloads(self) -> list[str]:
        """Returns the names of the files whose content was requested."""
        asked = (request.split(" ") for request in self.requests)
        return sorted(path.split("/", 5)[-1] for method, path in asked
                      if method == "GET" and "/resolve/" in path)  # fmt: skip


@contextlib.contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Keeps the output of the tests clean."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        body = self._body()
        if hub.status != 200:
            return self._send({"error": "not now"}, hub.status)
        if path == "/api/validate-yaml":  # of a model card
            return self._send({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            fields = json.loads(body)
            name = f"{fields['organization']}/{fields['name']}"
            hub.models.setdefault(name, {})
            return self._send({"url": f"{hub.address}/{name}"})
        for pattern, answer in (
            (rf"/api/models/{_REPO}/preupload/[^/]+", self._preupload),
            (rf"/api/models/{_REPO}/commit/[^/]+", self._commit),
            (rf"/api/models/{_REPO}/tree/(?P<commit>[^/]+)", self._tree),
            (rf"/api/models/{_REPO}(/revision/(?P<revision>[^/]+))?", self._info),
            (rf"/{_REPO}/resolve/(?P<commit>[^/]+)/(?P<file>.+)", self._file),
        ):
            found = re.fullmatch(pattern, path)
            if found:
                if found["repo"] not in hub.models:
                    return self._send({}, 404, {"X-Error-Code": "RepoNotFound"})
                return answer(body, **found.groupdict())
        return self._send({"error": path}, 404)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _send(
        self, value: object, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        self._send_bytes(json.dumps(value).encode(), status, headers or {})

    def _send_bytes(
        self, content: bytes, status: int, headers: dict[str, str], is_cut: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if is_cut else content)
        if is_cut:
            self.close_connection = True

    def _info(self, body: bytes, repo: str, revision: str | None = None) -> None:
        if revision not in (None, "main", self.hub.commit(repo)):
            return self._send({}, 404, {"X-Error-Code": "RevisionNotFound"})
        files = [{"rfilename": path} for path in self.hub.models[repo]]
        return self._send({"id": repo, "sha": self.hub.commit(repo), "siblings": files})

    def _tree(self, body: bytes, repo: str, commit: str) -> None:
        self._send([
            {"type": "file", "path": path, "size": len(content), "oid": _oid(content)}
            for path, content in self.hub.models[repo].items()
        ])  # fmt: skip

    def _file(self, body: bytes, repo: str, commit: str, file: str) -> None:
        content = self.hub.models[repo].get(file)
        if content is None:
            return self._send({}, 404, {"X-Error-Code": "EntryNotFound"})
        headers = {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": self.hub.commit(repo)}
        return self._send_bytes(content, 200, headers, is_cut=file in self.hub.cut)

    def _preupload(self, body: bytes, repo: str) -> None:
        files = [
            {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
            for each in json.loads(body)["files"]
        ]
        self._send({"files": files})

    def _commit(self, body: bytes, repo: str) -> None:
        for line in body.splitlines():
            operation = json.loads(line)
            if operation["key"] == "file":
                value = operation["value"]
                self.hub.models[repo][value["path"]] = base64.b64decode(value["content"])
        commit = self.hub.commit(repo)
        url = f"{self.hub.address}/{repo}/commit/{commit}"
        self._send({"success": True, "commitOid": commit, "commitUrl": url})


def _oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
