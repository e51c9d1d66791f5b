"""Goal: one URL serves kombu and redis-py, and no password is ever printed. Method: both connect with what they are
given, to a Redis that asks for a password; texts are searched for it."""

from __future__ import annotations

import contextlib
import logging
import pickle
import shutil
import socket
import subprocess
import traceback
from urllib.parse import quote_plus

import kombu
import pytest
import redis as redis_py
from celery import Celery
from celery.exceptions import ImproperlyConfigured

from cystore.celery.base.duty_leases import Coordination, check_server_info, connect, redis_of
from cystore.celery.redis_urls import (
    PASSWORD_SETTING,
    PASSWORD_VARIABLE,
    READER_VARIABLE,
    RedisAwayError,
    RedisLocation,
    redis_location_of,
)
from cystore.celery.routing.other_homes import reader_of
from cystore.errors import hidden
from tools.processes import ends_with_us
from tools.redis_server import RedisUnavailableError, find_executable, redis_server

SECRET = "pa/ss:w@rd%"
CODED = "pa%2Fss%3Aw%40rd%25"


def app_with(**settings: object) -> Celery:
    app = Celery("urls", set_as_current=False)
    app.conf.update(settings)
    return app


def free_port() -> int:
    """A port of this host that nobody listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@pytest.mark.parametrize(
    ("given", "for_redis_py", "for_kombu"),
    [
        ("redis://host", "redis://host:6379/0", "redis://host:6379/0"),
        ("redis://u:p@host:1/2", "redis://u:p@host:1/2", "redis://u:p@host:1/2"),
        (f"redis://:{CODED}@host:1/2", f"redis://:{CODED}@host:1/2", f"redis://:{CODED}@host:1/2"),
        ("redis://[::1]:7/1", "redis://[::1]:7/1", "redis://[::1]:7/1"),
        ("unix:///r.sock?db=2", "unix:///r.sock?db=2", "redis+socket:///r.sock?virtual_host=2"),
        ("redis+socket:///r.sock", "unix:///r.sock?db=0", "redis+socket:///r.sock?virtual_host=0"),
        ("redis+socket:///r.sock?virtual_host=3", "unix:///r.sock?db=3", "redis+socket:///r.sock?virtual_host=3"),
        ("unix:///a%20b%3F%25.sock", "unix:///a%20b%3F%25.sock?db=0",
         "redis+socket:///a%20b%3F%25.sock?virtual_host=0"),
        ("unix://:p@/r.sock", "unix://:p@/r.sock?db=0", "redis+socket://:p@/r.sock?virtual_host=0"),
        (
            "rediss://host/1?ssl_cert_reqs=CERT_REQUIRED",
            "rediss://host:6379/1",
            "rediss://host:6379/1?ssl_cert_reqs=CERT_REQUIRED",
        ),
    ],
)  # fmt: skip
def test_spellings(given, for_redis_py, for_kombu):
    location = RedisLocation.parse(given)
    assert location.for_redis_py() == for_redis_py
    assert location.for_kombu() == (for_kombu, {})
    assert RedisLocation.parse(for_kombu) == location


def test_both_reach_the_same_database_through_a_socket_with_a_password():
    with redis_server("--requirepass", SECRET, own=True) as redis:
        given = redis.url.replace("unix://", f"unix://:{CODED}@") + "?db=5"
        location = RedisLocation.parse(given)
        with connect(location) as client:
            client.set("who", "redis-py")
        url, options = location.for_kombu()
        with kombu.Connection(url, transport_options=options) as connection:
            assert connection.default_channel.client.get("who") == b"redis-py"
        with redis_py.Redis.from_url(given) as plain:
            assert plain.get("who") == b"redis-py"


def test_tls(tmp_path):
    """A server with a certificate of its own: who checks it gets in with it, and not without."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    command = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
    ]
    command += [
        "-addext",
        "subjectAltName=DNS:localhost,IP:127.0.0.1",
        "-keyout",
        "key.pem",
        "-out",
        "cert.pem",
    ]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    with contextlib.ExitStack() as stack:
        try:
            redis = stack.enter_context(
                redis_server(
                    "--tls-port", "0", "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert,
                    "--tls-auth-clients", "no", own=True,
                )
            )  # fmt: skip
        except RedisUnavailableError as error:
            if "tls-port" not in str(error):
                raise
            pytest.skip("this redis-server has no TLS: it does not know tls-port")
        with redis_py.Redis.from_url(redis.url) as client:
            port = free_port()
            try:
                client.config_set("tls-port", port)
            except redis_py.ResponseError as error:
                pytest.skip(f"this redis-server has no TLS: {error}")
        url = f"rediss://127.0.0.1:{port}/1"
        with connect(RedisLocation.parse(f"{url}?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs={cert}")) as client:
            assert client.ping()
        app = app_with(broker_url=url, broker_use_ssl={"ssl_ca_certs": cert})
        assert redis_of(app).ping()
        with pytest.raises(redis_py.ConnectionError):
            connect(RedisLocation.parse(url, {"ssl_ca_certs": None})).ping()


def test_sentinel(tmp_path):
    """A real Sentinel leads to its master; kombu gets it as its own options."""
    master_port, port = free_port(), free_port()
    with redis_server("--port", str(master_port), "--requirepass", SECRET, own=True) as redis:
        config = tmp_path / "sentinel.conf"
        config.write_text(
            f'sentinel monitor mine 127.0.0.1 {master_port} 1\nsentinel auth-pass mine "{SECRET}"\n'
        )
        process = subprocess.Popen(
            ends_with_us([find_executable(), str(config), "--sentinel", "--port", str(port)]),
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "+monitor master mine" in line:
                    break
            url = f"sentinel://:{CODED}@localhost:1;sentinel://localhost:{port}/3"
            location = RedisLocation.parse(url, {"master_name": "mine"})
            assert location.hosts == (("localhost", 1), ("localhost", port))
            with connect(location) as client:
                client.set("through", "sentinel")
            with redis_py.Redis.from_url(redis.url, password=SECRET, db=3) as direct:
                assert direct.get("through") == b"sentinel"
            broker, options = location.for_kombu()
            assert options == {"master_name": "mine"}
            with kombu.Connection(broker, transport_options=options) as connection:
                assert connection.default_channel.client.get("through") == b"sentinel"
            found = redis_location_of(app_with(broker_url=broker, broker_transport_options=options))
            assert found == location
        finally:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "must begin with redis://"),
        ("amqp://host", "not amqp://"),
        ("host:6379", "not nothing://"),
        ("redis+cluster://host", "Cluster is not supported"),
        ("rediscluster://host", "Cluster is not supported"),
        ("redis://a;redis://b", "2 servers are named"),
        ("redis://a,b/0", "several hosts with commas"),
        ("sentinel://a,b:26379/0?master_name=m", "several hosts with commas"),
        ("sentinel://host", "master_name"),
        ("redis://host/one", "is not a valid URL"),
        ("redis://host:port", "is not a valid URL"),
        ("unix://", "is not a valid URL"),
        (f"redis://:{SECRET}@host", "is not a valid URL"),
        (
            "redis://:hunter2#is-my@host",
            "is not a valid URL",
        ),  # Python takes the password for a port, and says so
    ],
)
def test_urls_that_make_no_sense(url, said):
    with pytest.raises(ImproperlyConfigured, match=said) as error:
        RedisLocation.parse(url)
    shown = "".join(traceback.format_exception(error.value))
    assert not any(secret in shown for secret in (SECRET, "w@rd", "hunter2"))


@pytest.mark.parametrize(
    "url", [f"redis://:{SECRET}@host:1/2", f"redis://me:{SECRET}@h", f"sentinel://:{SECRET}@a;sentinel://b"]
)
def test_hidden(url):
    assert "rd%" not in hidden(url) and "host" in hidden(url) + "host"


def test_no_password_in_any_text(caplog):
    location = RedisLocation.parse(f"redis://me:{CODED}@127.0.0.1:1/2", {"client_name": SECRET})
    coordination = Coordination(location)
    with caplog.at_level(logging.DEBUG), pytest.raises(RedisAwayError) as error:
        coordination.call(lambda client: client.ping())
    shown = "".join(traceback.format_exception(error.value)) + caplog.text + repr(location) + str(location)
    shown += repr(coordination)
    assert "127.0.0.1" in shown
    for secret in (SECRET, CODED):
        assert secret not in shown


def test_a_password_that_a_server_repeats_is_not_passed_on(caplog):
    with redis_server("--requirepass", SECRET, own=True) as redis:
        there = Coordination(RedisLocation.parse(redis.url.replace("unix://", f"unix://:{CODED}@")))
        with pytest.raises(RedisAwayError) as error:
            there.call(lambda client: client.eval(f"return redis.error_reply('{SECRET}')", 0))
    assert "**" in caplog.text and "**" in str(error.value)
    assert SECRET not in caplog.text + "".join(traceback.format_exception(error.value))


def test_no_password_of_an_option_is_passed_on():
    """Of a Sentinel, of a key file, of redis-py's own option, percent-encoded or not."""
    secrets = ["one/1", "two/2", "three/3"]
    location = RedisLocation.parse(
        "redis://host?password=three%2F3", {"sentinel_kwargs": {"password": "one/1"}, "ssl_password": "two/2"}
    )
    told = location.without_secrets(f"{' '.join(secrets)} {' '.join(map(quote_plus, secrets))} user")
    assert told == "** ** ** ** ** ** user"


@pytest.mark.parametrize(
    "url",
    ["redis://h/0?password=hunter2", "redis://h?a=b&sentinel_password=hunter2;c", "x?api_TOKEN=hunter2&b=c"],
)
def test_hidden_options(url):
    assert "hunter2" not in hidden(url)
    assert hidden(url).count("**") == 1
    assert hidden("cystore:///a?flush=sync&group=app") == "cystore:///a?flush=sync&group=app"


def test_a_password_from_a_file_or_from_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    with_file = {"cystore_redis_url": "redis://me@host", PASSWORD_SETTING: str(file)}
    found = redis_location_of(app_with(**with_file))
    assert (found.username, found.password) == ("me", SECRET)
    given = redis_location_of(app_with(**{**with_file, "cystore_redis_url": "redis://:given@host"}))
    assert given.password == "given"
    monkeypatch.setenv(PASSWORD_VARIABLE, "of the environment")
    for settings in ({"cystore_redis_url": "redis://host"}, {"broker_url": "redis://host"}):
        assert redis_location_of(app_with(**settings)).password == "of the environment"
    assert redis_location_of(app_with(**with_file)).password == SECRET
    monkeypatch.setenv(READER_VARIABLE, "of the reader")
    for url in ("cystore+remote://me@host", "cystore+remote://?reader=redis://me@host"):
        remote = Celery("web", broker="memory://", backend=url, set_as_current=False)
        assert reader_of(remote.backend).password == "of the reader"


@pytest.mark.parametrize("problem", ["is not there", "has nothing", "others read it", "is no text"])
def test_a_file_without_a_usable_password(tmp_path, problem):
    file = tmp_path / "password"
    if problem != "is not there":
        file.write_bytes({"has nothing": b" \n", "is no text": b"\xff\xfe"}.get(problem, SECRET.encode()))
        file.chmod(0o644 if problem == "others read it" else 0o600)
    with pytest.raises(ImproperlyConfigured) as error:
        redis_location_of(app_with(cystore_redis_url="redis://host", cystore_redis_password_file=str(file)))
    assert SECRET not in str(error.value) and "cystore_redis_password_file" in str(error.value)


def test_options_that_redis_py_does_not_know_are_named():
    with pytest.raises(ImproperlyConfigured, match="colour"):
        connect(RedisLocation.parse("redis://host", {"colour": "red"})).ping()


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({"redis_version": "6.0.16", "redis_mode": "standalone"}, "6.2 or newer"),
        ({"redis_version": "7.0.0", "redis_mode": "cluster"}, "Cluster"),
    ],
)
def test_servers_that_do_not_do(info, said):
    with pytest.raises(ImproperlyConfigured, match=said):
        check_server_info(info)


@pytest.mark.parametrize("version", ["6.2.0", "6.10.1", "7.0", "8.0.2", "255.255.255"])
def test_servers_that_do(version):
    check_server_info({"redis_version": version, "redis_mode": "standalone"})


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"broker_url": "redis://a/1"}, "redis://a:6379/1"),
        ({"broker_url": "redis://a/1", "cystore_redis_url": "redis://b"}, "redis://b:6379/0"),
        ({"broker_url": "redis://a/1", "cystore_redis_url": ""}, None),
        ({"broker_url": "memory://"}, None),
        ({"broker_url": "amqp://host"}, None),
    ],
)
def test_which_redis_an_app_has(settings, found):
    location = redis_location_of(app_with(**settings))
    assert (location and location.for_redis_py()) == found


def test_a_location_can_be_sent():
    location = RedisLocation.parse("redis://u:p@host", {"socket_timeout": 1})
    assert pickle.loads(pickle.dumps(location)) == location
