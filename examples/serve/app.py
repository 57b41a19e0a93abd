"""A small HTTP server for a fine-tuned model: batches, health, limits.

    pip install fastapi uvicorn
    MODEL=runs/cola python -m uvicorn --app-dir examples/serve app:app --port 8000

    curl localhost:8000/predict -H 'content-type: application/json' \
        -d '{"texts": ["The book was written by John."]}'

Needs electra_tf for ``Predictor`` only: requests that arrive together are answered in
one batch, so that many small ones cost little more than a large one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from electra_tf.serving import Predictor

MAX_TEXTS = 64  # of a request
MAX_BYTES = 256 * 1024  # of a request
MAX_WAITING = 1024  # texts that wait before others are refused
BATCH = 32  # texts that are answered together


class Texts(BaseModel):
    """Rows of a request: strings, or objects with the model's text names."""

    texts: list[str | dict[str, str]] = Field(min_length=1, max_length=MAX_TEXTS)


class Batcher:
    """Answers what waits in batches, one batch at a time, in a thread."""

    def __init__(self, predictor: Any):
        self.predictor = predictor
        self.waiting: asyncio.Queue = asyncio.Queue()

    async def answer(self, rows: list[dict[str, str]]) -> list[dict[str, Any]]:
        """Answers of rows, once their batches have had their turn."""
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in rows]
        for item in zip(rows, futures, strict=True):
            self.waiting.put_nowait(item)
        return await asyncio.gather(*futures)

    async def run(self) -> None:
        """Works until it is cancelled."""
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
                # Whoever waits must hear of it; the next batch may be a better one.
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)


def create_app(model: str | None = None) -> FastAPI:
    """The application; ``model`` is by default the environment's MODEL."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        predictor = Predictor(model or os.environ["MODEL"])
        # The first batch is slower: nobody is to wait for it.
        predictor([dict.fromkeys(predictor.text_names, "a text")])
        app.state.batcher = Batcher(predictor)
        task = asyncio.create_task(app.state.batcher.run())
        yield
        task.cancel()

    app = FastAPI(title="electra_tf", lifespan=lifespan)

    @app.middleware("http")
    async def limit(request: Request, proceed: Any) -> Any:
        if request.method == "POST":
            length = request.headers.get("content-length", "")
            if not length.isdigit():
                return JSONResponse({"detail": "content-length is missing"}, 411)
            if int(length) > MAX_BYTES:
                return JSONResponse({"detail": f"over {MAX_BYTES} bytes"}, 413)
        return await proceed(request)

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
                raise HTTPException(422, f"the model wants {' and '.join(names)}")
        return {"predictions": await batcher.answer(rows)}

    return app


app = create_app()
