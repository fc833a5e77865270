"""Comparing recordings of layer outputs, and how the result reaches the server. Networks are of tests/agents/torch_double."""

from __future__ import annotations

import json
import os

import pytest
from stepscope_agent import align, run_files
from stepscope_agent.layers import SAMPLE, places

from agent_dumps import write, write_torch
from test_watch import Agent, finished

numpy = pytest.importorskip("numpy", reason="frameworks bring it; the agent needs it nowhere else")
torch_double = pytest.importorskip("torch_double")


def record(tmp_path, name, **faults):
    path = str(tmp_path / (name + ".json"))
    torch_double.record(path, **faults)
    return path


def compare(tmp_path, **faults):
    good, bad = record(tmp_path, "theirs"), record(tmp_path, "ours", **faults)
    return align.align(align.read_recording(bad), align.read_recording(good))


def test_equal_networks_agree_throughout(tmp_path):
    evidence = compare(tmp_path)
    assert (evidence["differing"], evidence["first"], evidence["left_out"]) == (0, None, 0)
    assert evidence["compared"] == torch_double.LAYERS * 7 + 2  # head and output
    assert all(row["cosine"] == 1.0 for row in evidence["layers"])


@pytest.mark.parametrize(
    ("fault", "first"),
    [
        ({"transposed": 1}, "layers.1.attention.wo"),
        ({"qkv_order": (1, 0, 2)}, "layers.0.attention.qkv"),
        ({"epsilon": 1e-1}, "layers.0.attention_norm"),
        ({"not_loaded": 2}, "layers.2.attention_norm"),
    ],
)
def test_the_first_layer_that_differs_is_named(tmp_path, fault, first):
    evidence = compare(tmp_path, **fault)
    assert evidence["first"] == evidence["layers"][0]["name"] == first
    assert not evidence["layers"][0]["aligned"]
    before = [row["name"] for row in align.read_recording(str(tmp_path / "ours.json")).layers]
    agree = {row["name"] for row in evidence["layers"] if row["aligned"]}
    assert set(before[: before.index(first)]) <= agree  # everything before it agrees


def test_whole_tensors_are_compared_where_both_have_them(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    torch_double.record(paths[0], tensors=True)
    torch_double.record(paths[1], tensors=True, length=4000)
    row = align.read_recording(paths[1]).layers[0]
    assert row["count"] == 4000 * torch_double.HIDDEN > SAMPLE
    assert os.path.getsize(os.path.join(paths[1] + ".tensors", row["file"])) == row["count"] * 4
    evidence = align.align(align.read_recording(paths[1]), align.read_recording(paths[1]))
    assert evidence["differing"] == 0
    with open(os.path.join(paths[1] + ".tensors", row["file"]), "r+b") as stream:  # one value that no sample holds
        stream.seek(4 * (places(row["count"])[1] - 1))
        stream.write(numpy.float32(1e6).tobytes())
    evidence = align.align(align.read_recording(paths[1]), align.read_recording(paths[1]))
    assert evidence["differing"] == 0  # both sides are the same file
    torch_double.record(paths[0], tensors=True, length=4000)
    evidence = align.align(align.read_recording(paths[1]), align.read_recording(paths[0]))
    assert evidence["first"] == row["name"]


def test_values_kept_are_spread_over_the_whole_tensor():
    assert places(3) == [0, 1, 2]
    kept = places(1000003)
    assert (len(kept), kept[0], kept == sorted(set(kept))) == (SAMPLE, 0, True)
    assert kept[-1] > 1000003 * (1 - 2.0 / SAMPLE)


def test_names_of_hugging_face_are_those_of_mindspore_transformers(tmp_path):
    ours, theirs = record(tmp_path, "ours"), record(tmp_path, "theirs")
    with open(theirs) as stream:
        recording = json.load(stream)
    for row in recording["layers"]:
        row["name"] = (
            row["name"].replace("layers.", "model.layers.").replace("attention_norm", "input_layernorm")
            .replace("attention.wo", "self_attn.o_proj").replace("ffn_norm", "post_attention_layernorm")
        )  # fmt: skip
    write(theirs, recording)
    evidence = align.align(align.read_recording(ours), align.read_recording(theirs))
    names = {row["reference"]: row["name"] for row in evidence["layers"]}
    assert names["model.layers.0.self_attn.o_proj"] == "layers.0.attention.wo"
    assert names["model.layers.1.post_attention_layernorm"] == "layers.1.ffn_norm"


def test_other_names_are_given_by_hand_or_taken_by_order(tmp_path):
    ours, theirs = record(tmp_path, "ours"), record(tmp_path, "theirs")
    with open(theirs) as stream:
        recording = json.load(stream)
    for row in recording["layers"]:
        row["name"] = "block/" + row["name"]
    write(theirs, recording)
    read = [align.read_recording(path) for path in (ours, theirs)]
    assert align.align(*read)["compared"] == len(recording["layers"])  # equal shapes in equal order
    assert align.align(*read, renames=[("^block/", "")])["left_out"] == 0
    del recording["layers"][3]
    write(theirs, recording)
    with pytest.raises(align.AgentError, match="give --rename"):
        align.align(read[0], align.read_recording(theirs))


def layer(name, values, dtype="float32"):
    import base64
    from array import array

    sample = base64.b64encode(array("f", values).tobytes()).decode()
    return {"name": name, "dtype": dtype, "shape": [len(values)], "count": len(values), "sample": sample}


def of(rows):
    return align.Recording("x.json", "torch", rows)


@pytest.mark.parametrize(
    ("dtype", "gap", "aligned"),
    [("float32", 0.5e-4, True), ("float32", 2e-4, False), ("bfloat16", 1e-2, True), ("bfloat16", 3e-2, False)],
)
def test_the_tolerance_is_that_of_the_coarser_type(dtype, gap, aligned):
    ours, theirs = of([layer("a", [3.0, 4.0 + 5 * gap], dtype)]), of([layer("a", [3.0, 4.0])])
    (row,) = align.align(ours, theirs)["layers"]
    assert row["relative_error"] == pytest.approx(gap, rel=0.01)  # |(0, 5 gap)| / |(3, 4)|
    assert row["aligned"] is aligned


def test_numbers_that_are_not_finite_and_other_shapes_differ():
    ours = of([layer("a", [float("nan"), 1.0]), layer("b", [1.0]), layer("c", [0.0])])
    theirs = of([layer("a", [1.0, 1.0]), layer("b", [1.0, 2.0]), layer("c", [0.0])])
    rows = {row["name"]: row for row in align.align(ours, theirs)["layers"]}
    assert [rows[name]["aligned"] for name in "abc"] == [False, False, True]
    assert "cosine" not in rows["a"]
    json.dumps(list(rows.values()), allow_nan=False)


@pytest.mark.parametrize(
    "content", ["", "{}", '{"schema": 1, "layers": [{}]}', '{"schema": 2, "layers": [{"name": "x"}]}']
)
def test_anything_else_is_refused_with_its_name(run_agent, tmp_path, content):
    from stepscope_agent.cli import main

    path = write(tmp_path / "x.json", content)
    assert main(["align", path, path]) == 2
    assert main(["align", str(tmp_path / "nowhere"), path]) == 2


def test_the_command_prints_the_first_and_leaves_the_evidence(tmp_path, capfd):
    from stepscope_agent.cli import main

    good, bad = record(tmp_path, "theirs"), record(tmp_path, "ours", qkv_order=(1, 0, 2))
    assert main(["align", bad, good]) == 1
    out = capfd.readouterr().out
    assert "the first that differs: layers.0.attention.qkv" in out
    assert align.read_evidence(str(tmp_path / align.EVIDENCE))["first"] == "layers.0.attention.qkv"
    assert main(["align", good, good, "--output", str(tmp_path / "else.json")]) == 0
    assert align.read_evidence(str(tmp_path / "else.json"))["differing"] == 0


def evidence_in(folder):
    return write(folder / align.EVIDENCE, {"schema": 1, "tool": "t", "compared": 1, "differing": 0, "layers": []})


def test_upload_brings_the_comparison_that_lies_there(run_agent, server, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    evidence_in(tmp_path / "job")
    assert run_agent("upload", str(tmp_path / "job"), "--run", "r")[0] == 0
    assert server.state.runs["r"]["meta"]["alignment"]["compared"] == 1


def test_upload_brings_the_comparison_given(run_agent, server, tmp_path):
    write_torch(tmp_path / "job", rank=0)
    path = evidence_in(tmp_path / "elsewhere")
    assert run_agent("upload", str(tmp_path / "job"), "--run", "r", "--alignment", path)[0] == 0
    assert "alignment" in server.state.runs["r"]["meta"]
    write(path, "[]")
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r", "--alignment", path)
    assert (code, "is not what `stepscope-agent align` writes" in err) == (2, True)


def test_watch_brings_a_comparison_once_and_again_when_it_is_new(server, tmp_path):
    finished(write_torch(tmp_path / "job7", rank=0))
    agent = Agent(tmp_path, server, run=None)
    evidence_in(tmp_path / "job7")
    agent.look()
    calls = server.state.count("POST", "/runs$")
    assert server.state.runs["job7"]["meta"]["alignment"]["compared"] == 1
    agent.restart()
    agent.look()
    assert server.state.count("POST", "/runs$") == calls
    write(tmp_path / "job7" / align.EVIDENCE, {"schema": 1, "compared": 5, "layers": []})
    agent.look()
    assert server.state.runs["job7"]["meta"]["alignment"]["compared"] == 5


def test_watch_makes_a_run_the_reference_that_asks_for_it(server, tmp_path):
    for name in ("first", "second"):
        write(tmp_path / name / run_files.RUN_FILE, {"schema": 1, "run": name, "reference": True})
    agent = Agent(tmp_path, server, run=None)
    agent.look()
    assert server.state.reference == str(server.state.runs["first"]["id"])
    assert [text for text in agent.said if "the project has another" in text]
    agent.look()
    assert server.state.count("POST", "/reference$") == 2


def test_a_comparison_older_than_its_training_waits_for_the_run(server, tmp_path):
    """The folder's name is not the run's: that shows when the callback begins, or when a dump has arrived."""
    agent = Agent(tmp_path, server, run=None)
    evidence_in(tmp_path / "told")
    evidence_in(tmp_path / "silent")
    agent.look()
    assert server.state.runs == {}
    assert [text for text in agent.said if "waits: nothing tells yet which run it is of" in text]
    write(tmp_path / "told" / run_files.RUN_FILE, {"schema": 1, "run": "Llama2 7B"})
    agent.look()
    assert sorted(server.state.runs) == ["Llama2-7B"]
    assert "alignment" in server.state.runs["Llama2-7B"]["meta"]
    finished(write_torch(tmp_path / "silent" / "deeper", rank=0))
    agent.look()
    agent.look()
    assert "alignment" in server.state.runs["silent"]["meta"]


def test_a_comparison_above_dumps_of_several_runs_waits(server, tmp_path):
    agent = Agent(tmp_path, server, run=None)
    for name in ("first", "second"):
        root = write_torch(tmp_path / "team" / name, rank=0)
        write(os.path.join(root, run_files.RUN_FILE), {"schema": 1, "run": name})
        finished(root)
    agent.look()
    evidence_in(tmp_path / "team")
    agent.look()
    assert all("alignment" not in run["meta"] for run in server.state.runs.values())
    assert [text for text in agent.said if "waits: nothing tells yet which run it is of" in text]


def test_a_comparison_beside_dumps_deep_below_goes_to_their_run(server, tmp_path):
    home = tmp_path / "team" / "job7"
    root = write_torch(home / "step_100_102", rank=0)
    write(os.path.join(root, run_files.RUN_FILE), {"schema": 1, "run": "deep"})
    finished(root)
    evidence_in(home)
    agent = Agent(tmp_path, server, run=None)
    agent.look()
    assert list(server.state.runs) == ["deep"]
    assert server.state.runs["deep"]["meta"]["alignment"]["compared"] == 1


def test_a_comparison_follows_when_the_folder_gets_another_run(server, tmp_path):
    agent = Agent(tmp_path, server, run=None)
    evidence_in(tmp_path / "job7")
    for name in ("first", "second"):
        write(tmp_path / "job7" / run_files.RUN_FILE, {"schema": 1, "run": name})
        agent.look()
    assert all("alignment" in server.state.runs[name]["meta"] for name in ("first", "second"))


def test_a_comparison_the_server_refuses_holds_up_nothing(server, tmp_path):
    agent = Agent(tmp_path, server, run="r")
    evidence_in(tmp_path)
    finished(write_torch(tmp_path, rank=0))
    agent.look()
    server.state.fail("POST", "/runs$", status=413)
    write(tmp_path / align.EVIDENCE, {"schema": 1, "compared": 5, "layers": []})
    agent.look()
    assert [text for text in agent.said if text.endswith("the server says: made-up trouble")]
    assert "trouble" not in agent.spool.agent
    calls = server.state.count("POST", "/runs$")
    agent.look(after=100)
    assert server.state.count("POST", "/runs$") == calls  # until the file changes


def test_a_person_may_replace_the_reference(run_agent, server, tmp_path):
    server.state.reference = "1"
    write_torch(tmp_path / "job", rank=0)
    assert run_agent("upload", str(tmp_path / "job"), "--run", "r", "--reference")[0] == 0
    assert server.state.reference == str(server.state.runs["r"]["id"])
