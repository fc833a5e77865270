"""Small evidence gathered while the kernels of a rank are at hand; checklist and findings work from it later.

Everything is plain JSON. Times are sums over the judged steps (`steps` of them), in microseconds. A key whose evidence
is not in the dump is absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis.facts import (
    affinity,
    attention,
    casts,
    collectives,
    constants,
    cores,
    exposure,
    fused_collectives,
    host,
    launch,
    masks,
    recovery,
    sequences,
    shapes,
)
from analysis.facts.prepared import prepare

if TYPE_CHECKING:
    import polars as pl

    from analysis.dump import RankDump

Json = dict[str, Any]


def rank_facts(kernels: pl.DataFrame | None, entry: Json, dump: RankDump) -> Json:
    """Evidence of one rank from its judged kernels, its report entry and the small files of its dump."""
    facts: Json = host.facts(dump)
    if kernels is None or kernels.is_empty():
        return facts
    compute, talk = prepare(kernels)
    facts["collectives"] = collectives.facts(compute, talk)
    facts["exposed"] = exposure.facts(compute, talk)
    if compute.rows.is_empty():
        return facts
    marks = recovery.Marks(compute.rows)
    facts["launch"] = launch.facts(kernels, dump.framework)
    facts["top_kernels"] = cores.top_kernels(kernels)
    facts.update(cores.facts(compute, marks))
    if (clock := cores.clock(kernels)) is not None:
        facts["clock"] = clock
    if busy := cores.utilisation(kernels):
        facts["utilisation"] = busy
    if (bounds := cores.bounds(kernels)) is not None:
        facts["bounds"] = bounds
    if compute.typed:
        facts["attention"] = attention.facts(compute, marks)
        facts["mask"] = masks.facts(compute, facts["attention"], marks)
        facts["casts"] = casts.facts(compute, marks)
        facts["constants"] = constants.facts(compute, marks)
        facts["matmuls"] = shapes.matmuls(compute.kinds)
        facts["expert_load"] = shapes.expert_load(compute.kinds)
        facts["expert_tokens"] = shapes.expert_tokens(compute)
        facts["overlapped_collectives"] = collectives.overlapped(compute, talk)
        facts["places"] = shapes.places(compute.kinds)
        facts["op_shapes"] = shapes.op_shapes(compute.kinds)
        facts["fusible"] = sequences.facts(compute)
        facts["affinity"] = affinity.facts(compute, marks)
        facts["fused_collectives"] = fused_collectives.facts(compute, talk)
    facts["recovery"] = marks.facts()
    return facts
