import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest

from tests.interop.models import GOLDEN, assert_same
from tests.interop.test_convert import refused, run, written_in
from tests.interop.test_hugging_face import read

COMMIT = "0123456789abcdef" * 2 + "01234567"
PUSH = ("--format=hugging_face", "--push_to_hub=someone/electra-tiny")


class Hub(BaseHTTPRequestHandler):
    """The hub's HTTP API to push and load; only the token ``good`` may write."""

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

    def do_POST(self):
        server, path = self.server, unquote(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.headers.get("Authorization") != "Bearer good":
            self.answer({"error": "Invalid username or password."}, 401)
        elif path == "/api/repos/create":
            asked = json.loads(body)
            url = {"url": f"{server.url}/someone/{asked['name']}"}
            is_new = server.private is None
            if is_new:
                is_private = asked.get("visibility") == "private"
                server.private = asked.get("private", is_private)
            self.answer(url, 200 if is_new else 409)
        elif path == "/api/validate-yaml":
            # Validates the metadata of a model card.
            self.answer({"errors": [], "warnings": []})
        elif path.endswith("/preupload/main"):
            mode = {"uploadMode": "regular", "shouldIgnore": False}
            paths = [file["path"] for file in json.loads(body)["files"]]
            self.answer({"files": [{"path": path, **mode} for path in paths]})
        elif path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    value = line["value"]
                    server.files[value["path"]] = base64.b64decode(value["content"])
            url = f"{server.url}/someone/electra-tiny/commit/{COMMIT}"
            self.answer({"success": True, "commitOid": COMMIT, "commitUrl": url})
        else:
            self.answer({"error": path}, 404)

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
            answer = {"id": "x/y", "sha": COMMIT, "private": self.server.private}
            self.answer({**answer, "siblings": siblings})
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
    server.files, server.private = {}, None
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
    monkeypatch.setenv("HF_TOKEN", "good")
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_what_is_pushed_comes_back_by_name(hub, tmp_path):
    out = tmp_path / "out"
    said = run(GOLDEN / "equal", out, *PUSH, "--private")
    assert f"uploaded to {hub.url}/someone/electra-tiny" in said
    assert hub.private is True
    assert hub.files == {name: (out / name).read_bytes() for name in written_in(out)}
    run("someone/electra-tiny", tmp_path / "back")
    assert_same(read("someone/electra-tiny"), read(GOLDEN / "equal"))


def test_a_refusal_says_what_is_left_to_do(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "bad")
    message = refused(GOLDEN / "equal", tmp_path / "out", *PUSH)
    for text in ("cannot upload", "401", "hf auth login"):
        assert text in message
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert not hub.files


def test_a_public_repository_gets_nothing_private(hub, tmp_path):
    hub.private = False
    message = refused(GOLDEN / "equal", tmp_path / "out", *PUSH, "--private")
    assert "someone/electra-tiny exists and is public" in message
    assert not hub.files
