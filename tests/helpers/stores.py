"""Stores for tests: S3 as moto plays it, on this computer."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def on_s3() -> Iterator[str]:
    """The address of an empty bucket, with fsspec told where it is. Skips where moto or s3fs is
    not installed. Nothing of it is left."""
    pytest.importorskip("s3fs", reason="pip install 'sailor-train[s3]'")
    server = pytest.importorskip("moto.server", reason="pip install 'sailor-train[clouds-dev]'")
    moto = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    moto.start()
    host, port = moto.get_host_and_port()
    said = {
        "FSSPEC_S3_ENDPOINT_URL": f"http://{host}:{port}", "FSSPEC_S3_KEY": "test",
        "FSSPEC_S3_SECRET": "test",
    }  # fmt: skip
    import fsspec
    from fsspec.config import conf, set_conf_env

    before = dict(conf)
    set_conf_env(conf, said)
    try:
        bucket = f"bucket-{uuid.uuid4().hex}"  # moto forgets nothing while the process lives
        fsspec.filesystem("s3").mkdir(bucket)
        yield f"s3://{bucket}"
    finally:
        conf.clear()
        conf.update(before)
        moto.stop()
