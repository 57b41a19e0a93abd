import asyncio
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest

from electra_tf.serving import Predictor
from tests.examples.common import load
from tests.golden.archive import unpack

testclient = pytest.importorskip("fastapi.testclient")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    model = unpack("runs", tmp_path_factory.mktemp("golden")) / "task"
    module = load("serve/app.py")
    with testclient.TestClient(module.create_app(str(model))) as client:
        yield module, client, Predictor(str(model))


def test_answers_are_those_of_the_model(served):
    _, client, predictor = served
    texts = ["a large thing", "", "the small one"]
    found = client.post("/predict", json={"texts": texts}).json()["predictions"]
    for answer, text in zip(found, texts, strict=True):
        (expected,) = predictor([{"text": text}])
        assert answer["label"] == expected["label"]
        assert answer["probability"] == pytest.approx(expected["probability"], abs=1e-5)
    health = {"status": "ok", "texts": ["text"], "waiting": 0}
    assert client.get("/health").json() == health


def test_requests_that_come_together_share_batches(served, monkeypatch):
    _, client, _ = served
    batcher = client.app.state.batcher
    model = mock.Mock(wraps=batcher.predictor, text_names=("text",))
    monkeypatch.setattr(batcher, "predictor", model)

    def ask(number):
        texts = [f"text {number}"] * 5
        return client.post("/predict", json={"texts": texts}).json()["predictions"]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(16)))
    assert [len(each) for each in answers] == [5] * 16
    sizes = [len(call.args[0]) for call in model.call_args_list]
    assert sum(sizes) == 80
    assert 5 < max(sizes) <= 32


@pytest.mark.parametrize(
    "body",
    [
        b'{"texts": []}',
        b'{"texts": [%s]}' % b", ".join([b'"a"'] * 65),
        b'{"texts": [{"txt": "a"}]}',
        b'{"text": "a"}',
        b'{"texts": [NaN]}',
        b'{"texts": [1e999]}',
        b'{"texts": [{"\\ud800": 1}]}',
        b'{"texts": ["\\ud800", -Infinity]}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_requests_that_are_not_texts_are_the_clients_mistake(served, body):
    _, client, _ = served
    headers = {"content-type": "application/json"}
    found = client.post("/predict", content=body, headers=headers)
    assert found.status_code in (400, 422)
    assert found.json()["detail"]


def request(app, messages, headers=()):
    """Posts a body; returns the status and the number of messages read."""
    statuses, waiting = [], iter(messages)
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/predict",
        "raw_path": b"/predict",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), *headers],
    }
    read = []

    async def receive():
        message = next(waiting, None)
        if message is None:
            await asyncio.sleep(60)
        read.append(message)
        return {"type": "http.request", "body": message, "more_body": True}

    async def send(message):
        statuses.append(message.get("status"))

    asyncio.run(app(scope, receive, send))
    return statuses[0], len(read)


def test_bytes_are_counted_as_they_arrive(served):
    """A chunked body may have a wrong content-length or no end."""
    _, client, _ = served
    assert client.post("/predict", json={"texts": ["a" * 300_000]}).status_code == 413
    chunks = (b" " * 65_536 for _ in range(10**6))
    announced = [(b"content-length", b"5"), (b"transfer-encoding", b"chunked")]
    assert request(client.app, chunks, announced) == (413, 5)


def test_slow_bodies_are_given_up(served, monkeypatch):
    module, client, _ = served
    monkeypatch.setattr(module, "MAX_SECONDS", 0.05)
    assert request(client.app, [b'{"texts": ["a']) == (408, 1)


def test_a_full_queue_is_said(served, monkeypatch):
    module, client, _ = served
    monkeypatch.setattr(module, "MAX_WAITING", 1)
    found = client.post("/predict", json={"texts": ["a", "b"]})
    assert found.status_code == 503
    assert found.headers["retry-after"] == "1"


def test_a_failure_is_told_to_whoever_waits(served, monkeypatch):
    _, client, _ = served

    broken = mock.Mock(side_effect=ValueError("no answer"), text_names=("text",))
    monkeypatch.setattr(client.app.state.batcher, "predictor", broken)
    with pytest.raises(ValueError, match="no answer"):
        client.post("/predict", json={"texts": ["a"]})
    monkeypatch.undo()
    assert client.post("/predict", json={"texts": ["a"]}).status_code == 200
