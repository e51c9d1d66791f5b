"""Goal: settings and URLs of a client of remote results that make no sense are refused, and no password is shown.
Method: an app that connects to nothing."""

from __future__ import annotations

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured

from cystore.celery.routing import client as client_module


@pytest.mark.parametrize("silent_s", [0, -1, True, "300", [], float("nan")])
def test_a_patience_that_makes_no_sense(silent_s):
    app = Celery("test", broker="memory://", set_as_current=False)
    app.conf.cystore_home_silent_s = silent_s
    with pytest.raises(ImproperlyConfigured, match="cystore_home_silent_s must be a number of seconds"):
        client_module.silent_s_of(app)


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("cystore+remote:///var/lib/store", "has no path"),
        ("cystore+remote://host:6379/0?flush=sync", "only option is reader"),
        ("cystore://?reader=amqp://:hush@host", "must be one of redis"),
        ("cystore://?reader=redis://:hush@host:port", "reader in result_backend"),
        ("cystore+remote://:hush@a,b/0", "several hosts with commas"),
        ("cystore:///s?reader=redis://:hush@a,b/0", "several hosts with commas"),
        ("cystore:///s?reader=garbage", "must be one of redis"),
        ("cystore:///s?reader=redis://a&reader=redis://:hush@b", "2 times"),
    ],
)
def test_a_url_that_makes_no_sense(url, match):
    """Seen: it was told by the first look for a result elsewhere, not when the backend is made."""
    app = Celery("test", broker="memory://", backend=url, set_as_current=False)
    with pytest.raises(ImproperlyConfigured, match=match) as caught:
        _ = app.backend
    assert "hush" not in str(caught.value)
