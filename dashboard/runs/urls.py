from __future__ import annotations

from django.urls import URLPattern, path

from dashboard.runs.views import (
    capture,
    compare,
    home,
    ranks,
    run_list,
    run_page,
    saved_views,
    search,
    step,
    trends,
    violations,
)

app_name = "runs"
urlpatterns: list[URLPattern] = [
    path("", home.home, name="home"),
    path("projects/<str:slug>/runs/", run_list.run_list, name="run_list"),
    path("projects/<str:slug>/runs.csv", run_list.run_list_csv, name="run_list_csv"),
    path("projects/<str:slug>/runs/change/", run_list.change_runs, name="change_runs"),
    path("projects/<str:slug>/views/", saved_views.save_view, name="save_view"),
    path("projects/<str:slug>/views/<int:view_id>/delete/", saved_views.delete_view, name="delete_view"),
    path("projects/<str:slug>/trends/", trends.trends, name="trends"),
    path("projects/<str:slug>/trends/<str:metric>/chart/", trends.trends_chart, name="trends_chart"),
    path("runs/<int:run_id>/", run_page.run_page, name="run"),
    path("runs/<int:run_id>/live/", run_page.run_live, name="run_live"),
    path("runs/<int:run_id>/edit/", run_page.run_edit, name="run_edit"),
    path("runs/<int:run_id>/series/<str:field>/chart/", run_page.run_chart, name="run_chart"),
    path("captures/<int:capture_id>/", capture.capture, name="capture"),
    path("captures/<int:capture_id>/live/", capture.capture_live, name="capture_live"),
    path("captures/<int:capture_id>/charts/<str:name>/", capture.capture_chart, name="capture_chart"),
    path("captures/<int:capture_id>/operators/", capture.operators, name="operators"),
    path("captures/<int:capture_id>/ranks/", ranks.ranks, name="ranks"),
    path("captures/<int:capture_id>/ranks/<int:rank>/", step.step, name="step"),
    path("captures/<int:capture_id>/ranks/<int:rank>/timeline/", step.step_timeline, name="step_timeline"),
    path("captures/<int:capture_id>/ranks/<int:rank>/timeline/boxes/", step.step_boxes, name="step_boxes"),
    path("captures/<int:capture_id>/ranks/<int:rank>/timeline/sums/", step.step_sums, name="step_sums"),
    path("captures/<int:capture_id>/ranks/<int:rank>/timeline/find/", step.step_find, name="step_find"),
    path("captures/<int:capture_id>/ranks/<int:rank>/timeline/kernel/", step.step_kernel, name="step_kernel"),
    path("captures/<int:capture_id>/ranks/<int:rank>/trace.json", step.step_trace, name="step_trace"),
    path("runs/<int:run_id>/pairs/", compare.run_pairs, name="run_pairs"),
    path("compare/", compare.compare, name="compare"),
    path("compare/charts/<str:name>/", compare.compare_chart, name="compare_chart"),
    path("violations/", violations.violations, name="violations"),
    path("violations/waive/", violations.waive, name="waive"),
    path("violations/assign/", violations.assign, name="assign"),
    path("violations/unwaive/", violations.unwaive, name="unwaive"),
    path("search/", search.search, name="search"),
]
