"""The report as one HTML page: complete, self-contained, and safe whatever a file holds."""

from __future__ import annotations

import ast
import copy
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from analysis.cli import build_report, main
from analysis.markup import Html, bar, line, stacked, table, tag
from analysis.page import html_page
from analysis.printed import print_report
from analysis.synthetic import GptSpec, write_capture, write_rank
from analysis.units import file_names
from analysis.wording import CHINESE
from tests.analysis.small_dumps import whole_dump

HOSTILE = "</td><script>alert('x')</script><img src=//a.b onerror=\"y\">&amp;"


class Words(HTMLParser):
    """Texts of a page, its elements and their attributes; fails on elements that do not nest."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(name)
        self.attributes += attributes
        if name not in ("meta", "rect", "path"):
            self.open.append(name)

    def handle_startendtag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, text: str) -> None:
        self.text.append(text)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("page")
    spec = GptSpec(layers=4, tp=2, dp=2, mode="torch", casts=frozenset(["norm"]), step_us=200_000)
    write_capture(folder, spec, slow={1: 1.3}, export=("text", "trace"), run={"soc": "Ascend910B3"})
    found = build_report(folder)
    found["series"]["steps"] = [{"step": n, "loss": 10.0 - n, "step_time_ms": 200.0} for n in range(5)]
    return found


def test_every_part_of_the_report_has_its_section(report: dict[str, Any]) -> None:
    titles = re.findall(r"<h2>(.*?)</h2>", html_page(report, "run"))
    assert titles == [
        *("Fix first", "Steps", "Checklist", "Findings", "Layers", "Operators", "Casts", "Free time", "Communication"),
        *("Ranks", "Training log", "Configuration", "Not known"),
    ]


def test_page_needs_nothing_but_itself(report: dict[str, Any]) -> None:
    page = Words(html_page(report, "run"))
    assert not {"script", "link", "img", "iframe", "object"} & set(page.names)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href", "srcset")]
    assert "url(" not in html_page(report, "run")


def test_numbers_are_those_of_the_report(report: dict[str, Any]) -> None:
    text = " ".join(Words(html_page(report, "run")).text)
    slow = report["cluster"]["slow_ranks"][0]
    assert slow["rank"] == 1
    assert f"{slow['excess_us'] / 1000:,.2f} ms" in text
    layers = report["ranks"][0]["layers"]["parts"]
    third = sum(part["total_us"] for part in layers if part["layer"] == 3)
    assert f"{third / 1000:,.2f} ms" in text
    assert f"{report['checklist']['passed']} of" in text


CODE = re.compile(r"^[\w .:%,/()+*<>=@~-]*$")
LEFT = re.compile(
    r"(rank|Cast|MFU|HFU|TFLOPS|NPU|GiB|CANN|YAML|JSON|CSV|FFN|QKV|MoE|micro-batch|token|SDMA|RDMA|HCCS|GB/s|MB|ms|us|TP|DP|PP|"
    r"Level\d|MindStudio Probe|PyNative|pynative|torch_npu|text|graph|jit|host|LANG|json|--\S+)",
    re.IGNORECASE,
)


def literals(module: str) -> set[str]:
    """English texts that a module says: arguments of say(...), titles of tables and keyed sentences."""
    tree = ast.parse((Path(__file__).parents[2] / "analysis" / f"{module}.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    said = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "say"]
    either = [each for arg in said for each in ([arg.body, arg.orelse] if isinstance(arg, ast.IfExp) else [arg])]
    return {arg.value for arg in either if isinstance(arg, ast.Constant)}


@pytest.mark.parametrize("module", ["page", "page_tables", "printed"])
def test_every_text_is_there_in_chinese(module: str) -> None:
    texts = literals(module)
    assert texts
    assert [text for text in texts if text not in CHINESE] == []


def test_places_of_both_languages_are_the_same() -> None:
    for english, chinese in CHINESE.items():
        assert sorted(re.findall(r"{\w+}", english)) == sorted(re.findall(r"{\w+}", chinese)), english


def test_the_page_is_chinese_throughout(report: dict[str, Any]) -> None:
    page = html_page(report, "run", "zh")
    assert '<html lang="zh-Hans">' in page
    titles = re.findall(r"<h[23]>(.*?)</h[23]>", page)
    assert all(re.search("[\u4e00-\u9fff]", LEFT.sub("", title)) or title == "Cast" for title in titles)
    heads = re.findall(r"<th [^>]*>(.*?)</th>", page)
    assert [head for head in heads if head and not re.search("[\u4e00-\u9fff]", head) and LEFT.sub("", head)] == []
    sentences = [text for text in Words(page).text if text.count(" ") > 3 and not re.search("[\u4e00-\u9fff]", text)]
    assert [text for text in sentences if "{" not in text and not CODE.match(text)] == []
    shown = " ".join(text for text in Words(page).text if "--bg" not in text)
    assert not re.search(r"of the step|a step|unknown|forward|backward|\b(?:share|total|count)\b", shown)


def test_the_printed_report_is_chinese_throughout(report: dict[str, Any]) -> None:
    out = io.StringIO()
    print_report(report, Console(file=out, width=240, highlight=False), "zh")
    lines = [line for line in out.getvalue().splitlines() if line and not line.startswith(("┏", "┡", "└"))]
    assert "优先修复" in lines[1]
    heads = [cell.strip() for line in lines if line.startswith("┃") for cell in line.strip("┃").split("┃")]
    assert [head for head in heads if head and not re.search("[\u4e00-\u9fff]", head) and LEFT.sub("", head)] == []


@pytest.mark.parametrize(("arguments", "word"), [([], "Checklist"), (["--lang", "zh"], "检查清单")])
def test_language_is_chosen(arguments, word, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump, page = str(whole_dump(tmp_path)), tmp_path / "report.html"
    assert main(["report", dump, *arguments]) == 0
    assert word in capsys.readouterr().out
    assert main(["report", dump, "--html", str(page), *arguments]) == 0
    assert f"<h2>{word}</h2>" in page.read_text(encoding="utf-8")


def poisoned(value: Any) -> Any:
    """The same with every text hostile, but those that say what a thing is."""
    if isinstance(value, dict):
        kept = ("status", "id", "severity", "part", "pass", "block", "method", "verdict")
        return {key: item if key in kept else poisoned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item) for item in value]
    return HOSTILE if isinstance(value, str) else value


def test_texts_from_files_are_never_markup(report: dict[str, Any]) -> None:
    told = copy.deepcopy(report)
    told["source"]["environment"] = {"A": "B"}
    told["source"]["warnings"] = ["w"]
    told["config"] = {"name": "n"}
    page = html_page(poisoned(told), HOSTILE)
    words = Words(page)
    assert not {"script", "img"} & set(words.names)
    assert not [name for name, _ in words.attributes if name.startswith("on")]
    assert any(HOSTILE in text for text in words.text)


def test_unknown_is_a_dash_and_never_nought(tmp_path: Path) -> None:
    page = html_page(build_report(whole_dump(tmp_path)), "run")
    tiles = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)<small>", page))
    assert tiles["MFU"] == "–"
    assert tiles["Peak memory"] == "–"
    assert tiles["Step time"] == "0.13 ms"


def test_an_empty_report_still_makes_a_page() -> None:
    checklist = {"passed": 0, "failed": 0, "unknown": 8, "score": None, "items": []}
    bare = {"source": {}, "ranks": [], "checklist": checklist, "findings": [], "series": {"steps": []}}
    assert "What holds the step back is not known." in html_page(bare, "run")


def test_command_writes_the_page_and_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rank(tmp_path / "dump", GptSpec(layers=2), run={})
    assert main(["report", str(tmp_path / "dump"), "--html", str(tmp_path / "report.html")]) == 0
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert capsys.readouterr().out == ""


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(whole_dump(tmp_path)), "--html", str(tmp_path / "none" / "report.html")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_markup_escapes_children_and_attributes() -> None:
    assert tag("p", "<b>", Html("<i></i>"), title='"') == '<p title="&quot;">&lt;b&gt;<i></i></p>'
    assert tag("p", None) == "<p>–</p>"
    assert 'class="number"' in table(("a", "b"), [("x", 1)])


def test_bars_stay_inside_their_frame() -> None:
    assert 'width="100.00"' in bar(1.7)
    assert 'width="0.00"' in bar(-1.0)
    widths = [
        float(width) for width in re.findall(r' width="([\d.]+)"', stacked([("compute", 0.7), ("free", 0.9)], "x"))
    ]
    assert widths == [70.0, pytest.approx(30.0)]


def test_curve_leaves_holes_where_values_are_unknown() -> None:
    assert re.search(r'd="(.*?)"', line([1.0, None, 2.0, 3.0], "x")).group(1) == "M0.0 116.0M400.0 60.0L600.0 4.0"


def test_narrow_screens_leave_out_bars_that_repeat_a_number(tmp_path):
    page = html_page(build_report(whole_dump(tmp_path)), "t")
    assert '<td class="bars">' in page and ".bars { display: none; }" in page


def test_what_belongs_to_no_pass_has_a_dash(tmp_path):
    write_rank(tmp_path / "rank_0_ascend_pt", GptSpec(layers=2, mode="torch"), 0, 1)
    report = build_report(tmp_path)
    assert any(row["pass"] == "none" for row in report["ranks"][0]["layers"]["parts"])
    assert ">none<" not in html_page(report, "t")


def test_files_of_many_ranks_are_named_once():
    steps = [f"step_trace_raw_{rank}_detail_time.csv" for rank in (0, 1, 12)]
    assert file_names([*steps, "trace_view.json", None]) == "step_trace_raw_*_detail_time.csv, trace_view.json"
    assert file_names(["ascend_pytorch_profiler_0.db"]) == "ascend_pytorch_profiler_0.db"
    assert file_names([]) == ""
