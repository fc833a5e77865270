"""The agent's examples in deploy/ name options that it has."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path

import yaml
from stepscope_agent.cli import parser

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"


def options(command: list[str]) -> dict[str, object]:
    program = next(place for place, part in enumerate(command) if part.endswith("stepscope-agent.pyz"))
    return vars(parser().parse_args(command[program + 1 :]))


def test_the_service_runs_a_command_that_the_agent_knows():
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "systemd" / "stepscope-agent.service").read_text())
    given = options(shlex.split(unit["Service"]["ExecStart"]))
    assert (given["folders"], given["analyse"]) == (["/data/profiles"], True)
    assert unit["Service"]["ReadWritePaths"] == "/data/profiles"


def test_the_sidecar_sees_what_the_training_writes():
    pod = yaml.safe_load((DEPLOY / "kubernetes" / "agent-sidecar.yaml").read_text())["spec"]
    (training,), (agent,) = pod["containers"], pod["initContainers"]
    given = options(agent["command"])
    assert agent["restartPolicy"] == "Always"
    for container in (training, agent):
        assert given["folders"][0] in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert {volume["name"] for volume in pod["volumes"]} == {mount["name"] for mount in agent["volumeMounts"]}
