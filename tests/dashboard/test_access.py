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


@pytest.mark.parametrize(
    "path",
    [
        "/projects/{}%00/runs/",
        "/projects/{}/runs/?q=%00",
        "/projects/{}/runs.csv?framework=a%00",
        "/projects/{}/trends/?q=%00",
        "/violations/?project=%00",
        "/search/?q=%00",
        "/alerts/?project=%00",
    ],
)
def test_an_address_with_a_nul_is_a_bad_request(client, path):
    owner = make_user()
    client.force_login(owner)
    assert client.get(path.format(make_project(owner=owner).slug)).status_code == 400


def test_a_waiver_for_a_number_without_end_names_no_violation(client):
    client.force_login(make_user())
    response = client.post("/violations/waive/", {"run": "9" * 5000, "item": "dtype_cast"})
    assert response.status_code == 302
