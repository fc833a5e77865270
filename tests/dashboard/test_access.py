from __future__ import annotations

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.http import Http404

from dashboard.accounts.models import Role
from dashboard.runs import access
from tests.factories import make_capture, make_dump, make_member, make_project, make_run, make_user

pytestmark = pytest.mark.django_db


def test_members_get_what_strangers_do_not_find():
    member, stranger = make_user(), make_user()
    project = make_project(owner=member)
    make_project(owner=stranger)
    capture = make_capture(make_run(project))
    make_dump(capture, rank=3)
    looks = (
        lambda user: access.get_project_or_404(user, project.slug),
        lambda user: access.get_run_or_404(user, capture.run_id),
        lambda user: access.get_capture_or_404(user, capture.pk),
        lambda user: access.get_dump_or_404(user, capture.pk, 3),
    )
    for look in looks:
        assert look(member)
        for user in (stranger, AnonymousUser()):
            with pytest.raises(Http404):
                look(user)


def test_a_superuser_sees_everything():
    run = make_run()
    assert access.get_run_or_404(make_user(is_superuser=True), run.pk) == run


def test_a_role_that_does_not_suffice_is_refused_and_a_stranger_not_found():
    project = make_project()
    viewer = make_user()
    make_member(project, viewer, Role.VIEWER)
    with pytest.raises(PermissionDenied):
        access.require_role(viewer, project, *access.CHANGERS)
    with pytest.raises(Http404):
        access.require_role(make_user(), project, *access.CHANGERS)
    access.require_role(make_user(is_superuser=True), project, *access.CHANGERS)
