"""Addresses that differ from the page's own by a parameter."""

from __future__ import annotations

from typing import Any

from django import template
from django.http import HttpRequest
from django.template import Context
from django.urls import NoReverseMatch, reverse

register = template.Library()


@register.simple_tag
def sort_link(key: str, order: str, descending: bool, request: HttpRequest) -> dict[str, Any]:
    """A column head's link: sorts by `key`, turns the order round when it is on already."""
    params = request.GET.copy()
    params.pop("page", None)
    on = key == order
    now = request.GET.get("order", "")
    params["order"] = f"-{key}" if on and not now.startswith("-") else key
    aria = ("descending" if descending else "ascending") if on else "none"
    return {"href": f"?{params.urlencode()}", "on": on, "aria": aria, "css": "up" if on and not descending else ""}


@register.simple_tag(takes_context=True)
def querystring_without(context: Context, key: str) -> str:
    """The address's parameters without one of them and without the page."""
    params = context["request"].GET.copy()
    params.pop(key, None)
    params.pop("page", None)
    return f"?{params.urlencode()}"


@register.simple_tag
def optional_url(name: str, *args: Any) -> str:
    """The address of a page that another app may serve; empty when none does."""
    try:
        return reverse(name, args=args)
    except NoReverseMatch:
        return ""
