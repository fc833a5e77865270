from __future__ import annotations

from django.urls import URLPattern, path

from dashboard.runs.views import capture, compare, home, ranks, run_list, run_page, search, trends, violations

app_name = "runs"
urlpatterns: list[URLPattern] = [
    path("", home.home, name="home"),
    path("projects/<str:slug>/runs/", run_list.run_list, name="run_list"),
    path("projects/<str:slug>/runs.csv", run_list.run_list_csv, name="run_list_csv"),
    path("projects/<str:slug>/trends/", trends.trends, name="trends"),
    path("projects/<str:slug>/trends/<str:metric>/chart/", trends.trends_chart, name="trends_chart"),
    path("runs/<int:run_id>/", run_page.run_page, name="run"),
    path("runs/<int:run_id>/live/", run_page.run_live, name="run_live"),
    path("runs/<int:run_id>/edit/", run_page.run_edit, name="run_edit"),
    path("runs/<int:run_id>/series/<str:field>/chart/", run_page.run_chart, name="run_chart"),
    path("captures/<int:capture_id>/", capture.capture, name="capture"),
    path("captures/<int:capture_id>/charts/<str:name>/", capture.capture_chart, name="capture_chart"),
    path("captures/<int:capture_id>/ranks/", ranks.ranks, name="ranks"),
    path("captures/<int:capture_id>/ranks/<int:rank>/", ranks.step, name="step"),
    path("compare/", compare.compare, name="compare"),
    path("compare/charts/<str:name>/", compare.compare_chart, name="compare_chart"),
    path("violations/", violations.violations, name="violations"),
    path("violations/waive/", violations.waive, name="waive"),
    path("violations/unwaive/", violations.unwaive, name="unwaive"),
    path("search/", search.search, name="search"),
]
