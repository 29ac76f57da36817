"""A client of an application in this process: no network."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx
from fastapi import FastAPI

Result = TypeVar("Result")


def completed(call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """What a coroutine gives, in a thread of its own: in this one a browser's loop may be running already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(call())).result()


class LocalClient:
    """Every request has an event loop of its own, so that several threads may ask."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.request(method, path, **options)

        return completed(ask)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)
