"""Secrets in what browsers and other clients tell of a run, and scripts and logs in place of a YAML."""

from __future__ import annotations

import pytest
from stepscope_agent.run_config import read_config

from dashboard.ingest import masks
from dashboard.ingest.models import IncomingArchive
from dashboard.runs.models import Run
from tests.e2e.test_run_config import CONFIG, SCRIPT

pytestmark = pytest.mark.django_db
LOG = """\
export HUB_TOKEN=do-not-send
  data_path .............. /secret/place
  hidden_size ............ 512
  num_layers ............. 2
  world_size ............. 8
 iteration 1/ 10 | loss 3.0
"""


@pytest.mark.parametrize(("name", "text"), [("run.yaml", CONFIG), ("train.sh", SCRIPT), ("rank0.log", LOG)])
def test_the_server_keeps_what_the_agent_would_send(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    sent = read_config(str(path))["text"]
    assert masks.kept_config(name, text) == sent
    assert masks.kept_config(name, sent) == sent
    assert "do-not-send" not in sent and "/secret/place" not in sent


def test_a_yaml_under_another_name_is_still_one():
    assert masks.kept_config("run.cfg", CONFIG) == masks.kept_config("run.yaml", CONFIG)


def test_names_that_sound_secret_and_texts_that_hold_one_are_hidden_in_metadata():
    meta = {
        "environment": {"HCCL_ALGO": "ring", "HUB_TOKEN": "abc", "PROXY": "http://me:pw@proxy:80"},
        "command": "python train.py --token abc --lr 1",
        "model": {"pad_token_id": 0, "tokens": 5, "apiKey": {"deep": "abc"}},
        "list": ["token=abc", 3, None, True],
    }
    assert masks.masked_meta(meta) == {
        "environment": {"HCCL_ALGO": "ring", "HUB_TOKEN": "***", "PROXY": "http://***@proxy:80"},
        "command": "python train.py --token *** --lr 1",
        "model": {"pad_token_id": 0, "tokens": 5, "apiKey": "***"},
        "list": ["token=***", 3, None, True],
    }


def test_secrets_of_an_api_client_are_not_stored(api, project):
    body = {"key": "r1", "config": {"name": "run.yaml", "text": CONFIG}, "meta": {"environment": {"MY_SECRET": "abc"}}}
    assert api.post(f"/projects/{project.slug}/runs", body).status_code == 201
    run = Run.objects.get(key="r1")
    assert "do-not-send" not in run.config_text and "num_layers: 2" in run.config_text
    assert run.meta["environment"] == {"MY_SECRET": "***"}


def test_a_script_with_an_archive_is_kept_as_sizes_alone(api, project):
    body = {"run": "r1", "files": [{"name": "a.zip", "size": 1}], "config": {"name": "train.sh", "text": SCRIPT}}
    assert api.post(f"/projects/{project.slug}/archives", body).status_code == 201
    archive = IncomingArchive.objects.get()
    assert archive.config_name == "train.sh"
    assert "--num-layers 2" in archive.config_text and "do-not-send" not in archive.config_text
