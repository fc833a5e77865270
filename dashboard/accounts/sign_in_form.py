"""The sign-in form in our own words."""

from __future__ import annotations

from typing import Any

from allauth.account.forms import LoginForm
from django.utils.translation import gettext_lazy as _


class SignInForm(LoginForm):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["login"].label = _("User name or e-mail")
        for name in ("login", "password"):
            # What a label says already need not stand in the field as well.
            self.fields[name].widget.attrs.pop("placeholder", None)
