"""What is looked at before a run touches anything: the cloud, and the port it was told to use."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import socket
import threading
from contextlib import suppress

import psutil

from actions.account import EXTRA
from actions.domain import HERE
from provision.hosts import rents_hosts
from sailor.addresses import bare, is_loopback
from sailor.checkpoint.files import children, is_remote, place
from sailor.config import Config, ControllerPlace
from sailor.errors import CloudError, ConfigError, DataError

_STORES = {"aws": "s3://BUCKET/RUN", "gcp": "gs://BUCKET/RUN", "azure": "abfs://CONTAINER/RUN"}
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "abfs": "azure", "az": "azure"}
_STORE_S = 30.0  # for a store's first answer


def check_cloud(config: Config) -> None:
    """Raise SailorError where a cloud's machines cannot be rented, reached or saved from here.

    E406 SkyPilot is not installed, E407 machines could not reach the controller, E408 there is no
    place for durable checkpoints that machines and controller share.
    """
    cloud = config.cloud
    if cloud.name in HERE:
        return
    if importlib.util.find_spec("sky") is None:
        raise CloudError(
            f"machines of cloud={cloud.name} cannot be rented from here",
            code="E406",
            why="SkyPilot, which rents them, is not installed in this environment; planning does "
            "without",
            where=f"cloud={cloud.name}",
            fix=f"{EXTRA}\naction=plan cloud={cloud.name}   shows what it would cost",
        )
    check_reach(config)


def check_reach(config: Config) -> None:
    """Raise ConfigError where a cloud's machines could not dial in (E407) or save (E408)."""
    cloud, runtime = config.cloud, config.runtime
    here = cloud.controller is ControllerPlace.here  # else its machine's own address is dialled
    if here and (
        runtime.address is None or (is_loopback(runtime.host) and not is_loopback(runtime.address))
    ):
        raise ConfigError(
            f"machines of cloud={cloud.name} could not reach this computer",
            code="E407",
            why="they dial the controller, which runs here and listens on "
            f"{runtime.host}; their address for it is {runtime.address or 'not said'}",
            where=f"runtime.host={runtime.host} runtime.address={runtime.address or 'null'}",
            fix="runtime.host=0.0.0.0 runtime.port=PORT runtime.address=ADDRESS   where machines "
            "may dial ADDRESS:PORT"
            + "\ncloud.controller=cluster   gives the controller a machine of its own there"
            * rents_hosts(cloud.name),
        )
    if config.checkpoint.directory is None and not cloud.shared_files:
        raise ConfigError(
            f"cloud={cloud.name} has no place for durable checkpoints",
            code="E408",
            why="machines write them and the controller here completes them: both must see the "
            "folder",
            where="checkpoint.directory=null cloud.shared_files=false",
            fix="checkpoint.directory=/SHARED/FOLDER   on a file system that both mount"
            f"\ncheckpoint.directory={_STORES.get(cloud.name, 's3://BUCKET/RUN')}   in a store",
        )


def check_checkpoints(config: Config) -> None:
    """Ask a store, while nothing is rented yet, whether it can take durable checkpoints.

    Raises ConfigError: E605 its package is not installed, E104 fsspec knows no such store; and
    DataError E611: it does not answer, or not within a while.
    """
    address = config.checkpoint.directory
    if address is None or not is_remote(address):
        return
    import fsspec

    protocol = address.partition("://")[0]
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError as error:
        raise ConfigError(
            f"no store is called {protocol}",
            code="E104",
            why="the first word of checkpoint.directory says which library talks to the store",
            where=f"checkpoint.directory={address}",
            fix="\n".join(f"checkpoint.directory={store}" for store in _STORES.values()),
        ) from error
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        raise ConfigError(
            f"{protocol}:// needs a package that is not installed",
            code="E605",
            why=str(error),
            where=f"checkpoint.directory={address}",
            fix=f"pip install 'sailor-train[{extra}]'" if extra else "install what is named above",
        ) from error
    try:
        asyncio.run(asyncio.wait_for(_listed(address), _STORE_S))
    except (OSError, TimeoutError) as error:
        raise DataError(
            "the store for durable checkpoints does not answer",
            code="E611",
            why=str(error) or f"no answer within {_STORE_S:.0f} s",
            where=f"checkpoint.directory={address}",
            fix="check its name, that it exists, and this computer's login to it and line",
        ) from error


async def _listed(address: str) -> None:
    """What is asked goes on in a thread that nothing waits for."""
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    loop = answer.get_loop()

    def ask() -> None:
        try:
            children(place(address))
        except Exception as error:
            refusal = error
            with suppress(RuntimeError):  # nobody waits any more
                loop.call_soon_threadsafe(answer.set_exception, refusal)
        else:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(answer.set_result, None)

    threading.Thread(target=ask, daemon=True).start()
    await answer


def check_port(config: Config) -> None:
    """Raise ConfigError E602 when a fixed runtime.port or ui.port is taken, naming its holder."""
    _check_port(config.runtime.host, config.runtime.port, key="runtime.port")
    if config.ui.web:
        check_page_port(config)


def check_page_port(config: Config) -> None:
    """Raise ConfigError E602 when the page's fixed port is taken, naming its holder."""
    _check_port("127.0.0.1", config.ui.port, key="ui.port")


def _check_port(host: str, port: int, *, key: str) -> None:
    if port == 0:
        return
    try:
        host = bare(host)
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        raise ConfigError(
            f"port {port} of {host} " + ("is in use" if taken else "cannot be used"),
            code="E602",
            why=(_holder(port) if taken else "") or str(error),
            where=f"{key}={port}",
            fix=f"{key}=0   takes a free one",
        ) from error


def _holder(port: int) -> str:
    """'process 12 (nginx) listens on it', as far as this user may know."""
    try:
        for connection in psutil.net_connections("tcp"):
            listening = connection.status == psutil.CONN_LISTEN
            address = connection.laddr
            if listening and address and address.port == port and connection.pid:
                name = psutil.Process(connection.pid).name()
                return f"process {connection.pid} ({name}) listens on it"
    except psutil.Error:
        pass  # another user's process: the port is all we can name
    return ""
