from __future__ import annotations

import pytest

from dashboard.env import env_bool, env_int, env_list, env_secret


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("true", True), ("ON", True), ("0", False), ("", False), ("no", False)]
)
def test_switches(monkeypatch, text, value):
    monkeypatch.setenv("X", text)
    assert env_bool("X", True) is value


def test_lists_drop_blanks(monkeypatch):
    monkeypatch.setenv("X", " a, ,b ,")
    assert env_list("X") == ["a", "b"]


def test_a_secret_may_be_in_a_file(monkeypatch, tmp_path):
    (tmp_path / "secret").write_text("s3cret\n")
    monkeypatch.setenv("X", "other")
    monkeypatch.setenv("X_FILE", str(tmp_path / "secret"))
    assert env_secret("X") == "s3cret"
    monkeypatch.delenv("X_FILE")
    assert env_secret("X") == "other"


def test_a_number_that_is_none_names_the_setting(monkeypatch):
    monkeypatch.setenv("STEPSCOPE_MAX_DUMP_FILES", "many")
    with pytest.raises(ValueError, match="STEPSCOPE_MAX_DUMP_FILES must be a whole number, not 'many'"):
        env_int("STEPSCOPE_MAX_DUMP_FILES", 5)
