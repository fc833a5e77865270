"""Every page answers its members within a fixed number of queries, and nobody else at all."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.accounts.models import Member, Role, User
from dashboard.runs.models import Capture, ChecklistResult, Dump, DumpState, Run, StepRecord, Waiver
from tests.dashboard.host_data import fill_hosts
from tests.dashboard.page_data import entry, filled_project, ready_capture, report
from tests.factories import make_capture, make_dump, make_member, make_project, make_run, make_user

pytestmark = pytest.mark.django_db
MAX_QUERIES = 12


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def site(alice: User, client: Client) -> dict[str, Any]:
    project, captures = filled_project(alice)
    client.force_login(alice)
    fill_hosts(captures[0].run, captures[1].run)
    return {"project": project, "captures": captures, "run": captures[0].run, "capture": captures[0]}


def addresses(site: dict[str, Any]) -> list[str]:
    slug, run, capture = site["project"].slug, site["run"].pk, site["capture"].pk
    ids = ",".join(str(row.pk) for row in site["captures"])
    return [
        "/",
        f"/projects/{slug}/runs/",
        f"/projects/{slug}/runs/?mode=graph&q=Llama&fails=dtype_cast&order=-mfu",
        f"/projects/{slug}/runs.csv",
        f"/projects/{slug}/trends/",
        f"/projects/{slug}/trends/?metric=step_time_ns&q=Llama",
        f"/projects/{slug}/trends/mfu/chart/",
        f"/projects/{slug}/upload/",
        f"/projects/{slug}/hosts/",
        f"/runs/{run}/requests/",
        f"/runs/{run}/",
        f"/runs/{run}/live/",
        f"/runs/{run}/pairs/",
        f"/runs/{run}/series/loss/chart/",
        f"/runs/{run}/series/step_time/chart/",
        f"/captures/{capture}/",
        f"/captures/{capture}/?rank=1&grid=free_ns",
        f"/captures/{capture}/charts/steps/",
        f"/captures/{capture}/charts/waterfall/",
        f"/captures/{capture}/charts/layers/?against=median",
        f"/captures/{capture}/charts/ranks/",
        f"/captures/{capture}/charts/memory/?rank=0",
        f"/captures/{capture}/charts/links/?value=size",
        f"/captures/{capture}/charts/stages/",
        f"/captures/{capture}/ranks/",
        f"/captures/{capture}/ranks/compare/",
        f"/captures/{capture}/ranks/compare/charts/layers/",
        f"/captures/{capture}/charts/pipeline/",
        f"/captures/{capture}/charts/experts/",
        f"/captures/{capture}/ranks/0/",
        f"/compare/?captures={ids}",
        f"/compare/?captures={ids}&of=B",
        f"/compare/charts/steps/?captures={ids}",
        f"/compare/charts/layers/?captures={ids}",
        f"/compare/charts/series/?captures={ids}",
        "/violations/",
        "/cost/",
        "/violations/?waived=1",
        "/search/?q=Llama",
    ]


def test_every_page_answers_within_twelve_queries(site, client, django_assert_max_num_queries):
    for address in addresses(site):
        with django_assert_max_num_queries(MAX_QUERIES):
            response = client.get(address)
            b"".join(response.streaming_content) if response.streaming else response.content
        assert response.status_code == 200, address


def test_every_page_answers_in_chinese(site, client):
    client.cookies["django_language"] = "zh-hans"
    for address in addresses(site):
        assert client.get(address).status_code == 200, address


def test_pages_make_no_more_queries_for_more_runs(site, client, alice, django_assert_num_queries):
    def queries_of(address: str) -> int:
        from django.db import connection
        from django.test.utils import CaptureQueriesContext

        with CaptureQueriesContext(connection) as found:
            client.get(address)
        return len(found)

    pages = [
        "/",
        f"/projects/{site['project'].slug}/runs/",
        "/violations/",
        "/cost/",
        f"/projects/{site['project'].slug}/trends/",
    ]
    before = [queries_of(page) for page in pages]
    for day in range(10, 15):
        ready_capture(make_run(site["project"]), day=day)
    assert [queries_of(page) for page in pages] == before


def test_charts_stay_small(site, client):
    for address in addresses(site):
        if "chart" in address:
            response = client.get(address)
            assert response["Content-Type"] == "application/json"
            assert len(response.content) < 300_000, address


def test_a_thousand_ranks_make_a_small_chart(alice, client):
    run = make_run(make_project(owner=alice))
    capture = ready_capture(run, ranks=0)
    Dump.objects.bulk_create(
        Dump(capture=capture, rank=rank, step_time_ns=1_234_567_891, computing_ns=987_654_321 + rank,
             communication_not_overlapped_ns=123_456_789, free_ns=123_456_781, state=DumpState.DIGESTED)
        for rank in range(1000)
    )  # fmt: skip
    client.force_login(alice)
    response = client.get(f"/captures/{capture.pk}/charts/ranks/")
    assert len(response.content) < 300_000
    assert len(response.json()["table"]["rows"]) == 1000


def test_links_of_all_ranks_are_summed_by_the_database(alice, client, django_assert_max_num_queries):
    capture = ready_capture(make_run(make_project(owner=alice)), ranks=0)
    one = {"src": 0, "dst": 1, "link": "HCCS", "size_bytes": 1_000_000, "transit_us": 100.0}
    other = {"src": 1, "dst": 0, "link": "HCCS", "size_bytes": None, "transit_us": 50.0}
    for rank, links in enumerate(([one, one], [other], None)):
        make_dump(capture, rank=rank, state=DumpState.DIGESTED, entry={"links": links})
    client.force_login(alice)
    address = f"/captures/{capture.pk}/charts/links/"
    with django_assert_max_num_queries(MAX_QUERIES):
        found = client.get(f"{address}?value=bandwidth").json()
    assert found["table"]["rows"] == [["0 → 1", 10.0]]  # 2 MB in 200 us
    times = client.get(f"{address}?value=time").json()["table"]["rows"]
    assert sorted(times) == [["0 → 1", 0.2], ["1 → 0", 0.05]]


def test_a_thousand_ranks_stand_in_a_grid_with_the_slow_one_marked(alice, client):
    capture = ready_capture(make_run(make_project(owner=alice)), ranks=0)
    slow = {"rank": 517, "kind": "compute", "excess_us": 9000.0, "votes": 9, "of": 10}
    capture.report["cluster"]["slow_ranks"] = [slow]
    capture.save()
    Dump.objects.bulk_create(
        Dump(capture=capture, rank=rank, step_time_ns=1_000_000 + rank, state=DumpState.DIGESTED)
        for rank in range(1000)
    )  # fmt: skip
    client.force_login(alice)
    text = client.get(f"/captures/{capture.pk}/?grid=step_time_ns").content.decode()
    assert text.count('<div class="line"><span class="first">') == 32  # 31 lines of 32 and one of 8
    assert 'qslow" href="?rank=517&amp;grid=step_time_ns"' in text
    assert f"/captures/{capture.pk}/ranks/517/" in text and "9 of 10 collectives" in text
    assert len(text) < 400_000


def test_nobody_sees_a_page_without_signing_in(site):
    for address in addresses(site):
        response = Client().get(address)
        assert response.status_code == 302 and "/accounts/login/" in response["Location"], address


def test_things_of_a_foreign_project_are_not_found(site):
    stranger = Client()
    stranger.force_login(make_user("mallory"))
    everyones = ("/compare", "/violations", "/search", "/cost")
    for address in addresses(site):
        response = stranger.get(address)
        if address == "/" or address.startswith(everyones):
            text = response.content.decode()
            assert not any(capture.run.name in text for capture in site["captures"]), address
        else:
            assert response.status_code == 404, address


def test_a_page_carries_no_inline_style_script_or_foreign_address(site, client):
    for address in addresses(site):
        response = client.get(address)
        if not response.get("Content-Type", "").startswith("text/html"):
            continue
        text = response.content.decode()
        assert " style=" not in text and "<style" not in text and " onclick=" not in text, address
        assert "<script>" not in text and "https://" not in text, address


def test_names_from_dumps_are_shown_as_text(alice, client):
    evil = "<script>alert(1)</script>"
    run = make_run(make_project(owner=alice), name=evil, config_text=evil, meta={"environment": {evil: evil}})
    capture = ready_capture(run)
    Dump.objects.filter(capture=capture).update(entry={"op_types": [{"type": evil, "count": 1, "total_us": 1.0}]})
    client.force_login(alice)
    for address in (f"/runs/{run.pk}/", f"/captures/{capture.pk}/", "/", f"/projects/{run.project.slug}/runs/"):
        text = client.get(address).content.decode()
        assert evil not in text and "&lt;script&gt;alert(1)" in text, address


def test_numbers_of_a_capture_say_how_many_ranks_they_stand_for(site, client):
    address = f"/captures/{site['capture'].pk}/"
    known = {"device_ratio": 0.9, "cast_ratio": 0.1, "exposed_communication_ratio": None, "peak_memory_bytes": 2**30}
    Capture.objects.filter(pk=site["capture"].pk).update(**known)
    page = client.get(address).content.decode()
    # device ratio and Cast share; what is unknown stands for no rank
    assert page.count('<div class="under">over 2 ranks</div>') == 2 and "largest of 2 ranks" in page
    Dump.objects.filter(capture=site["capture"], rank=1).delete()
    alone = client.get(address).content.decode()
    assert "over 1" not in alone and "largest of" not in alone


def test_a_capture_without_any_report_still_has_a_page(alice, client):
    capture = make_capture(make_run(make_project(owner=alice)))
    make_dump(capture, state=DumpState.FAILED, error="kernel_details.csv is empty")
    client.force_login(alice)
    response = client.get(f"/captures/{capture.pk}/")
    assert "kernel_details.csv is empty" in response.content.decode()
    assert client.get(f"/captures/{capture.pk}/charts/waterfall/").json()["empty"] is True


def test_one_rank_of_many_says_what_more_would_show(alice, client):
    capture = ready_capture(make_run(project=make_project("lone", owner=alice), world_size=8))
    client.force_login(alice)
    page = client.get(capture.get_absolute_url()).content.decode()
    assert "One rank of 8 was sent." in page
    assert "Choose a rank to see it" not in page


def test_an_unknown_item_names_the_files_and_switches_that_would_answer_it(site, client):
    capture = site["capture"]
    missing = [
        {"file": "compare_result.csv", "hides": ["weight_alignment"], "how": "put it beside the dump"},
        {"file": "trace_view.json", "hides": ["free_time"], "how": "upload with --with-trace"},
        {"file": "kernel_details.csv", "hides": ["dtype_cast"], "how": "profile with Level1"},
    ]
    capture.report = {**capture.report, "source": {"missing": missing, "warnings": []}}
    capture.save()
    page = client.get(capture.get_absolute_url()).content.decode()
    supply = "<code>compare_result.csv</code>: put it beside the dump"
    assert page.count(supply) == 1 and page.index(supply) > page.index('id="check-weight_alignment"')
    assert "<code>kernel_details.csv</code>" not in page  # dtype_cast was judged


def test_step_records_that_came_as_a_log_are_not_called_missing(site, client):
    capture = site["capture"]
    missing = [{"file": "stepscope_steps.jsonl", "hides": ["loss"], "how": "pass --log"}]
    capture.report = {**capture.report, "source": {"missing": missing, "warnings": []}}
    capture.save()
    Run.objects.filter(pk=capture.run_id).update(spark_metric="capture_step_time")
    assert "stepscope_steps.jsonl" in client.get(capture.get_absolute_url()).content.decode()
    Run.objects.filter(pk=capture.run_id).update(spark_metric="step_time")
    assert "stepscope_steps.jsonl" not in client.get(capture.get_absolute_url()).content.decode()


def test_a_saving_within_those_above_it_is_told_as_such(alice, client):
    rows = [
        {"id": key, "source": "finding", "recoverable_us": us, "combined_us": 170e3, "combined_step_time_us": 830e3}
        for key, us in (("slow_rank", 170e3), ("exposed_communication", 71e3))
    ]
    found = {"step_time_us": 1e6, "recoverable_us": 170e3, "mfu": None, "mfu_after": None, "items": rows}
    capture = ready_capture(make_run(project=make_project("both", owner=alice)))
    capture.report = {**report(), "fix_first": found}
    capture.save()
    client.force_login(alice)
    page = client.get(capture.get_absolute_url()).content.decode()
    assert page.count("830\u202fms") == 2  # once of all together, once in the first line
    assert page.count("within what stands above") == 1


def test_the_verdict_names_the_loss_and_what_to_win(site, client):
    text = client.get(f"/captures/{site['capture'].pk}/").content.decode()
    assert "Scheduling bound" in text
    assert "30.0\u202f% goes to waiting for the host" in text
    assert "200\u202fµs a step from “Graph mode and sink”" in text


def test_checklist_texts_are_in_the_readers_language(site, client):
    client.cookies["django_language"] = "zh-hans"
    text = client.get(f"/captures/{site['capture'].pk}/").content.decode()
    assert "dtype_cast：fail。" in text and "请这样做。" in text


def test_runs_are_filtered_sorted_and_counted(site, client):
    base = f"/projects/{site['project'].slug}/runs/"
    found = client.get(f"{base}?mode=graph&order=mfu").context["found"]
    assert [run.name for run in found.page] == ["Llama graph 2", "Llama graph 1"]
    assert [(chip.key, chip.value) for chip in found.chips] == [("mode", "graph")]
    assert [run.name for run in client.get(f"{base}?order=step_time").context["found"].page][0] == "Llama graph 2"
    assert client.get(f"{base}?q=nothing").context["found"].page.paginator.count == 0


def test_an_order_nobody_offers_is_ignored(site, client):
    base = f"/projects/{site['project'].slug}/runs/"
    for order in ("project__owner", "-password", "; drop table", "--mfu"):
        assert client.get(base, {"order": order}).status_code == 200


def test_htmx_gets_the_rows_alone(site, client):
    text = client.get(f"/projects/{site['project'].slug}/runs/", headers={"HX-Request": "true"}).content.decode()
    assert "Llama graph 1" in text and "<html" not in text


def test_archived_runs_are_listed_on_demand(site, client):
    Run.objects.filter(pk=site["run"].pk).update(archived=True)
    base = f"/projects/{site['project'].slug}/runs/"
    assert client.get(base).context["page"].paginator.count == 2
    assert client.get(f"{base}?archived=1").context["page"].paginator.count == 3


def test_csv_has_a_row_per_run_and_defuses_formulas(site, client):
    Run.objects.filter(pk=site["run"].pk).update(name="=HYPERLINK(1)")
    response = client.get(f"/projects/{site['project'].slug}/runs.csv")
    lines = b"".join(response.streaming_content).decode().splitlines()
    assert len(lines) == 4
    assert "'=HYPERLINK(1)" in "\n".join(lines)


def test_ticked_runs_lead_to_their_newest_captures(site, client):
    runs = [capture.run_id for capture in site["captures"]]
    ids = [str(capture.pk) for capture in site["captures"]]
    # Ticked rows come in order of time, however the list stands; an address that orders runs keeps its order.
    assert client.get("/compare/", {"run": runs[::-1]})["Location"] == f"/compare/?captures={','.join(ids)}"
    named = ",".join(str(run) for run in runs[::-1])
    assert client.get("/compare/", {"runs": named})["Location"] == f"/compare/?captures={','.join(ids[::-1])}"


def test_the_search_field_gets_the_first_of_what_is_found(site, client):
    answer = client.get("/search/?q=llama", headers={"HX-Request": "true"})
    html = answer.content.decode()
    assert html.count("<a ") == 3 + 1 and "/search/?q=llama" in html and "<html" not in html
    assert answer["Vary"].count("HX-Request") == 1
    assert "Nothing found" in client.get("/search/?q=zzz", headers={"HX-Request": "true"}).content.decode()
    assert client.get("/search/?q=", headers={"HX-Request": "true"}).content.strip() == b""


def test_tables_of_many_captures_stand_below_each_other(site, client):
    ids = [capture.pk for capture in site["captures"]]
    Dump.objects.filter(capture=ids[0]).update(entry=entry(cast_us=90.0))  # so that operators differ
    more = [ready_capture(site["run"], day=day, key=f"more-{day}").pk for day in (5, 6)]
    for chosen, width in ((ids, "s5"), ([*ids, *more], "s12")):
        lines = client.get(f"/compare/?captures={','.join(map(str, chosen))}").content.decode().splitlines()
        html = "".join(map(str.strip, lines))
        assert f'<section class="card {width}"><header><h2>Checklist' in html


def test_curves_of_runs_are_laid_over_each_other_by_step_or_from_their_first_step(site, client):
    first, second = site["captures"][0], site["captures"][2]
    StepRecord.objects.all().delete()
    for run, start in ((first.run, 1), (second.run, 1001)):
        StepRecord.objects.bulk_create(
            StepRecord(run=run, step=start + index, loss=10.0 - index, source="log") for index in range(3)
        )
    address = f"/compare/charts/series/?captures={first.pk},{second.pk}"
    for align, steps in (("", [1001, 1002, 1003]), ("first", [0, 1, 2])):
        lines = client.get(f"{address}&align={align}").json()["options"]["series"]
        assert [at[0] for at in lines[1]["data"]] == steps
        assert {line["name"] for line in lines[2:]} == {"_low", "_band"}


def test_comparing_leaves_out_what_one_may_not_see(site, client):
    foreign = ready_capture(make_run(make_project()))
    response = client.get(f"/compare/?captures={site['capture'].pk},{foreign.pk}")
    assert foreign.run.name not in response.content.decode()
    assert response.templates[0].name == "runs/compare_empty.html"


def test_a_waived_violation_is_closed_until_it_expires(site, client, alice):
    run = site["run"]
    day = timezone.localdate() + timedelta(days=7)
    client.post("/violations/waive/", {"run": run.pk, "item": "dtype_cast", "reason": "known", "expires": day})
    open_now = [(row.capture.run_id, row.item) for row, *_rest in client.get("/violations/?runs=all").context["rows"]]
    assert (run.pk, "dtype_cast") not in open_now and (run.pk, "graph_sink") in open_now
    waived = client.get("/violations/?waived=1").context["rows"]
    assert [(waiver.owner, waiver.reason) for _row, waiver, *_rest in waived] == [(alice, "known")]
    Waiver.objects.update(expires=timezone.localdate() - timedelta(days=1))
    page = client.get("/violations/?runs=all")
    again = [(row.capture.run_id, row.item) for row, *_rest in page.context["rows"]]
    assert (run.pk, "dtype_cast") in again
    assert "waiver of alice ended" in page.content.decode()


def test_a_violation_is_assigned_to_a_member_and_stays_open(site, client):
    make_user("bob")
    run, item = site["run"].pk, "graph_sink"
    answer = client.post("/violations/assign/", {"run": run, "item": item, "owner": "bob"}, follow=True)
    assert "bob is no owner or member of this project." in answer.content.decode()
    Member.objects.create(project=site["project"], user=User.objects.get(username="bob"))
    answer = client.post(
        "/violations/assign/", {"run": run, "item": item, "owner": "bob", "query": "runs=all"}, follow=True
    )
    text = answer.content.decode()
    assert "Assigned to bob." in text and "<b>bob</b>" in text
    client.post("/violations/assign/", {"run": run, "item": item, "owner": ""})
    assert "<b>bob</b>" not in client.get("/violations/?runs=all").content.decode()


def test_a_waiver_may_name_another_member_as_its_owner(site, client, alice):
    bob = make_user("bob")
    day = timezone.localdate() + timedelta(days=7)
    data = {"run": site["run"].pk, "item": "dtype_cast", "reason": "known", "expires": day, "owner": "bob"}
    answer = client.post("/violations/waive/", data, follow=True)
    assert "bob is no owner or member of this project." in answer.content.decode() and not Waiver.objects.exists()
    viewer = make_member(site["project"], bob, Role.VIEWER)
    # Who may change nothing answers for nothing, and is not offered.
    answer = client.post("/violations/waive/", data, follow=True)
    assert "bob is no owner or member of this project." in answer.content.decode() and not Waiver.objects.exists()
    assert "bob" not in answer.context["members"]
    Member.objects.filter(pk=viewer.pk).update(role=Role.MEMBER)
    assert "bob" in client.get("/violations/?runs=all").context["members"]
    client.post("/violations/waive/", data)
    waiver = Waiver.objects.get()
    assert (waiver.owner, waiver.given_by) == (bob, alice)
    assert "(waived by alice)" in client.get("/violations/?waived=1").content.decode()


def test_the_overview_shows_what_fails_now_and_the_list_tells_what_is_fixed(site, client):
    new = site["captures"][-1]
    ChecklistResult.objects.filter(run=new.run, item="dtype_cast").update(status="pass")
    home = client.get("/")
    assert [(result.run_id, result.item) for result in home.context["worst"]] == [(new.run_id, "graph_sink")]
    assert f"newest run: {new.run.name}" in home.content.decode()
    page = client.get("/violations/?runs=all").content.decode()
    assert page.count(f"passes in {new.run.name}") == 2
    only = client.get("/violations/")
    assert [(result.run_id, result.item) for result in only.context["page"]] == [(new.run_id, "graph_sink")]
    # Two older runs fail two items each.
    assert "4 more in older runs of these models." in only.content.decode()
    assert [row["count"] for row in only.context["totals"]] == [1]


def test_runs_that_name_no_model_are_all_listed_at_first(site, client):
    Run.objects.update(model_name="")
    assert len(client.get("/violations/").context["page"]) == 6
    assert client.get("/violations/").context["older"] == 0


def test_deciding_on_a_violation_leads_back_to_the_list_as_it_was(site, client):
    data = {"run": site["run"].pk, "item": "graph_sink", "owner": "", "query": "runs=all&item=graph_sink"}
    assert client.post("/violations/assign/", data)["Location"] == "/violations/?runs=all&item=graph_sink"
    assert client.post("/violations/unwaive/", {**data, "query": ""})["Location"] == "/violations/"
    html = client.get("/violations/?runs=all&item=graph_sink").content.decode()
    assert html.count('name="query" value="runs=all&amp;item=graph_sink"') == 2


def test_what_violations_cost_shows_time_cards_and_steps(site, client):
    # 450 ms a step on 8 cards over 1 000 steps: 3 600 s, one hour.
    found = ChecklistResult.objects.filter(run=site["run"], item="dtype_cast")
    found.update(recoverable_ns=450_000_000, lost_ns=450e6 * 8 * 1000)
    text = " ".join(client.get("/violations/?runs=all").content.decode().split())
    assert "<b>1.00</b>" in text and "450 ms × 8 × 1,000" in text


def test_a_waiver_of_every_run_holds_for_later_runs_of_the_model_alone(site, client, alice):
    old, _middle, new = (capture.run for capture in site["captures"])
    day = timezone.localdate() + timedelta(days=7)
    data = {"run": old.pk, "item": "dtype_cast", "reason": "known", "expires": day, "every_run": "on"}
    client.post("/violations/waive/", data)

    def listed(query: str) -> set[tuple[int, str]]:
        return {(row.run_id, row.item) for row in client.get(f"/violations/?{query}").context["page"]}

    assert listed("") == {(new.pk, "graph_sink")}
    assert len(listed("waived=1")) == 3
    html = client.get("/violations/?waived=1").content.decode()
    assert html.count("every run of llama2_7b") == 3 and html.count('<span class="muted">known</span>') == 3
    # Another model is another matter, and so is a run that names none.
    for name in ("another", ""):
        Run.objects.filter(pk=new.pk).update(model_name=name)
        assert (new.pk, "dtype_cast") in listed("")
    Run.objects.filter(pk=new.pk).update(model_name=old.model_name)
    Waiver.objects.update(expires=timezone.localdate() - timedelta(days=1))
    assert (new.pk, "dtype_cast") in listed("") and "waiver of alice ended" in client.get(
        "/violations/"
    ).content.decode()
    Waiver.objects.update(expires=day)
    # Opened again from any of the runs that it speaks of.
    client.post("/violations/unwaive/", {"run": new.pk, "item": "dtype_cast"})
    assert not Waiver.objects.exists()


def test_a_waiver_ends_within_a_year(site, client):
    for days in (0, -1, 800):
        day = timezone.localdate() + timedelta(days=days)
        data = {"run": site["run"].pk, "item": "dtype_cast", "reason": "x", "expires": day}
        client.post("/violations/waive/", data)
    assert not Waiver.objects.exists()


def test_a_waiver_gives_its_reason_in_a_thousand_letters(site, client):
    day = timezone.localdate() + timedelta(days=7)
    for letters, kept in ((1001, 0), (1000, 1)):
        data = {"run": site["run"].pk, "item": "dtype_cast", "reason": "x" * letters, "expires": day}
        client.post("/violations/waive/", data)
        assert Waiver.objects.count() == kept


def test_viewers_change_nothing(site):
    viewer = make_user("vera")
    make_member(site["project"], viewer, Role.VIEWER)
    client = Client()
    client.force_login(viewer)
    day = timezone.localdate() + timedelta(days=7)
    data = {"run": site["run"].pk, "item": "dtype_cast", "reason": "x", "expires": day}
    assert client.post("/violations/waive/", data).status_code == 403
    assert client.post(f"/runs/{site['run'].pk}/edit/", {"name": "x"}).status_code == 403
    assert client.get(f"/projects/{site['project'].slug}/upload/").status_code == 403
    assert client.get(f"/runs/{site['run'].pk}/").status_code == 200


def test_a_run_gets_tags_and_a_name(site, client):
    client.post(f"/runs/{site['run'].pk}/edit/", {"name": "Better", "tags": "night, graph , night"})
    run = Run.objects.get(pk=site["run"].pk)
    assert (run.name, run.tags) == ("Better", ["night", "graph"])


def test_the_environment_is_listed_without_the_layers_that_were_compared(site, client):
    meta = {"command": "msrun", "environment": {"HCCL_ALGO": "ring"}, "alignment": {"layers": [{"name": "model.0"}]}}
    Run.objects.filter(pk=site["run"].pk).update(meta=meta)
    page = client.get(f"/runs/{site['run'].pk}/").content.decode()
    assert "<b>environment.HCCL_ALGO</b>=ring" in page and "<b>command</b>=msrun" in page
    assert "alignment.layers" not in page


def test_the_live_part_polls_while_dumps_are_underway(site, client):
    address = f"/runs/{site['run'].pk}/live/"
    make_dump(site["capture"], rank=7, state=DumpState.DIGESTING, progress=0.5)
    response = client.get(address)
    assert 'hx-trigger="every 3s"' in response.content.decode() and "HX-Refresh" not in response
    Dump.objects.filter(rank=7).update(state=DumpState.DIGESTED)
    Capture.objects.filter(pk=site["capture"].pk).update(rollup_due=True)
    assert "HX-Refresh" not in client.get(address)  # its numbers are not on the page yet
    Capture.objects.filter(pk=site["capture"].pk).update(rollup_due=False)
    assert client.get(address)["HX-Refresh"] == "true"


def test_a_capture_polls_until_it_is_summed_up_and_then_loads_itself_again(site, client):
    capture = site["capture"]
    address = f"/captures/{capture.pk}/live/"
    assert address not in client.get(f"/captures/{capture.pk}/").content.decode()
    rank = capture.dumps.filter(rank=1)
    rank.update(state=DumpState.DIGESTING)
    assert f'hx-get="{address}"' in client.get(f"/captures/{capture.pk}/").content.decode()
    polled = client.get(address)
    assert "still on its way" in polled.content.decode() and "HX-Refresh" not in polled
    rank.update(state=DumpState.DIGESTED)
    Capture.objects.filter(pk=capture.pk).update(rollup_due=True)
    assert "summed up" in client.get(address).content.decode()
    Capture.objects.filter(pk=capture.pk).update(rollup_due=False)
    assert client.get(address)["HX-Refresh"] == "true"


def test_a_failed_dump_shows_why_and_a_retry_button(site, client):
    dump = make_dump(site["capture"], rank=7, state=DumpState.FAILED, error="trace is cut", attempts=3)
    text = client.get(f"/runs/{site['run'].pk}/").content.decode()
    assert "trace is cut" in text and f"/dumps/{dump.pk}/retry/" in text


def test_chart_json_of_a_hostile_name_stays_json(site, client):
    Run.objects.filter(pk=site["run"].pk).update(name="</script><b>")
    response = client.get(f"/projects/{site['project'].slug}/trends/mfu/chart/")
    assert response["Content-Type"] == "application/json"
    assert json.loads(response.content)["table"]["rows"][0][0].startswith("</script><b>")
