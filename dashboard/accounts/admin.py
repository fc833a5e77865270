"""For operators: people, projects, and tokens to look at and revoke."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.http import HttpRequest

from dashboard.accounts.models import AgentToken, Member, Project, User

admin.site.register(User, UserAdmin)


class MemberInline(admin.TabularInline):  # type: ignore[type-arg]
    model = Member
    extra = 0
    autocomplete_fields = ["user"]


@admin.register(Project)
class ProjectAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["name", "slug", "max_bytes", "created"]
    search_fields = ["name", "slug"]
    inlines = [MemberInline]
    # Set on the project's page, which notes who did.
    readonly_fields = ["keep_uploads_days", "keep_kernels_days", "keep_captures_days"]


@admin.register(AgentToken)
class AgentTokenAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["name", "project", "public", "created_by", "created", "expires", "revoked", "last_used"]
    list_filter = ["project"]
    readonly_fields = ["project", "name", "scopes", "public", "created_by", "created", "last_used"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # a token's text is shown once, on the project's page
