from __future__ import annotations

import pytest

from dashboard.accounts.models import AgentToken, Project


@pytest.mark.django_db
def test_a_token_is_found_by_its_text_and_stored_hashed():
    token, text = AgentToken.objects.issue(Project.objects.create(slug="gpt", name="GPT"), "host01", ["upload"])
    assert AgentToken.objects.find(text) == token
    assert text.rsplit("_", 1)[1] not in (token.digest, token.public)
    assert AgentToken.objects.find(text + "x") is None
