"""Measures a running server under load: requests per second and latencies.

python load_test.py [--url=http://localhost:8000] [--clients=8] [--requests=400]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

import httpx

TEXT = "The book that was written by John is on the table beside the window."


async def main() -> None:
    """Sends requests of one text each and prints rate and latencies."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://localhost:8000")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=400)
    options = parser.parse_args()
    if not 1 <= options.clients < options.requests:
        parser.error("give at least one client, and more requests than clients")
    took: list[float] = []

    async def client(session: httpx.AsyncClient, count: int) -> None:
        for _ in range(count):
            began = time.perf_counter()
            answer = await session.post("/predict", json={"texts": [TEXT]})
            answer.raise_for_status()
            took.append(time.perf_counter() - began)

    async with httpx.AsyncClient(base_url=options.url, timeout=60) as session:
        await client(session, 10)
        took.clear()
        began = time.perf_counter()
        share = options.requests // options.clients
        await asyncio.gather(*(client(session, share) for _ in range(options.clients)))
        seconds = time.perf_counter() - began
    quantiles = statistics.quantiles(took, n=100)
    print(
        f"{options.clients} clients: {len(took) / seconds:.0f} texts/s, median "
        f"{1000 * quantiles[49]:.1f} ms, 95 % {1000 * quantiles[94]:.1f} ms"
    )


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except httpx.HTTPError as error:
        raise SystemExit(f"error: {error}: is a server running at --url?") from None
