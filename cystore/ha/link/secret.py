"""The secret that master and slave share, and TLS between them. RocketMQ's HAService has neither."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import ssl

from cystore.config import StoreConfig
from cystore.errors import ReplicationError, StoreConfigError, StoreError
from cystore.ha.link.sockets import is_loopback, ours
from cystore.system import files
from cystore.system.links import real_path

SECRET_BYTES_MIN, SECRET_BYTES_MAX = 16, 4096


class Secret:
    """Proofs that this side knows the secret, each for one connection. An eavesdropper learns nothing from them. They
    do not protect the later bytes against changes on the way; TLS does."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def proof(self, role: str, masters_nonce: bytes, slaves_nonce: bytes) -> bytes:
        """The proof of the `role` "master" or "slave"."""
        words = b"cystore replication: " + role.encode() + masters_nonce + slaves_nonce
        return hmac.digest(self._secret, words, hashlib.sha256)

    def is_proof(self, role: str, masters_nonce: bytes, slaves_nonce: bytes, proof: bytes) -> bool:
        """Whether the peer's proof is right."""
        return hmac.compare_digest(self.proof(role, masters_nonce, slaves_nonce), proof)


def read_secret(config: StoreConfig) -> Secret | None:
    """The content of ha_secret_file without white space around it; None without the setting. Raises
    StoreConfigError."""
    if not config.ha_secret_file:
        return None
    return Secret(secret_in(config.ha_secret_file, "ha_secret_file"))


def secret_in(file: str | os.PathLike[str], setting: str, least: int = SECRET_BYTES_MIN) -> bytes:
    """The content of a file that a setting names, without white space around it. Raises StoreConfigError if other users
    may read the file, or if it has less than `least` bytes; StoreError if it cannot be read."""
    try:
        path = real_path(file)  # no other user may choose the secret
        with files.translated(path):
            found = path.stat()
            fits = found.st_size <= SECRET_BYTES_MAX + 1
            secret = files.read_all(path, most=SECRET_BYTES_MAX + 1).strip() if fits else b""
    except StoreError as error:
        named = type(error)(f"{setting} names a file that cannot be read: {error}")
        named.path = error.path
        raise named from error
    if found.st_mode & 0o077:
        raise StoreConfigError(f"other users may read {setting}: chmod 600", path=path)
    if not fits or not least <= len(secret) <= SECRET_BYTES_MAX:
        size = len(secret) if fits else found.st_size
        raise StoreConfigError(f"{setting} has {size} bytes, not {least} to {SECRET_BYTES_MAX}", path=path)
    return secret


def check_unencrypted(config: StoreConfig, made: socket.socket, *, peer: bool) -> None:
    """Raises ReplicationError for a connection beyond this host without TLS, unless ha_allow_plain is set."""
    if not config.ha_allow_plain and not is_loopback(made, peer=peer):
        raise ReplicationError(
            "no TLS on a connection beyond this host: give ha_tls_certificate_file and ha_tls_key_file "
            "(master) or ha_tls_ca_file "
            "(slave), or ha_allow_plain=True, which anybody in between can read and change"
        )


def check_strangers(config: StoreConfig) -> None:
    """Raises StoreConfigError for a master that could not tell its slaves from other programs, unless ha_allow_plain is
    set. A loopback address is no protection: every user of the host can connect to it."""
    if not (config.ha_allow_plain or config.ha_secret_file or asks_for_certificates(config)):
        raise StoreConfigError(
            "ha_listen_port needs ha_secret_file: without a secret every program that can connect, of any user of this "
            "host, reads the whole log and acknowledges replicated puts. Make one for master and slaves: "
            "(umask 077; openssl rand -hex 32 > FILE). For slaves in a JVM, which know no secret, set "
            "ha_allow_plain=True"
        )


def asks_for_certificates(config: StoreConfig) -> bool:
    """Whether a master serves slaves with a certificate of its CA only."""
    return bool(config.ha_tls_certificate_file and config.ha_tls_ca_file)


def masters_context(config: StoreConfig) -> ssl.SSLContext | None:
    """TLS of a master; with ha_tls_ca_file, a slave needs a certificate from that CA. None without the setting."""
    if not config.ha_tls_certificate_file:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(config, context)
    if config.ha_tls_ca_file:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def slaves_context(config: StoreConfig) -> ssl.SSLContext | None:
    """TLS of a slave; it checks the master's certificate and name. None without the setting."""
    if not config.ha_tls_ca_file:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(config, context)
    return context


def _load(config: StoreConfig, context: ssl.SSLContext) -> None:
    try:
        if config.ha_tls_certificate_file:
            key = real_path(config.ha_tls_key_file) if config.ha_tls_key_file else None
            context.load_cert_chain(real_path(config.ha_tls_certificate_file), key)
        if config.ha_tls_ca_file:
            context.load_verify_locations(real_path(config.ha_tls_ca_file))
    except (OSError, ssl.SSLError) as error:
        raise StoreConfigError(
            f"ha_tls_certificate_file, ha_tls_key_file, ha_tls_ca_file: {error}"
        ) from error


def wrapped(context: ssl.SSLContext | None, plain: socket.socket, *, host: str = "") -> socket.socket:
    """The socket wrapped in TLS, before the handshake: for a master, or for a slave that connects to `host`."""
    if context is None:
        return plain
    return ours(
        context.wrap_socket(
            plain, server_side=not host, server_hostname=host or None, do_handshake_on_connect=False
        )
    )
