"""Goal: settings and URLs of a client of remote results that make no sense are refused, and no password is shown.
Method: an app that connects to nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured

from cystore.celery.routing import client as client_module
from cystore.celery.routing.home_secrets import HomeSecrets

HOME = "11111111-2222-3333-4444-555555555555"


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


def secret_file(path: Path, content: bytes = b"a secret of this home\n", mode: int = 0o600) -> str:
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def test_the_secrets_of_homes(tmp_path):
    one, two = secret_file(tmp_path / "one"), secret_file(tmp_path / "two", b"the secret of another")
    assert HomeSecrets({}).of(HOME) is None
    assert HomeSecrets({"cystore_answers_secret_file": one}).of(HOME) == b"a secret of this home"
    some = HomeSecrets({"cystore_answers_secret_file": {HOME: two}})
    assert some.of(HOME) == b"the secret of another"
    assert some.of(HOME.replace("1", "2")) == b"", "a home that is left out is not believed without a proof"


@pytest.mark.parametrize(
    ("content", "mode", "match"),
    [
        (b"a secret of this home", 0o644, "other users may read cystore_answers_secret_file: chmod 600"),
        (b"short", 0o600, "cystore_answers_secret_file has 5 bytes, not 16 to 4096"),
        (b"x" * 5_000, 0o600, "cystore_answers_secret_file has"),
    ],
)
def test_a_secret_that_is_none(tmp_path, content, mode, match):
    file = secret_file(tmp_path / "secret", content, mode)
    for given in (file, {HOME: file}):
        with pytest.raises(ImproperlyConfigured, match=match):
            HomeSecrets({"cystore_answers_secret_file": given})


def test_a_secret_that_is_not_there_or_of_no_home(tmp_path):
    with pytest.raises(ImproperlyConfigured, match="No such file"):
        HomeSecrets({"cystore_answers_secret_file": str(tmp_path / "nowhere")})
    with pytest.raises(ImproperlyConfigured, match=r"cystore_answers_secret_file: .*'shop'"):
        HomeSecrets({"cystore_answers_secret_file": {"shop": secret_file(tmp_path / "secret")}})
