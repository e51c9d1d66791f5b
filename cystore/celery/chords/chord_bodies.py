"""The body of a chord as its record `OPEN` has it; encrypted with a key from a file, if `cystore_chord_key_file` names
one.

A chord's body must be kept as it is, with the arguments of its task and of its error callbacks, because any worker may
have to send it. So `cystore_lifecycle_redact` cannot take values out of it. With a key, which all workers and senders
of the app read from a file, the body can be read in the store only with this key.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery.exceptions import ImproperlyConfigured
from kombu.exceptions import EncodeError
from kombu.serialization import dumps, loads, prepare_accept_content
from kombu.utils.encoding import ensure_bytes

from cystore.celery.versions import decompress_payload
from cystore.errors import StoreError

if TYPE_CHECKING:
    from cystore import Message

log = logging.getLogger("cystore")

SETTING = "cystore_chord_key_file"
PROPERTY, FERNET = "cipher", "fernet"

_told: set[str] = set()  # tasks whose call in a chord has what is to be redacted


def stored_body(
    app: Any, group_id: str, body: Mapping[str, Any], shape: Any, *, readable: bool
) -> tuple[bytes, dict[str, str]]:
    """The bytes and the properties of a chord's `OPEN`: the signature of its body, and the shape of a header that has
    groups. If it should not be `readable` in the store, and there is no key, the log says so once for each task."""
    try:
        encoded = dumps({"body": dict(body), "header": shape}, serializer=app.conf.task_serializer)
    except EncodeError as error:
        log.warning(
            "chord %s: its body cannot be stored, so chord_sweep cannot send it if the last worker is killed: %s",
            group_id,
            error,
        )
        encoded = dumps({"body": None, "header": shape}, serializer="json")
    content_type, content_encoding, text = encoded
    payload, properties = (
        ensure_bytes(text),
        {"content_type": content_type, "content_encoding": content_encoding},
    )
    cipher, name = _cipher_of(app), str(body.get("task"))
    if cipher is not None:
        payload, properties = cipher.encrypt(payload), {**properties, PROPERTY: FERNET}
    elif not readable and name not in _told:
        _told.add(name)
        log.warning(
            "the chord's body %s has arguments that cystore_lifecycle_redact hides: the store keeps them, because the "
            "body must be sent; set %s to encrypt it there",
            name,
            SETTING,
        )
    return payload, properties


def read_body(app: Any, group_id: str, message: Message) -> dict[str, Any]:
    """What `stored_body` stored; empty, and a warning, if it cannot be read: it may come from another host, and other
    chords must go on."""
    properties, payload = message.properties, bytes(message.body)
    if not payload:
        return {}
    try:
        if PROPERTY in properties:
            cipher = _cipher_of(app)
            if cipher is None:
                raise ImproperlyConfigured(f"it is encrypted, and {SETTING} is not set here")
            payload = cipher.decrypt(payload)
        content = loads(
            decompress_payload(payload),
            content_type=properties["content_type"],
            content_encoding=properties["content_encoding"],
            accept=prepare_accept_content({*app.conf.accept_content, "json"}),
        )
        body = content["body"]
        if body is not None and not isinstance(body["options"], dict):
            raise TypeError("its options are no dict")
        if body is not None and not isinstance(body["task"], str):
            raise TypeError("it names no task")
    except Exception as error:  # noqa: BLE001 - a crafted body may raise anything
        log.warning("chord %s: its body cannot be read: %s: %s", group_id, type(error).__name__, error)
        return {}
    return dict(content)


def _cipher_of(app: Any) -> Any:
    """The cipher by the app's key; None without the setting. Raises ImproperlyConfigured."""
    file = app.conf.get(SETTING)
    return None if not file else _cipher(str(file))


@lru_cache(16)
def _cipher(file: str) -> Any:
    from cystore.ha.link.secret import secret_in  # few apps have such a key

    try:
        from cryptography.fernet import Fernet

        secret = secret_in(file, SETTING)
    except ImportError as error:
        raise ImproperlyConfigured(f"{SETTING}: {error}: pip install 'cystore[encryption]'") from error
    except StoreError as error:
        raise ImproperlyConfigured(str(error)) from error
    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(secret).digest()))
