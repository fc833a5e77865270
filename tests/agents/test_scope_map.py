"""The scope map: which layer each kernel of a saved graph belongs to, and that no source code gets into it."""

import json
import os
from pathlib import Path

import pytest
from stepscope_agent.scope_map import build_map, layer_of, main, map_graphs, read_nodes

LAYERS = "Default/network-WithLossCell/_backbone-GPT/layers-CellList"
GRAPH = """# IR entry: @kernel_graph0
%para1_secret_name: <Ref[Tensor[Float32]], (1, 32, 64)>
  %1(CNode_1) = PrimFunc_MatMul(%para1, %para2) {instance name: matmul} primitive_attrs: {x: Bool(1)} cnode_primal_attrs: {unique_id: "11"}
      : (<Tensor[Float32], (128, 64)>) -> (<Tensor[Float32], (128, 64)>)
      # Fullname with scope: (LAYERS/0-DecoderLayer/wq-Dense/MatMul-op0)
      # In file ../someone/train.py:12/        x = self.wq(SECRET)/
  %2(CNode_2) = PrimFunc_MatMul(%1, %para3) cnode_primal_attrs: {unique_id: "22"}
      # Fullname with scope: (LAYERS/1-DecoderLayer/wq-Dense/MatMul-op0)
  %3(CNode_3) = PrimFunc_MatMul(%2) cnode_attrs: {checkpoint: Bool(1), duplicated: Bool(1)} cnode_primal_attrs: {unique_id: "22"}
      # Fullname with scope: (recompute_LAYERS/1-DecoderLayer/wq-Dense/MatMul-op1)
  %4(CNode_4) = PrimFunc_MatMul(%3) cnode_primal_attrs: {forward_node_name: "MatMul_22", forward_unique_id: "22"}
      # Fullname with scope: (Gradients/LAYERS/0-DecoderLayer/wq-Dense/Grad_MatMul/MatMul-op0)
  %5(CNode_5) = PrimFunc_MatMul(%4) cnode_primal_attrs: {forward_node_name: "MatMul_99", forward_unique_id: "99"}
      # Fullname with scope: (Gradients/LAYERS/0-DecoderLayer/wq-Dense/Grad_MatMul/MatMul-op1)
  %6(CNode_6) = PrimFunc_AddN(%5)
      # Fullname with scope: (Gradients/Default/network-WithLossCell/AddN-op0)
  %7(CNode_7) = PrimFunc_AdamWeightDecay(%6) cnode_primal_attrs: {unique_id: "33"}
      # Fullname with scope: (Default/optimizer-AdamWeightDecay/AdamWeightDecay-op0)
""".replace("LAYERS", LAYERS)


def kernels(text):
    return build_map(read_nodes(text.splitlines()))["kernels"]


def test_a_gradient_is_placed_by_its_forward_node_not_by_its_name():
    found = kernels(GRAPH)["Gradients/%s/0-DecoderLayer/wq-Dense/Grad_MatMul/MatMul-op0" % LAYERS]
    assert found == {"layer": 1, "pass": "backward", "module": "%s/1-DecoderLayer/wq-Dense/MatMul-op0" % LAYERS}


def test_forward_recompute_and_what_lies_outside_the_layers():
    found = kernels(GRAPH)
    assert found["%s/0-DecoderLayer/wq-Dense/MatMul-op0" % LAYERS]["pass"] == "forward"
    again = found["recompute_%s/1-DecoderLayer/wq-Dense/MatMul-op1" % LAYERS]
    assert (again["layer"], again["pass"]) == (1, "recompute")
    assert found["Default/optimizer-AdamWeightDecay/AdamWeightDecay-op0"]["layer"] is None


def test_gradients_without_a_link_are_left_out():
    assert len(kernels(GRAPH)) == 5
    assert not any("AddN" in name or name.endswith("MatMul-op1") and "Grad_" in name for name in kernels(GRAPH))


def test_no_source_line_path_or_parameter_name_gets_out():
    text = json.dumps(build_map(read_nodes(GRAPH.splitlines())))
    for secret in ("SECRET", "secret_name", "someone", "train.py", "self.wq"):
        assert secret not in text


def test_a_name_that_is_not_a_scope_is_dropped():
    graph = '  %1(a) = X() {unique_id: "1"}\n  # Fullname with scope: (Default/a (x = secret)/MatMul-op0)\n'
    assert kernels(graph) == {}


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("Default/net-Net/layers-CellList/12-Layer/MatMul-op0", 12),
        ("Default/network/bert/layers/3/output/MatMul-op0", 3),
        ("Default/net-Net/norm-LayerNorm/LayerNorm-op0", None),
    ],
)
def test_layer_number_of_a_scope(name, layer):
    assert layer_of(name) == layer


def test_command_writes_one_map_of_all_graphs(tmp_path, capsys):
    (tmp_path / "rank_0").mkdir()
    (tmp_path / "rank_0" / "graph_build_0_0143.ir").write_text(GRAPH, encoding="utf-8")
    (tmp_path / "rank_0" / "01_parse_0001.ir").write_text(GRAPH.replace("op0", "op77"), encoding="utf-8")
    target = tmp_path / "scope_map.json"
    assert main([str(tmp_path), str(target)]) == 0
    written = json.loads(target.read_text(encoding="utf-8"))
    assert written["schema"] == 1
    assert len(written["kernels"]) == 5
    assert capsys.readouterr().out == "5 kernels\n"


def test_command_says_when_no_graph_was_saved(tmp_path, capsys):
    assert main([str(tmp_path), str(tmp_path / "scope_map.json")]) == 2
    assert "MS_DEV_SAVE_GRAPHS" in capsys.readouterr().err
    assert not (tmp_path / "scope_map.json").exists()


def real_graphs():
    root = os.environ.get("STEPSCOPE_SHARED", str(Path(__file__).resolve().parents[3] / "shared"))
    return Path(root) / "dumps" / "mindspore-cpu-graph-irlinked"


@pytest.mark.skipif(not real_graphs().is_dir(), reason="no real dumps")
def test_real_graph_gives_the_links_derived_by_hand():
    found = map_graphs(str(real_graphs()))["kernels"]
    known = json.loads((real_graphs() / "ir_scope_map.json").read_text(encoding="utf-8"))
    linked = {row["name"]: row["forward_scope"] for row in known if row["forward_scope"]}
    assert len(linked) == 69
    assert {name: found[name]["module"] for name in linked} == linked
