"""Loading from the hub with its own client, against a local server."""

import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest

from tests.interop.models import GOLDEN, same
from tests.interop.test_convert import refused, run
from tests.interop.test_hugging_face import read

COMMIT = "0123456789abcdef" * 2 + "01234567"


class Hub(BaseHTTPRequestHandler):
    """The calls of the hub's HTTP API that load a model."""

    def log_message(self, *args):
        pass

    def answer(self, body, status=200, **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        path = unquote(self.path).partition("?")[0]
        files = self.server.files
        name = path.rpartition(f"/resolve/{COMMIT}/")[2]
        if "/api/models/someone/electra-tiny/tree/" in path:
            listed = [
                {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                for name, content in files.items()
            ]
            self.answer(listed)
        elif path.startswith("/api/models/someone/electra-tiny"):
            siblings = [{"rfilename": name} for name in files]
            self.answer({"id": "x/y", "sha": COMMIT, "siblings": siblings})
        elif name in files:
            etag = f'"{hashlib.sha256(files[name]).hexdigest()}"'
            self.answer(files[name], ETag=etag, X_Repo_Commit=COMMIT)
        else:
            self.answer({"error": "not found"}, 404, X_Error_Code="EntryNotFound")

    do_HEAD = do_GET


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with a pair of networks."""
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    url = f"http://127.0.0.1:{server.server_port}"
    server.files = {
        path.relative_to(GOLDEN / "equal").as_posix(): path.read_bytes()
        for path in (GOLDEN / "equal").rglob("*")
        if path.is_file()
    }
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_model_of_the_hub_is_loaded_by_name(hub, tmp_path):
    run("someone/electra-tiny", tmp_path / "back")
    assert same(read("someone/electra-tiny"), read(GOLDEN / "equal"))


def test_without_the_client_a_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    said = refused("someone/electra-tiny", tmp_path / "out")
    assert "needs the package huggingface_hub: pip install" in said
    assert not (tmp_path / "out").exists()
