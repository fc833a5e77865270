"""What stands in deploy/ names things that are there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SETTINGS = set(re.findall(r"^#? ?([A-Z][A-Z_0-9]+)=", (DEPLOY / ".env.example").read_text(), re.MULTILINE))
OUTSIDE = {"POSTGRES_USER", "POSTGRES_DB", "PORT"}
PROGRAMS = {"gunicorn", "celery", "python", "sh", "valkey-server"}
KINDS = {"ConfigMap": "v1", "PersistentVolumeClaim": "v1", "Service": "v1", "Pod": "v1", "Deployment": "apps/v1"}


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text()))


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))


def words_of(command: list[str]) -> str:
    return " ".join(command)


def is_ours(command: list[str]) -> bool:
    """Whether a command starts one of our parts with an app, a queue and a config file that exist."""
    text = words_of(command)
    queues = re.findall(r"--queues (\w+)", text)
    known = (
        "dashboard.celery" in text or "dashboard.wsgi" in text or "manage.py" in text or command[0] == "valkey-server"
    )
    return command[0] in PROGRAMS and known and set(queues) <= {"celery", "digest"}


def test_compose_starts_every_part_once_and_what_they_need_first():
    services = compose()["services"]
    ours = {name for name in services if name not in ("postgres", "valkey")}
    assert ours == {"prepare", "web", "worker", "digester", "beat"}
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        assert {mount.split(":")[0] for mount in service.get("volumes", [])} <= set(compose()["volumes"]), name
        assert "command" not in service or is_ours(service["command"]), name
        assert set(service.get("environment", {})) <= SETTINGS | OUTSIDE, name
    assert words_of(services["digester"]["command"]).count("digest") == 1
    assert {name for name in ours if services[name].get("depends_on", {}).get("prepare")} == ours - {"prepare"}


def test_compose_asks_for_its_secrets_by_name():
    asked = set(re.findall(r"\$\{(\w+):\?", (DEPLOY / "compose.yaml").read_text()))
    assert asked == {"POSTGRES_PASSWORD", "SECRET_KEY"} <= SETTINGS


@pytest.mark.parametrize("name", ["stepscope.yaml", "agent-sidecar.yaml"])
def test_kubernetes_objects_refer_to_each_other(name):
    for one in manifests(name):
        assert KINDS[one["kind"]] == one["apiVersion"] and one["metadata"]["name"]
        if one["kind"] not in ("Deployment", "Pod"):
            continue
        spec = one["spec"]["template"]["spec"] if one["kind"] == "Deployment" else one["spec"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        for box in (*spec["containers"], *spec.get("initContainers", [])):
            assert {mount["name"] for mount in box["volumeMounts"]} <= volumes, box["name"]
            assert "command" not in box or name != "stepscope.yaml" or is_ours(box["command"]), box["name"]
        if one["kind"] == "Deployment":
            assert one["spec"]["selector"]["matchLabels"] == one["spec"]["template"]["metadata"]["labels"]


def test_kubernetes_runs_the_same_parts_as_compose_and_one_clock():
    found = manifests("stepscope.yaml")
    deployments = {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == "Deployment"}
    assert set(deployments) == {f"stepscope-{part}" for part in ("web", "worker", "digester", "beat")}
    beat = deployments["stepscope-beat"]
    assert (beat["replicas"], beat["strategy"]["type"]) == (1, "Recreate")
    (service,) = (one["spec"] for one in found if one["kind"] == "Service")
    assert service["selector"] == deployments["stepscope-web"]["selector"]["matchLabels"]
    (config,) = (one["data"] for one in found if one["kind"] == "ConfigMap")
    assert set(config) <= SETTINGS and all(isinstance(value, str) for value in config.values())
    for spec in deployments.values():
        assert spec["template"]["spec"]["securityContext"]["runAsNonRoot"] is True


def test_the_image_is_made_of_files_that_are_there():
    text = (DEPLOY / "Dockerfile").read_text()
    ignored = (ROOT / ".dockerignore").read_text().split()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for name in line.split()[:-1]:
            assert (ROOT / name).exists() and name not in ignored, name
    assert not re.search(r"^(USER root|ADD )", text, re.MULTILINE)
    assert text.index("USER stepscope") < text.index("CMD ")


@pytest.mark.parametrize("name", ["stepscope.service", "stepscope-agent.service"])
def test_units_are_ones_that_systemd_takes(name, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    text = (DEPLOY / "systemd" / name).read_text()
    program = re.search(r"^ExecStart=(\S+)", text, re.MULTILINE)
    assert program
    unit = tmp_path / name
    unit.write_text(text.replace(program[1], "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert done.returncode == 0 and name not in done.stderr, done.stderr


def test_nginx_takes_its_file(tmp_path):
    nginx, openssl = shutil.which("nginx"), shutil.which("openssl")
    if nginx is None or openssl is None:
        pytest.skip("no nginx here")
    pair = [str(tmp_path / "k.pem"), str(tmp_path / "c.pem")]
    make = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x"]
    subprocess.run([*make, "-keyout", pair[0], "-out", pair[1]], check=True, capture_output=True)
    text = (DEPLOY / "nginx.conf").read_text()
    text = text.replace("/etc/ssl/private/stepscope.key", pair[0]).replace("/etc/ssl/certs/stepscope.pem", pair[1])
    folders = " ".join(
        f"{name}_temp_path {tmp_path}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    whole = tmp_path / "nginx.conf"
    whole.write_text(f"pid {tmp_path}/pid; events {{}} http {{ access_log off; {folders} {text} }}")
    done = subprocess.run([nginx, "-t", "-e", str(tmp_path / "log"), "-c", str(whole)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
