"""Stores to test with: one in memory that counts what is asked of it, and a server that speaks S3."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import boto3
import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from moto.server import ThreadedMotoServer

BUCKET = "captures"


class Request(NamedTuple):
    """One thing that was asked. nbytes: of the answer."""

    kind: str
    path: str
    nbytes: int = 0


class Counted(MemoryFileSystem):
    """fsspec's store in memory, under ``counted://``. requests: what was asked, in order. failing: paths that fail."""

    protocol = "counted"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    requests: list[Request] = []
    failing: set[str] = set()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("counted://", "memory://"))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **more: Any) -> bytes:
        found = super().cat_file(path, start, end, **more)
        self.requests.append(Request("read", self._strip_protocol(path), len(found)))
        return found

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        self.requests.append(Request("info", self._strip_protocol(path)))
        return super().info(path, **more)

    def put_file(self, lpath: str, rpath: str, *args: Any, **more: Any) -> None:
        if any(part in rpath for part in self.failing):
            raise ConnectionError("the store is full")
        self.requests.append(Request("write", self._strip_protocol(rpath)))
        super().put_file(lpath, rpath, *args, **more)

    def pipe_file(self, path: str, value: bytes, *args: Any, **more: Any) -> None:
        if any(part in path for part in self.failing):
            raise ConnectionError("the store is full")
        self.requests.append(Request("write", self._strip_protocol(path)))
        super().pipe_file(path, value, *args, **more)


@contextlib.contextmanager
def use_counting_store() -> Iterator[type[Counted]]:
    """The counting store, empty."""
    fsspec.register_implementation("counted", Counted, clobber=True)
    for kept in (Counted.store, Counted.requests, Counted.failing):
        kept.clear()
    Counted.pseudo_dirs[:] = [""]
    yield Counted


@contextlib.contextmanager
def serve_s3() -> Iterator[dict[str, str]]:
    """A server with one bucket; yields the environment by which it is found."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        found = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "sesame",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        client = boto3.client(
            "s3",
            endpoint_url=found["AWS_ENDPOINT_URL"],
            aws_access_key_id="someone",
            aws_secret_access_key="sesame",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=BUCKET)
        yield found
    finally:
        server.stop()
