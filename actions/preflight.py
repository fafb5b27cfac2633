"""What is looked at before a run touches anything: the port it was told to use, and the cloud."""

from __future__ import annotations

import errno
import socket

import psutil

from actions.domain import HERE
from sailor.config import Config
from sailor.errors import CloudError, ConfigError


def check_cloud(config: Config) -> None:
    """Raise CloudError E406 for a cloud whose machines cannot be rented yet."""
    cloud = config.cloud.name
    if cloud not in HERE:
        raise CloudError(
            f"machines of cloud={cloud} cannot be rented yet",
            code="E406",
            why=f"this version plans for {cloud} and trains on this computer",
            where=f"cloud={cloud}",
            fix=f"action=plan   shows what {cloud} would cost\ncloud=local   trains here",
        )


def check_port(config: Config) -> None:
    """Raise ConfigError E602 when a fixed runtime.port is taken, naming its holder."""
    host, port = config.runtime.host, config.runtime.port
    if port == 0:
        return
    try:
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
            where=f"runtime.port={port}",
            fix="runtime.port=0   takes a free one",
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
