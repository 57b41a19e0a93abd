"""A small HTTP server for a fine-tuned model: batches, health, limits.

    pip install fastapi uvicorn
    MODEL=runs/cola python -m uvicorn --app-dir examples/serve app:app --port 8000

    curl localhost:8000/predict -H 'content-type: application/json' \
        -d '{"texts": ["The book was written by John."]}'

Uses only ``Predictor`` of electra_tf. Concurrent requests share a batch, so many small
requests cost little more than a large one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from electra_tf.serving import Predictor

MAX_TEXTS = 64  # of a request
MAX_BYTES = 256 * 1024  # of a request
MAX_SECONDS = 10  # until the last byte of a request has arrived
MAX_WAITING = 1024  # texts in the queue; more requests are refused
BATCH = 32  # texts in one call of the model


class Texts(BaseModel):
    """Rows of a request: strings, or objects with the model's text names."""

    texts: list[str | dict[str, str]] = Field(min_length=1, max_length=MAX_TEXTS)


class LimitedBody:
    """ASGI middleware: reads a request's body, up to a size and within a time.

    It counts the received bytes, since Content-Length may be wrong or missing.
    """

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Passes the request on, or refuses it with 408 or 413."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body, is_complete, refusal = bytearray(), False, None
        try:
            async with asyncio.timeout(MAX_SECONDS):
                while not is_complete and len(body) <= MAX_BYTES:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    body += message.get("body", b"")
                    is_complete = not message.get("more_body", False)
        except TimeoutError:
            refusal = 408, f"no complete request within {MAX_SECONDS} s"
        if len(body) > MAX_BYTES:
            refusal = 413, f"over {MAX_BYTES} bytes"
        if refusal:
            status, detail = refusal
            close = {"connection": "close"}
            await JSONResponse({"detail": detail}, status, close)(scope, receive, send)
            return
        whole = [{"type": "http.request", "body": bytes(body)}]

        async def replay() -> Any:
            return whole.pop() if whole else await receive()

        await self.app(scope, replay, send)


class Batcher:
    """Answers queued texts in batches, one batch at a time, in a thread."""

    def __init__(self, predictor: Any):
        self.predictor = predictor
        self.waiting: asyncio.Queue = asyncio.Queue()

    async def answer(self, rows: list[dict[str, str]]) -> list[dict[str, Any]]:
        """Queues rows and returns their answers."""
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in rows]
        for item in zip(rows, futures, strict=True):
            self.waiting.put_nowait(item)
        return await asyncio.gather(*futures)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            batch = [await self.waiting.get()]
            while len(batch) < BATCH and not self.waiting.empty():
                batch.append(self.waiting.get_nowait())
            rows = [row for row, _ in batch]
            try:
                answers = await asyncio.to_thread(self.predictor, rows)
                for (_, future), answer in zip(batch, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)
            except Exception as error:
                # Fails only the requests of this batch.
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)


def create_app(model: str | None = None) -> FastAPI:
    """Returns the application; ``model`` defaults to the environment's MODEL."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        predictor = Predictor(model or os.environ["MODEL"])
        # The first call is slower.
        predictor([dict.fromkeys(predictor.text_names, "a text")])
        app.state.batcher = Batcher(predictor)
        task = asyncio.create_task(app.state.batcher.run())
        yield
        task.cancel()

    app = FastAPI(title="electra_tf", lifespan=lifespan)

    app.add_middleware(LimitedBody)

    @app.exception_handler(RequestValidationError)
    async def refuse(request: Request, error: RequestValidationError) -> Response:
        # Omits the input: it may hold NaN and lone surrogates, which a response cannot.
        detail = [{"loc": each["loc"], "msg": each["msg"]} for each in error.errors()]
        content = json.dumps({"detail": detail})
        return Response(content, 422, media_type="application/json")

    @app.get("/health")
    async def health() -> dict[str, Any]:
        batcher = app.state.batcher
        names = batcher.predictor.text_names
        return {"status": "ok", "texts": names, "waiting": batcher.waiting.qsize()}

    @app.post("/predict")
    async def predict(request: Texts) -> dict[str, Any]:
        batcher = app.state.batcher
        if batcher.waiting.qsize() + len(request.texts) > MAX_WAITING:
            raise HTTPException(503, "too many texts wait", {"Retry-After": "1"})
        names = batcher.predictor.text_names
        rows = [{names[0]: x} if isinstance(x, str) else x for x in request.texts]
        for row in rows:
            if set(row) != set(names):
                raise HTTPException(422, f"the model needs {' and '.join(names)}")
        return {"predictions": await batcher.answer(rows)}

    return app


app = create_app()
