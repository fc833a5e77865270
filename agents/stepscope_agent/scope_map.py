"""Derives which layer each kernel of a MindSpore graph belongs to, from the graph MindSpore saves.

With MS_DEV_SAVE_GRAPHS=2 and MS_DEV_SAVE_GRAPHS_PATH set before mindspore is imported, the compiler writes
`graph_build_*.ir`: every node with its full name, its own id (`unique_id`) or, in backward, the id of the forward node
it is the gradient of (`forward_unique_id`). A gradient's own name carries the scope of another layer, the link does
not.

The file also quotes the user's source code; nothing but node names and layer numbers leaves this module.
"""

import argparse
import json
import os
import re
import sys
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

SCHEMA = 1
_NODE = re.compile(r"^\s*%\d+\(")
_FULL_NAME = re.compile(r"^\s*# Fullname with scope: \((.+)\)\s*$")
_OWN_ID = re.compile(r'(?<!forward_)unique_id: "(\d+)"')
_FORWARD_ID = re.compile(r'forward_unique_id: "(\d+)"')
_DUPLICATED = re.compile(r"\bduplicated: Bool\(1\)")
_LAYER = re.compile(r"(?:^|/)(?:[\w.]+-\w*(?:CellList|SequentialCell)/|(?:layers?|blocks?|h)/)(\d+)(?:-|/)")
_SCOPE = re.compile(r"^(?:Gradients/)?(?:recompute_)?(?:Default|Expand)/[^\s()]+-op\d+$")


class Node(NamedTuple):
    """One node of the graph that becomes a kernel."""

    name: str
    own_id: Optional[str]
    forward_id: Optional[str]
    duplicated: bool


def read_nodes(lines: Iterable[str]) -> Iterator[Node]:
    """Nodes of a saved graph, read line by line; the file may be hundreds of megabytes."""
    own_id = forward_id = None  # type: Optional[str]
    duplicated = False
    for line in lines:
        if _NODE.match(line):
            own, forward = _OWN_ID.search(line), _FORWARD_ID.search(line)
            own_id = own.group(1) if own else None
            forward_id = forward.group(1) if forward else None
            duplicated = bool(_DUPLICATED.search(line))
            continue
        found = _FULL_NAME.match(line)
        if found and _SCOPE.match(found.group(1)):
            yield Node(found.group(1), own_id, forward_id, duplicated)
            own_id = forward_id = None
            duplicated = False


def build_map(nodes: Iterable[Node]) -> Dict[str, object]:
    """{"schema": 1, "kernels": {kernel name: {"layer", "pass", "module"}}}.

    `module` is the full name of the forward node; `layer` is null outside the layers. Backward nodes that the graph
    does not link are left out: their own name would mislead.
    """
    known = list(nodes)
    forward = {node.own_id: node.name for node in known if node.own_id and not node.duplicated}
    kernels = {}  # type: Dict[str, Dict[str, object]]
    for node in known:
        pass_, module = _place(node, forward)
        if module is not None:
            kernels[node.name] = {"layer": layer_of(module), "pass": pass_, "module": module}
    return {"schema": SCHEMA, "kernels": kernels}


def _place(node: Node, forward: Dict[str, str]) -> Tuple[str, Optional[str]]:
    if node.forward_id:
        return "backward", forward.get(node.forward_id)
    if node.name.startswith("Gradients/"):
        return "backward", None
    if node.duplicated:
        return "recompute", node.name
    return "forward", node.name


def layer_of(name: str) -> Optional[int]:
    """Number of the layer in a scope name; null outside the layers."""
    found = _LAYER.search(name)
    return int(found.group(1)) if found else None


def find_graphs(path: str) -> List[str]:
    """The saved final graphs under a folder, or the file itself."""
    if os.path.isfile(path):
        return [path]
    found = []
    for folder, _, names in os.walk(path):
        found += [os.path.join(folder, name) for name in names if re.match(r"graph_build_\w+\.ir$", name)]
    return sorted(found)


def map_graphs(path: str) -> Dict[str, object]:
    """One map of all graphs under `path`. Raises FileNotFoundError where none was saved."""
    graphs = find_graphs(path)
    if not graphs:
        raise FileNotFoundError("no graph_build_*.ir under %s: set MS_DEV_SAVE_GRAPHS=2 before mindspore starts" % path)
    kernels = {}  # type: Dict[str, object]
    for graph in graphs:
        with open(graph, encoding="utf-8", errors="replace") as lines:
            kernels.update(build_map(read_nodes(lines))["kernels"])  # type: ignore[call-overload]
    return {"schema": SCHEMA, "kernels": kernels}


def write_map(path: str, target: str) -> int:
    """Write the map of the graphs under `path` to `target`, whole or not at all; the number of kernels in it."""
    found = map_graphs(path)
    unfinished = target + ".part"
    with open(unfinished, "w", encoding="utf-8") as out:
        out.write(json.dumps(found, separators=(",", ":"), sort_keys=True))
    os.replace(unfinished, target)
    return len(found["kernels"])  # type: ignore[arg-type]


def main(arguments: Optional[List[str]] = None) -> int:
    """Command line: a folder of saved graphs and where to write, usually the dump's own folder."""
    parser = argparse.ArgumentParser(prog="python -m stepscope_agent.scope_map", description=main.__doc__)
    parser.add_argument("graphs", help="folder given as MS_DEV_SAVE_GRAPHS_PATH, or one graph_build_*.ir")
    parser.add_argument("target", help="file to write, scope_map.json in the dump's folder")
    options = parser.parse_args(arguments)
    try:
        count = write_map(options.graphs, options.target)
    except (OSError, ValueError) as error:
        sys.stderr.write("%s\n" % error)
        return 2
    sys.stdout.write("%d kernels\n" % count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
