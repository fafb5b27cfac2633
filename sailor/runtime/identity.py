"""The run's secret: one key pair, and the two TLS contexts made from it.

Everyone who may speak in a run holds the same private key and trusts the one certificate made with
it, so a completed handshake proves membership of the run in both directions. The key lives in files
only their owner can read; its path travels, its content never does.
"""

from __future__ import annotations

import datetime
import os
import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_KEY = "run.key"
_CERTIFICATE = "run.crt"


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Paths of the run's private key and certificate."""

    key: Path
    certificate: Path

    @property
    def run(self) -> str:
        """The name of the run the certificate was made for."""
        from cryptography import x509  # here: only an agent asks, once

        certificate = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        (name,) = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        return str(name.value).removeprefix("sailor-")

    def server_context(self) -> ssl.SSLContext:
        """For the side that listens: the peer must hold the run's key."""
        return _context(self, ssl.PROTOCOL_TLS_SERVER)

    def client_context(self) -> ssl.SSLContext:
        """For the side that connects: the peer must hold the run's key."""
        return _context(self, ssl.PROTOCOL_TLS_CLIENT)


@cache
def _context(identity: Identity, protocol: ssl._SSLMethod) -> ssl.SSLContext:
    """Made once: reading the key takes as long as a handshake, and every copy is a connection."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate names the run, not a host
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cafile=str(identity.certificate))
    context.load_cert_chain(certfile=str(identity.certificate), keyfile=str(identity.key))
    return context


def load_identity(directory: Path) -> Identity:
    """The identity kept in ``directory``. Raises FileNotFoundError when there is none."""
    identity = Identity(key=directory / _KEY, certificate=directory / _CERTIFICATE)
    for path in (identity.key, identity.certificate):
        if not path.is_file():
            raise FileNotFoundError(f"no run identity at {path}")
    return identity


def create_identity(directory: Path, *, run: str) -> Identity:
    """Make the run's key pair in ``directory`` (mode 0700), or load the one that is there."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return load_identity(directory)
    except FileNotFoundError:
        pass
    # Imported here: only the process that starts a run makes keys.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"sailor-{run}"[:64])])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))  # nodes' clocks may be behind
        .not_valid_after(now + datetime.timedelta(days=365))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_private(
        directory / _KEY,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
    _write_private(directory / _CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))
    return load_identity(directory)


def _write_private(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
