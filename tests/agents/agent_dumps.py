"""Small dumps in the profilers' own layout: contents do not matter here, names and places do."""

from __future__ import annotations

import json
import os

HEADER = "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim\n"


def write(path, content):
    os.makedirs(os.path.dirname(str(path)), exist_ok=True)
    mode = "wb" if isinstance(content, bytes) else "w"
    with open(str(path), mode) as stream:
        stream.write(content if isinstance(content, (bytes, str)) else json.dumps(content))
    return str(path)


def write_torch(folder, rank=None, stamp="20260101120000123", pid=None, rows=3, trace=False, info=None):
    """`folder`/host01_{pid}_{stamp}_ascend_pt of one rank; without `rank`, nothing in it tells the rank."""
    root = os.path.join(str(folder), "host01_%d_%s_ascend_pt" % (pid or 4242 + (rank or 0), stamp))
    output = os.path.join(root, "ASCEND_PROFILER_OUTPUT")
    kernels = HEADER + "".join("1,MatMul%d_r%s,MatMulV2,AI_CORE,%d.5\t,10,0,20\n" % (i, rank, i) for i in range(rows))
    write(os.path.join(output, "kernel_details.csv"), kernels)
    write(os.path.join(output, "step_trace_time.csv"), "Step,Computing\n1,%s\n" % (rank or 0))
    if rank is not None:
        write(os.path.join(root, "profiler_info_%d.json" % rank), info or {"config": {}, "rank_id": rank})
    if trace:
        write(os.path.join(output, "trace_view.json"), "[]")
    return root
