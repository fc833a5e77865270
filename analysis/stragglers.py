"""Who keeps the others waiting: slow ranks by vote, slow links, spread of compute, pipeline bubble."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from analysis.entries import (
    Json,
    bubble_us,
    capture_step_time_us,
    judged_steps,
    mean,
    number,
    ratio_of_sums,
    rows,
    step_count,
    step_time_us,
)
from analysis.lateness import count_votes, excess_us, groups_of
from analysis.stages import layers_by_stage
from analysis.thresholds import limit

if TYPE_CHECKING:
    from analysis.checklist import Evidence

_MIN_EXCESS = 0.01  # of the step: what a slow rank must cost to be named
_MIN_LINKS = 3


def cluster(evidence: Evidence) -> Json:
    """The report's "cluster"."""
    ranks = [entry for entry in evidence.ranks if entry.get("rank") is not None]
    return {
        "slow_ranks": slow_ranks(ranks, stages(evidence)),
        "slow_links": slow_links(ranks),
        "compute_spread_ratio": compute_spread(ranks),
        "bubble": {"measured": measured_bubble(ranks), "theory": theoretical_bubble(evidence)},
        "stages": stage_times(ranks, stages(evidence)),
        "expert_load": expert_load(ranks, stages(evidence)),
    }


def expert_load(ranks: Sequence[Json], stage_of: Mapping[int, int]) -> Json | None:
    """Tokens a step of each rank's experts against the mean of its stage, where the shapes of two ranks or more tell;
    `ratio` is that of the busiest."""
    tokens = {
        int(entry["rank"]): total / step_count(entry)
        for entry in ranks
        if (total := number(entry, "facts", "expert_tokens", "total"))
    }
    by_stage: dict[int | None, list[float]] = defaultdict(list)
    for rank, count in tokens.items():
        by_stage[stage_of.get(rank)].append(count)
    rows_ = [
        {"rank": rank, "tokens": count, "ratio": round(count / (sum(peers) / len(peers)), 4)}
        for rank, count in sorted(tokens.items())
        if len(peers := by_stage[stage_of.get(rank)]) > 1
    ]
    return {"ratio": max(row["ratio"] for row in rows_), "ranks": rows_} if rows_ else None


def slow_ranks(ranks: Sequence[Json], stage_of: Mapping[int, int]) -> list[Json]:
    """Ranks that come last to most of their collectives: the shortest time inside is the late arriver's.

    `excess_us` per step is what all would gain if that rank came with the next one. Where collectives are too few, a
    rank whose compute is 5 % over its stage's median is named, with no votes. Point-to-point waits are no evidence.
    """
    groups = groups_of(ranks)
    votes = count_votes(groups)
    by_rank = {int(entry["rank"]): entry for entry in ranks}
    step = capture_step_time_us(ranks)
    found = []
    for rank, count in votes.count.items():
        of = votes.of[rank]
        if of < limit("vote_count") or count / of < max(limit("vote_ratio"), 1.5 / votes.size[rank]):
            continue
        cost = excess_us(ranks, groups, rank)
        if cost >= _MIN_EXCESS * (step or 0.0):
            kind = _kind(by_rank[rank], [entry for other, entry in by_rank.items() if other != rank], stage_of)
            found.append({"rank": rank, "kind": kind, "excess_us": round(cost, 3), "votes": count, "of": of})
    judged = {rank for rank, of in votes.of.items() if of >= limit("vote_count")}
    found += [row for row in _slow_by_compute(ranks, stage_of) if row["rank"] not in judged]
    return sorted(found, key=lambda row: -float(row["excess_us"]))


def _kind(entry: Json, others: Sequence[Json], stage_of: Mapping[int, int]) -> str:
    """Why it is late: more compute, or more free time ("host"), than the median of its stage."""
    stage = stage_of.get(int(entry["rank"]))
    peers = [other for other in others if stage_of.get(int(other["rank"])) == stage] or list(others)
    gains = {}
    for kind, key in (("compute", "computing_us"), ("host", "free_us")):
        mine, theirs = _per_step(entry, key), [value for peer in peers if (value := _per_step(peer, key)) is not None]
        if mine is not None and theirs:
            gains[kind] = mine - median(theirs)
    kind = max(gains, key=lambda name: gains[name]) if gains else "unknown"
    return kind if gains.get(kind, 0) > 0 else "unknown"


def _per_step(entry: Json, key: str) -> float | None:
    return mean(number(step, key) for step in judged_steps(entry))


def _slow_by_compute(ranks: Sequence[Json], stage_of: Mapping[int, int]) -> list[Json]:
    times: dict[int | None, dict[int, float]] = defaultdict(dict)
    for entry in ranks:
        value = _per_step(entry, "computing_us")
        if value is not None:
            times[stage_of.get(int(entry["rank"]))][int(entry["rank"])] = value
    found = []
    for members in times.values():
        typical = median(members.values())
        for rank, value in members.items():
            if len(members) >= _MIN_LINKS and value > typical * (1 + limit("rank_spread")):
                row = {"rank": rank, "kind": "compute", "excess_us": round(value - typical, 3), "votes": 0, "of": 0}
                found.append(row)
    return found


def compute_spread(ranks: Sequence[Json]) -> float | None:
    """(largest - smallest compute time of a rank) / mean step time; None with fewer than two ranks."""
    computing = [value for entry in ranks if (value := _per_step(entry, "computing_us")) is not None]
    step = mean(step_time_us(entry) for entry in ranks)
    return (max(computing) - min(computing)) / step if len(computing) >= 2 and step else None


def slow_links(ranks: Sequence[Json]) -> list[Json]:
    """Links below 80 % of the median bandwidth of links of their type, operation and size class (powers of two).

    `within_group`: the group in which src and dst count where the job's ranks are not known, else None.
    """
    classes: dict[tuple[Any, ...], dict[tuple[Any, Any, Any], list[float]]] = defaultdict(lambda: defaultdict(list))
    for entry in ranks:
        for row in rows(entry, "links"):
            size, bandwidth = number(row, "size_bytes"), number(row, "bandwidth_gbps")
            if not size or size < limit("link_bytes") or not bandwidth or row.get("src") == row.get("dst"):
                continue
            pair = (row.get("src"), row.get("dst"), row.get("group") if row.get("within_group") else None)
            classes[row.get("link"), row.get("op"), round(math.log2(size))][pair].append(bandwidth)
    worst: dict[tuple[Any, ...], Json] = {}
    for (link, _, _), pairs in classes.items():
        means = {pair: sum(values) / len(values) for pair, values in pairs.items()}
        typical = median(means.values())
        for (src, dst, group), value in means.items():
            row = {
                "src": src,
                "dst": dst,
                "within_group": group,
                "link": link,
                "bandwidth_gbps": round(value, 3),
                "typical_gbps": round(typical, 3),
            }
            slow = len(means) >= _MIN_LINKS and value < limit("link_ratio") * typical
            if slow and value / typical < _ratio(worst.get((src, dst, group, link))):
                worst[src, dst, group, link] = row
    return sorted(worst.values(), key=_ratio)


def _ratio(row: Json | None) -> float:
    return float(row["bandwidth_gbps"] / row["typical_gbps"]) if row else math.inf


def stages(evidence: Evidence) -> dict[int, int]:
    """Pipeline stage of each rank: stages are blocks of consecutive ranks. Empty without a pipeline or world size."""
    parallel = evidence.source.get("parallel") or {}
    pp = parallel.get("pp") or (evidence.config.pp if evidence.config else None) or 1
    world = evidence.source.get("world_size") or (evidence.config.devices if evidence.config else None)
    if pp < 2 or not world or world % pp:
        return {}
    ranks = [int(entry["rank"]) for entry in evidence.ranks if entry.get("rank") is not None]
    return {rank: rank // (world // pp) for rank in ranks if rank < world}


def stage_times(ranks: Sequence[Json], stage_of: Mapping[int, int]) -> list[Json]:
    """Mean compute time per step of each pipeline stage that ranks were seen of."""
    times: dict[int, list[float]] = defaultdict(list)
    for entry in ranks:
        value = _per_step(entry, "computing_us")
        if value is not None and int(entry["rank"]) in stage_of:
            times[stage_of[int(entry["rank"])]].append(value)
    return [
        {"stage": stage, "ranks": len(values), "computing_us": round(sum(values) / len(values), 3)}
        for stage, values in sorted(times.items())
    ]


def measured_bubble(ranks: Sequence[Json]) -> float | None:
    """Share of the step spent waiting for other stages, mean over ranks; None without traffic between stages."""
    return mean(_bubble_of(entry) for entry in ranks)


def _bubble_of(entry: Json) -> float | None:
    steps = [step for step in judged_steps(entry) if number(step, "bubble_us") is not None]
    bubble = ratio_of_sums((bubble_us(step), number(step, "step_time_us")) for step in steps)
    talks = any(row.get("type") == "p2p" for row in rows(entry, "communication"))
    return bubble if bubble or talks else None


def theoretical_bubble(evidence: Evidence) -> float | None:
    """(p - 1) / (v m + p - 1) for p stages, m micro-batches and v model chunks a stage; where stages hold L layers
    each, not equally many, 1 - m mean(L) / (m max(L) + (sum(L) - max(L)) / v). None when p, m, v or L is unknown."""
    config = evidence.config
    parallel = evidence.source.get("parallel") or {}
    pp = parallel.get("pp") or (config.pp if config else None)
    seen = [value for entry in evidence.ranks if (value := number(entry, "layers", "micro_batches"))]
    micro = (config.micro_batches if config else None) or (max(seen) if seen else None)
    if not pp or not micro or (config and not {"interleave", "stage_layers"}.isdisjoint(config.missing)):
        return None
    chunks = (config.interleave if config else None) or 1
    if config and config.stage_layers and config.pp == pp:
        held = layers_by_stage(config.stage_layers)
        slowest = max(held)
        return 1 - micro * sum(held) / len(held) / (micro * slowest + (sum(held) - slowest) / chunks)
    return float((pp - 1) / (chunks * micro + pp - 1))
