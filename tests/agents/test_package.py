from __future__ import annotations

import ast
import glob
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from agent_dumps import write_torch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
AGENTS = os.path.join(ROOT, "agents")
MODULES = sorted(glob.glob(os.path.join(AGENTS, "stepscope_agent", "*.py")))
LATER_THAN_38 = re.compile(
    r"\.removeprefix\(|\.removesuffix\(|functools\.cache\b|\bzip\([^)]*strict=|math\.lcm\(|\bzoneinfo\b|\btomllib\b"
)
OURS_TOO_BIG = ("mindspore", "mindformers", "torch_npu")  # imported by the callbacks alone, inside functions


def build(target):
    spec = importlib.util.spec_from_file_location("agent_build", os.path.join(AGENTS, "build.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    from pathlib import Path

    return str(module.build(Path(str(target))))


def pythons():
    """Interpreters at hand, the oldest and the newest of 3.8 to 3.14."""
    found = []
    for minor in range(8, 15):
        names = [shutil.which("python3.%d" % minor)] + glob.glob(
            os.path.expanduser("~/.pyenv/versions/3.%d.*/bin/python" % minor)
        )
        works = [n for n in names if n and subprocess.run([n, "-c", ""], capture_output=True).returncode == 0]
        found += works[:1]
    return sorted({found[0], found[-1]}) if found else [sys.executable]


def run(python, program, *arguments, folder=None):
    clean = {"PATH": os.environ["PATH"], "HOME": str(folder or "/nonexistent")}
    return subprocess.run(
        [python, "-I", program] + list(arguments), env=clean, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("path", MODULES, ids=os.path.basename)
def test_modules_are_of_python_38(path):
    with open(path, encoding="utf-8") as stream:
        text = stream.read()
    ast.parse(text, feature_version=(3, 8))
    assert not LATER_THAN_38.search(text)


@pytest.mark.parametrize("path", MODULES, ids=os.path.basename)
def test_modules_import_the_standard_library_only(path):
    with open(path, encoding="utf-8") as stream:
        tree = ast.parse(stream.read())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(node.module.split(".")[0])
    known = getattr(sys, "stdlib_module_names", None)
    if known is None:
        pytest.skip("this Python does not list its standard library")
    assert names - set(known) - {"stepscope_agent"} <= set(OURS_TOO_BIG)


def test_the_archive_has_the_same_bytes_each_time(tmp_path):
    hashes = []
    for name in ("a.pyz", "b.pyz"):
        with open(build(tmp_path / name), "rb") as stream:
            hashes.append(hashlib.sha256(stream.read()).hexdigest())
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("python", pythons(), ids=lambda path: "-".join(path.split(os.sep)[-3:]))
def test_the_archive_runs_alone(tmp_path, python):
    from stepscope_agent import __version__

    archive = build(tmp_path / "stepscope-agent.pyz")
    done = run(python, archive, "--version")
    assert (done.returncode, done.stdout.strip()) == (0, "stepscope-agent " + __version__)
    write_torch(tmp_path / "job", rank=0)
    done = run(python, archive, "upload", str(tmp_path / "job"), "--run", "r", "--dry-run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "20260101120000123 rank 0" in done.stdout


def test_the_archive_stands_on_pythonpath(tmp_path):
    archive = build(tmp_path / "stepscope-agent.pyz")
    code = "from stepscope_agent.mindspore import StepscopeCallback; print(StepscopeCallback.__module__)"
    clean = {"PATH": os.environ["PATH"], "PYTHONPATH": archive}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "stepscope_agent.mindspore", done.stderr


def test_the_archive_holds_the_package_and_nothing_else(tmp_path):
    with zipfile.ZipFile(build(tmp_path / "a.pyz")) as archive:
        names = sorted(archive.namelist())
    assert names == ["__main__.py"] + ["stepscope_agent/" + os.path.basename(path) for path in MODULES]


def test_the_command_line_does_not_load_the_callback():
    code = "import sys, stepscope_agent.cli; print([m for m in sys.modules if 'mindspore' in m])"
    clean = {"PATH": os.environ["PATH"], "PYTHONPATH": AGENTS}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_the_exit_codes_are_documented():
    with open(os.path.join(ROOT, "docs", "agent.md"), encoding="utf-8") as stream:
        text = stream.read()
    for code in (0, 1, 2, 3, 4, 5, 70, 130):
        assert re.search(r"^\| %d \|" % code, text, re.MULTILINE)
