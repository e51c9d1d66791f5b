"""Goal: the files of docs/deploy work as they are. Method: systemd reads the units, the Containerfile and the manifests
are read as their programs read them, and every command line in them is one that the command takes."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from cystore.cli.host.grammar import nodes
from cystore.cli.program import build_parser
from tests.structure.sources import ROOT

yaml = pytest.importorskip("yaml")

DEPLOY = ROOT / "docs" / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())
NO_SYSTEMD = "this host does not have systemd-analyze"
VENV = "/opt/shop/venv/bin"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason=NO_SYSTEMD)
@pytest.mark.may_skip(NO_SYSTEMD)
def test_systemd_takes_the_units(tmp_path):
    """With programs at a place that this host has: `verify` looks whether they can be run."""
    programs, units = tmp_path / "bin", tmp_path / "units"
    programs.mkdir()
    units.mkdir()
    for name in ("celery", "cystore"):
        (programs / name).symlink_to("/bin/true")
    for unit in UNITS:
        (units / unit.name).write_text(unit.read_text().replace(VENV, str(programs)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *sorted(units.iterdir())],
        text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    about_ours = [line for line in done.stderr.splitlines() if "shop" in line]
    assert (done.returncode, about_ours) == (0, []), done.stderr


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason=NO_SYSTEMD)
@pytest.mark.may_skip(NO_SYSTEMD)
def test_the_timers_have_times(tmp_path):
    timers = [unit for unit in UNITS if unit.suffix == ".timer"]
    assert timers
    for timer in timers:
        (time,) = re.findall(r"^OnCalendar=(.+)$", timer.read_text(), re.MULTILINE)
        subprocess.run(["systemd-analyze", "calendar", time], check=True, capture_output=True)
        assert timer.with_suffix(".service") in UNITS


def test_the_page_shows_the_unit_of_the_workers():
    page = (ROOT / "docs" / "production.md").read_text()
    assert (DEPLOY / "systemd" / "shop-worker.service").read_text() in page


def compose():
    return yaml.safe_load((DEPLOY / "compose.yml").read_text())


def manifests():
    return [*_manifests("kubernetes.yml"), *_manifests("kubernetes-node.yml")]


def _manifests(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def _pods():
    kinds = ("StatefulSet", "Deployment")
    return [found["spec"]["template"]["spec"] for found in manifests() if found["kind"] in kinds]


def _command_lines():
    """Every command line of the files."""
    for unit in UNITS:
        for line in re.findall(r"^Exec\w+=(.+)$", unit.read_text(), re.MULTILINE):
            words = shlex.split(line)
            yield shlex.split(words[2].removeprefix("exec ")) if words[0] == "/bin/sh" else words
    yield from (service["command"] for service in compose()["services"].values() if "command" in service)
    for pod in _pods():
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            yield container.get("command", [container["name"]])
    (run,) = re.findall(r"^CMD (\[.+\])$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    yield yaml.safe_load(run)


def test_every_command_line_exists():
    options = {
        " ".join(node.path): {name for option in node.options for name in option.names}
        for node in nodes(build_parser())
    }
    lines = [words for words in _command_lines() if Path(words[0]).name in ("cystore", "celery")]
    assert len(lines) >= 8
    for words in lines:
        if Path(words[0]).name == "cystore":
            given = {word for word in words[2:] if word.startswith("--")}
            assert given <= options[words[1]], words
        else:
            assert words[1:3] == ["-A", "shop"] and words[3] in ("worker", "beat", "cystore"), words


def test_writers_share_a_volume_in_compose():
    services = compose()["services"]
    ours = {name: service for name, service in services.items() if service.get("image") == "shop"}
    assert set(ours) == {"create", "worker", "beat", "web"}
    assert all(service["volumes"] == ["results:/var/lib/shop"] for service in ours.values())
    assert not any({"pid", "ipc", "privileged"} & set(service) for service in services.values())
    assert set(services) - set(ours) == {"redis"} and "noeviction" in services["redis"]["command"]


def test_writers_share_a_volume_in_kubernetes():
    found = [pod for pod in _pods() if "initContainers" in pod]
    (pod,) = found
    assert not any(
        pod.get(name) for pod in _pods() for name in ("shareProcessNamespace", "hostPID", "hostIPC")
    )
    (shop,) = [
        one for one in manifests() if one["kind"] == "StatefulSet" and one["metadata"]["name"] == "shop"
    ]
    assert shop["spec"]["replicas"] == 1
    (claim,) = shop["spec"]["volumeClaimTemplates"]
    mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
    assert mounted == {claim["metadata"]["name"]}
    paths = set()
    for one in _manifests("kubernetes-node.yml"):
        pod = one["spec"]["template"]["spec"]
        assert pod["nodeSelector"] == {"shop-store": "here"}
        paths |= {volume["hostPath"]["path"] for volume in pod["volumes"]}
    assert len(paths) == 1


NO_SCHEMAS = "kubernetes-validate is not installed"


@pytest.mark.may_skip(NO_SCHEMAS)
def test_kubernetes_knows_every_field():
    schemas = pytest.importorskip("kubernetes_validate", reason=NO_SCHEMAS)
    for found in manifests():
        schemas.validate(found, schemas.latest_version(), strict=True)


def test_what_the_image_takes_from_the_clone_is_there():
    text = (DEPLOY / "Containerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(\S+) ", text, re.MULTILINE)
    assert copied and all((ROOT / name).exists() for name in copied), copied
    (extras,) = set(re.findall(r'"(?:/src|cystore)\[([a-z,]+)\]"', text))
    project = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras.split(","))
