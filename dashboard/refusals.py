"""Answers to requests that Django refuses before any view sees them."""

from __future__ import annotations

from django.conf import settings
from django.core.exceptions import RequestDataTooBig, TooManyFieldsSent, TooManyFilesSent
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views import defaults

from dashboard.runs.templatetags.units import bytes_text

TOO_LARGE = (RequestDataTooBig, TooManyFieldsSent, TooManyFilesSent)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """400 for what no page asks for; 413, with the limits, for a form that holds more than the server takes at once."""
    if not isinstance(exception, TOO_LARGE):
        return defaults.bad_request(request, exception)
    limits = {
        "bytes": bytes_text(settings.DATA_UPLOAD_MAX_MEMORY_SIZE),
        "fields": settings.DATA_UPLOAD_MAX_NUMBER_FIELDS,
    }
    return render(request, "413.html", limits, status=413)
