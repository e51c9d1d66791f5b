"""Errors of the API, as `application/problem+json` (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse, Response

from cystore import StoreError
from cystore.operate.output import one_line

TYPE = "application/problem+json"


class Problem(Exception):
    """An answer that is an error: its HTTP status, and a text that says what to do."""

    def __init__(self, status: HTTPStatus, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def response(self) -> Response:
        """The answer."""
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": self.status.phrase,
            "status": int(self.status),
            "detail": one_line(self.detail),
        }
        return JSONResponse(body, int(self.status), headers=self.headers, media_type=TYPE)


def bad(detail: str) -> Problem:
    """400."""
    return Problem(HTTPStatus.BAD_REQUEST, detail)


def unavailable(error: StoreError) -> Problem:
    """503 for a store that is away or damaged."""
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error), Retry_After="1")


def missing(detail: str) -> Problem:
    """404."""
    return Problem(HTTPStatus.NOT_FOUND, detail)


def unknown_task(task_id: str) -> Problem:
    """404."""
    return missing(f"no store here knows the task {task_id!r}")
