"""Who may ask: the token, names of hosts, the rate of each client, and the headers that protect the page."""

from __future__ import annotations

import hmac
from collections import OrderedDict
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cystore.clock import monotonic_s
from cystore.web.problems import Problem

COOKIE = "cystore_token"
OPEN_PATHS = ("/healthz",)  # for probes, which have no token; it says nothing about tasks
ACTION_HEADER = "x-cystore-action"  # a page of another site cannot send it
CLIENTS_MOST = 10_000  # whose rates are remembered
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Rates:
    """How many requests each client has left: `per_s` more every second, `burst` at most."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client: requests, and when

    def takes(self, client: str) -> bool:
        """Counts a request; False if the client has sent too many."""
        now_s = monotonic_s()
        left, then_s = self._left.pop(client, (self._burst, now_s))
        left = min(self._burst, left + (now_s - then_s) * self._per_s)
        self._left[client] = (max(0.0, left - 1), now_s)
        if len(self._left) > CLIENTS_MOST:
            self._left.popitem(last=False)
        return left >= 1


class Access:
    """The middleware around the app. Without a token every request may read; `hosts` then keeps pages of other sites
    from reading through a name that leads here. Actions always need the token."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        hosts: tuple[str, ...] | None,
        prefix: str,
        rates: Rates | None,
    ) -> None:
        self._app, self._token, self._hosts = app, token, hosts
        self._prefix, self._rates = prefix, rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            scope = self._below_prefix(scope)
            redirect = self._check(scope)
        except Problem as problem:
            await problem.response()(scope, receive, guarded)
            return
        await (redirect or self._app)(scope, receive, guarded)

    def _below_prefix(self, scope: Scope) -> Scope:
        """The request as it is without the prefix; a proxy may have removed it already."""
        path = scope["path"]
        if not self._prefix or not (path + "/").startswith(self._prefix + "/"):
            return scope
        return {**scope, "root_path": scope.get("root_path", "") + self._prefix}

    def _check(self, scope: Scope) -> RedirectResponse | None:
        """Raises Problem for a request that may not be answered. A redirect takes a token out of the address, into a
        cookie."""
        headers = Headers(scope=scope)
        client = (scope.get("client") or ("",))[0]
        if self._rates is not None and not self._rates.takes(client):
            raise Problem(HTTPStatus.TOO_MANY_REQUESTS, "too many requests: ask again later", Retry_After="1")
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        if self._token is None:
            self._check_host(headers.get("host", ""))
            return None
        if path in OPEN_PATHS:
            return None
        given = QueryParams(scope["query_string"]).get("token")
        if given is not None and scope["method"] == "GET" and path == "/":
            self._check_token(given)
            return _with_cookie(given, bool(scope.get("scheme") == "https"))
        bearer = headers.get("authorization", "")
        if bearer:
            scheme, _, text = bearer.partition(" ")
            self._check_token(text.strip() if scheme.lower() == "bearer" else "")
            return None
        self._check_token(_cookie(headers.get("cookie", "")))
        if scope["method"] not in ("GET", "HEAD") and not headers.get(ACTION_HEADER):
            raise Problem(
                HTTPStatus.FORBIDDEN,
                f"an action needs the header {ACTION_HEADER}, or Authorization: Bearer TOKEN",
            )
        return None

    def _check_token(self, given: str) -> None:
        assert self._token is not None
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token.encode()):
            detail = "the token is missing or wrong: send Authorization: Bearer TOKEN, or open /?token=TOKEN"
            raise Problem(HTTPStatus.UNAUTHORIZED, detail, WWW_Authenticate="Bearer")

    def _check_host(self, given: str) -> None:
        if self._hosts is None:
            return
        name = given if given.endswith("]") or ":" not in given else given.rpartition(":")[0]
        if name.lower() not in self._hosts:
            raise Problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"the host {given!r} is not served here without a token: give --token, or --allowed-host",
            )


def _with_cookie(token: str, secure: bool) -> RedirectResponse:
    response = RedirectResponse("./", HTTPStatus.SEE_OTHER)
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=secure)
    return response


def _cookie(header: str) -> str:
    try:
        morsel = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return "" if morsel is None else morsel.value
