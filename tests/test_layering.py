"""Who may import whom, read from the source; and what must stand, or must never stand, in tracked files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = {"agents", "stepscope_agent", "analysis", "dashboard", "tests"}
FRAMEWORKS = {"mindspore", "mindformers", "torch", "torch_npu"}
"""Whose trainings the agent records; none of them is beside the server."""
LOWER = {"accounts": set(), "runs": {"accounts"}}
LOWER |= {
    "ingest": {"accounts", "runs"},
    "hosts": {"accounts", "runs", "ingest"},
    "alerts": {"accounts", "runs", "ingest", "hosts"},
    "mcp": {"accounts", "runs", "ingest", "alerts"},
    "demo": {"accounts", "runs", "ingest", "alerts"},
}


def imports(folder: str) -> list[tuple[Path, str]]:
    """Every module imported anywhere in a Python file under `folder`, inside functions too."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                found += [(path.relative_to(ROOT), alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                found.append((path.relative_to(ROOT), "." * node.level + (node.module or "")))
    return found


def top(module: str) -> str:
    return module.partition(".")[0]


def test_agents_need_the_standard_library_alone():
    allowed = sys.stdlib_module_names | {"stepscope_agent", *FRAMEWORKS}
    wrong = [
        (str(path), name) for path, name in imports("agents") if not name.startswith(".") and top(name) not in allowed
    ]
    assert wrong == []


def test_the_agent_loads_a_framework_only_when_asked_to():
    at_import = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "agents/stepscope_agent").rglob("*.py"))
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.Import | ast.ImportFrom) and ast.unparse(node).split()[1].split(".")[0] in FRAMEWORKS
    ]
    # the one module that exists to be imported by MindSpore Transformers
    assert at_import == ["agents/stepscope_agent/mindformers.py"]


def test_analysis_knows_nothing_of_the_rest():
    forbidden = {"django", "celery", "dashboard", "agents", "stepscope_agent", "tests"}
    assert [(str(path), module) for path, module in imports("analysis") if top(module) in forbidden] == []


def test_analysis_never_reads_the_environment():
    found = [
        path for path in sorted((ROOT / "analysis").rglob("*.py")) if re.search(r"os\.environ|getenv", path.read_text())
    ]
    assert [str(path.relative_to(ROOT)) for path in found] == []


def test_dashboard_imports_neither_agents_nor_tests():
    forbidden = {"agents", "stepscope_agent", "tests"}
    wrong = [(str(path), module) for path, module in imports("dashboard") if top(module) in forbidden]
    assert wrong == []


def test_apps_import_only_what_is_below_them():
    wrong = []
    for path, module in imports("dashboard"):
        parts, target = path.parts, module.split(".")
        if parts[1] in LOWER and target[0] == "dashboard" and len(target) > 1 and target[1] in LOWER:
            wrong += [(str(path), module)] if target[1] not in LOWER[parts[1]] | {parts[1]} else []
    assert wrong == []


def test_no_polars_work_at_import_time():
    """A process forked after Polars has worked hangs: modules may import it and no more."""
    wrong = []
    for path in sorted((ROOT / "analysis").rglob("*.py")):
        for node in ast.parse(path.read_bytes()).body:
            value = getattr(node, "value", None) if isinstance(node, ast.Assign | ast.AnnAssign) else None
            names = (
                {ast.unparse(call.func) for call in ast.walk(value) if isinstance(call, ast.Call)} if value else set()
            )
            wrong += [
                (str(path.relative_to(ROOT)), name)
                for name in names
                if re.match(r"pl\.(DataFrame|LazyFrame|read_|scan_)", name)
            ]
    assert wrong == []


def settings_read() -> set[str]:
    text = "".join(path.read_text() for path in [*(ROOT / "dashboard").rglob("*.py"), ROOT / "deploy/gunicorn.conf.py"])
    return set(re.findall(r"""(?:env_\w+|environ\.get)\(\s*["']([A-Z_]+)["']""", text))


def test_each_setting_is_explained_in_the_example():
    example = (ROOT / "deploy/.env.example").read_text()
    assert sorted(name for name in settings_read() if not re.search(rf"^#?\s?{name}=", example, re.MULTILINE)) == []


def test_the_example_names_no_setting_that_nothing_reads():
    example = (ROOT / "deploy/.env.example").read_text()
    named = set(re.findall(r"^#?\s?([A-Z_]+)=", example, re.MULTILINE))
    compose = (ROOT / "deploy/compose.yaml").read_text()
    assert sorted(name for name in named - settings_read() if name not in compose) == []


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_lock_files_name_no_registry():
    locks = [path for path in tracked() if path.name == "package-lock.json" or path.suffix == ".lock"]
    assert len(locks) >= 4
    assert [
        path.name for path in locks if re.search(r"https?://|resolved|--index-url|--find-links", path.read_text())
    ] == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_no_file_names_a_place_of_the_machine_it_was_written_on():
    places = re.compile(rb"/(?:home|root|Users)/(?!user\b)\w+|/opt/(?:wheels|pypi)")
    wrong = [str(path.relative_to(ROOT)) for path in tracked() if places.search(path.read_bytes())]
    assert [name for name in wrong if name != "tests/test_layering.py"] == []
