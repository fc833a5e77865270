"""Texts stored by the rules of earlier versions, masked by those of today."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import call_command

from dashboard.ingest import remask
from dashboard.ingest.models import IncomingArchive
from dashboard.runs.models import Capture, Dump, Run
from tests.factories import make_capture, make_dump, make_run

CONFIG = "hub_token: abc\nmodel:\n  num_layers: 2\n"
SHOWN = 'hub_token: "***"\nmodel:\n  num_layers: 2\n'


def hide_secrets(verbosity: int = 1) -> list[str]:
    said = StringIO()
    call_command("hide_secrets", stdout=said, verbosity=verbosity)
    return said.getvalue().splitlines()


@pytest.fixture
def stored(project, data_root):
    """What a version that masked nothing would have left."""
    run = make_run(
        project,
        config_name="run.yaml",
        config_text=CONFIG,
        config_fingerprint="as it was",
        meta={"environment": {"HUB_TOKEN": "abc", "RANK_SIZE": "8"}, "command": "x --token abc", "world_size": 8},
    )
    source = {"environment": {"PROXY": "http://me:pw@h:80", "RANK_SIZE": "8"}, "world_size": 8, "soc": None}
    capture = make_capture(run, report={"source": source, "tokens": ["abc"]}, rollup_due=False)
    make_dump(capture, source=source)
    IncomingArchive.objects.create(project=project, run_key="r", config_name="run.yaml", config_text=CONFIG)
    return run


def test_secrets_of_all_stored_texts_are_hidden_and_the_rest_stays(stored):
    assert hide_secrets() == [
        "configs of runs: 1 read, 1 changed",
        "metadata of runs: 1 read, 1 changed",
        "configs of archives: 1 read, 1 changed",
        "environments of dumps: 1 read, 1 changed",
        "environments of captures: 1 read, 1 changed",
    ]
    run, capture, environment = Run.objects.get(), Capture.objects.get(), {"PROXY": "http://***@h:80", "RANK_SIZE": "8"}
    assert run.config_text == IncomingArchive.objects.get().config_text == SHOWN
    assert run.meta == {
        "environment": {"HUB_TOKEN": "***", "RANK_SIZE": "8"},
        "command": "x --token ***",
        "world_size": 8,
    }
    assert Dump.objects.get().source == {"environment": environment, "world_size": 8, "soc": None}
    assert capture.report["source"]["environment"] == environment and capture.report["tokens"] == ["abc"]
    assert run.config_fingerprint == "as it was" and not capture.rollup_due
    assert all(line.endswith(" 0 changed") for line in hide_secrets())


def test_rows_that_tell_nothing_stay_as_they_are(project, data_root):
    capture = make_capture(make_run(project))
    make_dump(capture)
    before = [list(model.objects.values()) for model in (Run, Capture, Dump)]
    assert all(line.endswith(" 0 changed") for line in hide_secrets())
    assert [list(model.objects.values()) for model in (Run, Capture, Dump)] == before


def test_what_was_stopped_goes_on_after_its_last_batch(project, data_root, monkeypatch):
    monkeypatch.setattr(remask, "BATCH", 2)
    for _ in range(5):
        make_run(project, config_name="run.yaml", config_text=CONFIG)
    halfway = remask.hide_again()
    assert next(halfway) == ("configs of runs", 2, 2, False)
    halfway.close()
    assert Run.objects.filter(config_text=SHOWN).count() == 2
    Run.objects.filter(config_text=SHOWN).update(config_text=CONFIG)  # would be hidden if it began anew
    assert hide_secrets(verbosity=2)[:3] == [
        "configs of runs: 4 read, 4 changed so far",
        "configs of runs: 5 read, 5 changed so far",
        "configs of runs: 5 read, 5 changed",
    ]
    assert Run.objects.filter(config_text=SHOWN).count() == 3
    hide_secrets()
    assert Run.objects.filter(config_text=SHOWN).count() == 5


def test_other_rules_begin_anew(project, data_root):
    make_run(project, config_name="run.yaml", config_text=CONFIG)
    data_root.mkdir(parents=True, exist_ok=True)
    (data_root / "hide_secrets.json").write_text(json.dumps({"rules": "of an earlier version", "place": 4, "after": 9}))
    assert hide_secrets()[0] == "configs of runs: 1 read, 1 changed"
    assert not (data_root / "hide_secrets.json").exists()


def test_what_a_client_sends_meanwhile_is_not_lost(stored):
    place = remask.PLACES[0]
    (row,) = place.rows(0)
    Run.objects.update(config_text="model:\n  num_layers: 4\n")
    assert place.hide(*row) == 0
    assert Run.objects.get().config_text == "model:\n  num_layers: 4\n"
