import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest

from tests.interop.models import GOLDEN, assert_same
from tests.interop.test_convert import run, written_in
from tests.interop.test_hugging_face import read

COMMIT = "0123456789abcdef" * 2 + "01234567"


class Hub(BaseHTTPRequestHandler):
    """The hub's HTTP API to load files."""

    def log_message(self, *args):
        pass

    def answer(self, body=b"", status=200, **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        headers.setdefault("Content-Length", str(len(body)))
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
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_export_comes_back_by_name(hub, tmp_path):
    out = tmp_path / "out"
    run(GOLDEN / "equal", out, "--format=hugging_face")
    hub.files = {name: (out / name).read_bytes() for name in written_in(out)}
    run("someone/electra-tiny", tmp_path / "back")
    assert_same(read("someone/electra-tiny"), read(GOLDEN / "equal"))
