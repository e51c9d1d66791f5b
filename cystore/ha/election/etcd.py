"""The five calls of etcd that the election needs, at the first endpoint that answers. etcd3gw speaks the protocol."""

from __future__ import annotations

import base64
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from cystore.config import StoreConfig
from cystore.errors import ElectionError, StoreConfigError
from cystore.ha.link.address import endpoints_of
from cystore.system.links import real_path

if TYPE_CHECKING:
    from etcd3gw.client import Etcd3Client

T = TypeVar("T")
API = "/v3/"  # etcd 3.4 and later


@dataclass(frozen=True)
class Entry:
    """A key's value. `created`, `changed`: revisions. `lease`: 0 without one."""

    value: bytes
    created: int
    changed: int
    lease: int


class Etcd:
    """Used by one thread. Every call raises ElectionError if no endpoint answers within `timeout_s` each: then it is
    unknown whether a change was made."""

    def __init__(self, config: StoreConfig, endpoints: str, timeout_s: float) -> None:
        try:
            with warnings.catch_warnings():
                # etcd3gw's futurist imports eventlet where it is installed. Nothing here uses it.
                warnings.filterwarnings("ignore", r"\s*Eventlet is deprecated")
                from etcd3gw.client import Etcd3Client
        except ImportError as error:
            raise StoreConfigError("an elected store needs etcd3gw: pip install 'cystore[ha]'") from error
        # No other user may choose whom this process believes, or who it says that it is.
        names = (config.ha_etcd_ca_file, config.ha_etcd_key_file, config.ha_etcd_certificate_file)
        authority, key, certificate = (str(real_path(name)) if name else None for name in names)
        self._clients: list[Etcd3Client] = [
            Etcd3Client(
                host,
                port,
                scheme,
                authority,
                key,
                certificate,
                timeout_s,
                API,
            )
            for scheme, host, port in endpoints_of(endpoints)
        ]
        for client in self._clients:
            client.session.trust_env = False  # uses no proxy of the environment

    def close(self) -> None:
        for client in self._clients:
            client.session.close()

    def _anywhere(self, call: Callable[[Etcd3Client], T]) -> T:
        """The answer of the first endpoint that gives one. An endpoint that fails moves to the end of the list."""
        from etcd3gw.exceptions import Etcd3Exception

        failed: list[str] = []
        for client in list(self._clients):
            try:
                return call(client)
            except (Etcd3Exception, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                failed.append(f"{client.base_url}: {str(error)[:120] or type(error).__name__}")
                self._clients.append(self._clients.pop(0))
        raise ElectionError(f"no endpoint of etcd answers (ha_etcd_endpoints): {'; '.join(failed)}")

    def read(self, prefix: str) -> tuple[int, dict[str, Entry]]:
        """The revision, and all keys that begin with `prefix` (it ends with "/"). A majority of etcd's members confirms
        it."""
        key, behind = prefix.encode(), prefix.encode()[:-1] + b"0"
        return self._call("/kv/range", {"key": _text(key), "range_end": _text(behind)}, _entries)

    def change(
        self,
        *,
        created: Iterable[tuple[str, int]] = (),
        changed: Iterable[tuple[str, int]] = (),
        put: Iterable[tuple[str, bytes, int]] = (),
        delete: Iterable[str] = (),
    ) -> int:
        """Puts (key, value, lease) and deletes, all or nothing, if the keys have the given revisions (0: no such key).
        Returns the new revision, 0 if a revision differs: an earlier endpoint, whose answer was lost, may have made the
        change."""
        compare = [_compared(key, "CREATE", "create_revision", revision) for key, revision in created]
        compare += [_compared(key, "MOD", "mod_revision", revision) for key, revision in changed]
        success: list[dict[str, Any]] = [
            {"request_put": {"key": _text(key.encode()), "value": _text(value), "lease": lease}}
            for key, value, lease in put
        ]
        success += [{"request_delete_range": {"key": _text(key.encode())}} for key in delete]
        return self._call(
            "/kv/txn",
            {"compare": compare, "success": success, "failure": []},
            lambda found: int(found["header"]["revision"]) if found.get("succeeded") else 0,
        )

    def grant(self, ttl_s: int) -> int:
        """A new lease."""
        return self._call("/lease/grant", {"TTL": ttl_s, "ID": 0}, lambda found: int(found["ID"]))

    def keep(self, lease: int) -> int:
        """Renews a lease. Returns its time to live in seconds, 0 if the lease is over."""
        return self._call("/lease/keepalive", {"ID": lease}, lambda found: int(found["result"].get("TTL", 0)))

    def revoke(self, lease: int) -> None:
        """Ends a lease and deletes its keys. A lease that is over is no error."""
        from etcd3gw.exceptions import Etcd3Exception

        def end(client: Etcd3Client) -> None:
            try:
                client.post(client.get_url("/lease/revoke"), json={"ID": lease})
            except Etcd3Exception as error:
                if "lease not found" not in f"{error} {error.detail_text}":
                    raise

        self._anywhere(end)

    def _call(self, path: str, body: dict[str, Any], parse: Callable[[Any], T]) -> T:
        """Posts a call. An answer that cannot be parsed counts as no answer."""
        return self._anywhere(lambda client: parse(client.post(client.get_url(path), json=body)))


def _entries(found: Any) -> tuple[int, dict[str, Entry]]:
    entries = {
        base64.b64decode(row["key"]).decode(): Entry(
            base64.b64decode(row.get("value", "")),
            int(row["create_revision"]),
            int(row["mod_revision"]),
            int(row.get("lease", 0)),
        )
        for row in found.get("kvs", ())
    }
    return int(found["header"]["revision"]), entries


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _compared(key: str, target: str, field: str, revision: int) -> dict[str, Any]:
    return {"key": _text(key.encode()), "result": "EQUAL", "target": target, field: revision}
