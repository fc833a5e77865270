from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone, translation

from dashboard.runs.templatetags.moments import ago, ago_text, moment

MINUTE, HOUR, DAY = 60, 3600, 86_400


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "just now"),
        (59, "just now"),
        (MINUTE, "1 minute ago"),
        (90 * MINUTE, "90 minutes ago"),
        (2 * HOUR, "2 hours ago"),
        (47 * HOUR, "47 hours ago"),
        (6 * DAY + 8 * HOUR, "6 days ago"),
        (14 * DAY, "2 weeks ago"),
        (100 * DAY, "3 months ago"),
        (800 * DAY, "2 years ago"),
    ],
)
def test_a_span_is_told_in_one_unit(seconds, text):
    assert ago_text(seconds) == text


def test_a_chinese_reader_reads_it_in_chinese():
    with translation.override("zh-hans"):
        assert (ago_text(6 * DAY + 8 * HOUR), ago_text(3 * HOUR)) == ("6 天前", "3 小时前")


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_dates_read_the_same_in_both_languages(language):
    with translation.override(language):
        shown = moment(datetime(2026, 11, 23, 17, 26, tzinfo=UTC))
    assert shown == '<time datetime="2026-11-23T17:26:00+00:00" title="2026-11-23 17:26 UTC">2026-11-23 17:26</time>'


def test_how_long_ago_keeps_the_exact_moment_and_unknown_stays_unknown():
    when = timezone.now() - timedelta(days=3)
    assert f"{when:%Y-%m-%d %H:%M} UTC" in ago(when) and "3 days ago" in ago(when)
    assert "unknown" in ago(None) and "unknown" in moment(None)
