from __future__ import annotations

from django.urls import URLPattern, path

from dashboard.accounts import account_views, views

app_name = "accounts"
urlpatterns: list[URLPattern] = [
    path("account/", account_views.account, name="account"),
    path("account/end-sessions/", account_views.end_sessions, name="end_sessions"),
    path("accounts/oidc/<str:provider_id>/login/", account_views.sso_login, name="sso_login"),
    path("projects/new/", views.project_new, name="project_new"),
    path("projects/<str:slug>/settings/", views.project_settings, name="project_settings"),
    path("projects/<str:slug>/settings/edit/", views.project_edit, name="project_edit"),
    path("projects/<str:slug>/settings/retention/", views.retention_edit, name="retention_edit"),
    path("projects/<str:slug>/members/", views.member_add, name="member_add"),
    path("projects/<str:slug>/members/<int:member_id>/role/", views.member_role, name="member_role"),
    path("projects/<str:slug>/members/<int:member_id>/remove/", views.member_remove, name="member_remove"),
    path("projects/<str:slug>/tokens/", views.token_new, name="tokens"),
    path("projects/<str:slug>/tokens/<int:token_id>/revoke/", views.token_revoke, name="token_revoke"),
]
