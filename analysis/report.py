"""Rank entries to the report of a capture: plain JSON in, plain JSON out, so entries stored long ago serve as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.config import ModelConfig
    from analysis.peaks import Peak

Json = dict[str, Any]
RUN_KEYS = (
    "mode",
    "jit_level",
    "sink",
    "soc",
    "framework",
    "framework_version",
    "cann_version",
    "world_size",
    "parallel",
    "environment",
)
"""Keys of a run's metadata; what the dump itself tells comes after what the run was registered with."""


def capture_report(
    results: Sequence[tuple[Json, Json]],
    *,
    config: ModelConfig | None,
    run: Mapping[str, Any],
    series: Sequence[Json],
    reference: Sequence[Json] | None = None,
    soc: str | None = None,
    peak: Peak | None = None,
) -> Json:
    """The report of `(entry, source)` of each rank. `run` is the run's metadata, `reference` the step series to
    compare with.

    `soc` names the chip when the dump does not; `peak` (a project's own figure) is used where neither tells.
    """
    from analysis.communication import settle_links

    run = _sound(run)
    source = merged_source([source for _, source in results], [entry for entry, _ in results])
    facts_of_run = _run(run, source, config)
    if config is not None:
        config = _with_split(config, facts_of_run)
    if soc or facts_of_run.get("soc"):
        source["soc"] = soc or facts_of_run["soc"]
    entries = [dict(entry) for entry, _ in sorted(results, key=lambda result: _rank_order(result[0]))]
    settle_links(entries, [told for _, told in results], facts_of_run.get("world_size"))
    found_peak = _peak(source, peak)
    window = run.get("window")
    for entry in entries:
        entry["flops"] = _flops(entry, config, facts_of_run, series, found_peak, window)
    source["missing"] = [*source["missing"], *_missing_for_mfu(config, found_peak, entries)]
    source["warnings"] = [*source["warnings"], *_flops_errors(entries)]
    return _judge(entries, source, config, facts_of_run, series, reference)


UNREAD_FACTS = ("top_kernels", "utilisation", "places", "op_shapes")
"""Facts of an entry that no judgement reads: pages and comparison do."""


def judged_view(entry: Mapping[str, Any]) -> Json:
    """What `capture_report` reads of a rank's entry, for callers that judge many ranks and keep the entries elsewhere.

    Judged alone: `steps`, `kernels`, `flops`, `memory`, `communication`, `collectives`, `arrivals`, `links`, `facts`
    without UNREAD_FACTS, the gaps of `free_time`, of `op_types` the batch norms, and of `layers` its sums by pass and
    micro-batch. Bottleneck, cluster, checklist, findings and fix_first are the same from this view as from the entry.
    """
    unread = ("layers", "op_types", "data_pipeline", "schedule")
    view = {key: value for key, value in entry.items() if key not in unread}
    facts = view.get("facts")
    if isinstance(facts, dict):
        view["facts"] = {key: value for key, value in facts.items() if key not in UNREAD_FACTS}
    view["op_types"] = [
        row for row in entry.get("op_types") or [] if str(row.get("type") or "").lower().startswith("syncbatchnorm")
    ]
    view["layers"] = _pass_sums(entry.get("layers"))
    return view


def _pass_sums(layers: Any) -> Any:
    """`layers` with one part for each pass of a micro-batch, communication left out."""
    from analysis.entries import number, rows

    if not isinstance(layers, dict):
        return layers
    sums: dict[tuple[Any, Any], float] = {}
    for part in rows(layers, "parts"):
        if part.get("part") == "layer":
            talk = sum(number(b, "total_us") or 0.0 for b in rows(part, "blocks") if b.get("block") == "communication")
            key = part.get("pass"), part.get("micro_batch")
            sums[key] = sums.get(key, 0.0) + (number(part, "total_us") or 0.0) - talk
    parts = [
        {"part": "layer", "pass": way, "micro_batch": batch, "blocks": [{"block": "all", "total_us": us}]}
        for (way, batch), us in sums.items()
    ]
    return {**layers, "parts": parts}


def _judge(
    entries: list[Json],
    source: Json,
    config: ModelConfig | None,
    run: Json,
    series: Sequence[Json],
    reference: Sequence[Json] | None,
) -> Json:
    from analysis.checklist import Evidence, run_checklist
    from analysis.chinese import add_chinese
    from analysis.entries import number
    from analysis.savings import fix_first
    from analysis.verdict import bottleneck, capture_bottleneck

    for entry in entries:
        empty = number(entry, "facts", "queue_empty_ratio")
        entry["bottleneck"] = bottleneck(entry.get("steps") or [], queue_empty_ratio=empty)
    evidence = Evidence(entries, source, config, run, series, reference)
    cluster = _cluster(evidence)
    checklist, findings = run_checklist(evidence), _findings(evidence, cluster)
    report = {
        "schema": 1,
        "source": source,
        "ranks": entries,
        "bottleneck": capture_bottleneck(entries),
        "cluster": cluster,
        "checklist": checklist,
        "findings": findings,
        "fix_first": fix_first(entries, checklist, findings),
        "config": config.as_json() if config is not None else None,
        "series": {"steps": list(series)},
    }
    return add_chinese(report)


def _cluster(evidence: Any) -> Json:
    from analysis.stragglers import cluster

    return cluster(evidence)


def _findings(evidence: Any, cluster: Json) -> list[Json]:
    from analysis.findings import findings

    return findings(evidence, cluster)


def _rank_order(entry: Mapping[str, Any]) -> tuple[bool, int, str]:
    rank = entry.get("rank")
    return (rank is None, rank if rank is not None else 0, str(entry.get("label") or ""))


def merged_source(sources: Sequence[Mapping[str, Any]], entries: Sequence[Mapping[str, Any]]) -> Json:
    """One view of all ranks' sources: the first known value of each key, what is missing once, each warning with its
    rank."""
    merged: Json = {}
    for source in sources:
        for key, value in source.items():
            if key not in ("missing", "warnings") and _known(value) and not _known(merged.get(key)):
                merged[key] = value
            merged.setdefault(key, value)
    merged["missing"] = _missing(sources, entries)
    odd = [*_disagreements(sources), *_duplicates(entries), *_other_steps(entries)]
    merged["warnings"] = [*_warnings(sources, entries), *odd]
    for key in ("framework", "framework_version", "cann_version", "format", "soc", "world_size", "parallel"):
        merged.setdefault(key, None)
    return merged


def _known(value: object) -> bool:
    if isinstance(value, dict):
        return any(_known(item) for item in value.values())
    return value is not None


def _missing(sources: Sequence[Mapping[str, Any]], entries: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Each missing thing once; with `ranks` where some ranks have it."""
    items: dict[str, Json] = {}
    lacking: dict[str, list[Any]] = {}
    for source, entry in zip(sources, entries, strict=True):
        for item in source.get("missing") or ():
            items.setdefault(str(item.get("file")), item)
            lacking.setdefault(str(item.get("file")), []).append(entry.get("rank"))
    return [
        item if len(lacking[file]) == len(sources) else {**item, "ranks": lacking[file]} for file, item in items.items()
    ]


def _warnings(sources: Sequence[Mapping[str, Any]], entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each warning once, with the ranks it is about where there are several."""
    if len(sources) == 1:
        return list(sources[0].get("warnings") or ())
    about: dict[str, list[Any]] = {}
    for source, entry in zip(sources, entries, strict=True):
        for warning in source.get("warnings") or ():
            about.setdefault(warning, []).append(entry if entry.get("rank") is None else entry["rank"])
    return [f"{_who(found)}: {warning}" for warning, found in about.items()]


MAX_NAMED = 8


def _who(found: Sequence[Any]) -> str:
    """Ranks in order, or the label of a rank that has no number."""
    ranks = sorted(one for one in found if isinstance(one, int))
    labels = [str(one.get("label") or "a rank") for one in found if not isinstance(one, int)]
    shown = [*map(str, ranks[:MAX_NAMED]), *(["..."] if len(ranks) > MAX_NAMED else [])]
    numbered = [f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(shown)}"] if ranks else []
    return ", ".join([*numbered, *labels[:MAX_NAMED]])


def _disagreements(sources: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ranks of one capture come from one job: what should be equal and is not is said."""
    found = []
    for key in ("framework", "framework_version", "cann_version", "world_size"):
        values = sorted({str(source[key]) for source in sources if source.get(key) is not None})
        if len(values) > 1:
            found.append(f"ranks of different jobs? {key} is {' and '.join(values[:4])}")
    return found


def _duplicates(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    ranks = [entry["rank"] for entry in entries if entry.get("rank") is not None]
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1}) if len(set(ranks)) < len(ranks) else []
    return [f"rank {rank} is there {ranks.count(rank)} times" for rank in twice]


def _other_steps(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ranks that profiled other steps than most: their times are held against those of other steps."""
    known = {}
    for entry in entries:
        steps = tuple(str(step.get("step")) for step in entry.get("steps") or () if step.get("step") is not None)
        if steps and entry.get("rank") is not None:
            known[entry["rank"]] = steps
    counts = Counter(known.values())
    if len(counts) < 2:
        return []
    usual = counts.most_common(1)[0][0]
    others = [(rank, steps) for rank, steps in sorted(known.items()) if set(steps) != set(usual)]
    told = "; ".join(f"rank {rank}: {_span(steps)}" for rank, steps in others[:4]) + ("; ..." if others[4:] else "")
    return [f"ranks profiled different steps: {_span(usual)} on most, but {told}"] if others else []


def _span(steps: Sequence[str]) -> str:
    return steps[0] if len(steps) == 1 else f"{steps[0]}-{steps[-1]} ({len(steps)})"


def _sound(run: Mapping[str, Any]) -> Json:
    """The metadata without values of another kind than their key has: it may come straight from a dump's file."""
    texts = ("framework", "framework_version", "cann_version", "soc", "mode", "jit_level", "device_target")
    kinds: dict[str, type] = {**dict.fromkeys(texts, str), "sink": bool, "world_size": int}
    kinds |= dict.fromkeys(("parallel", "window", "model", "environment"), dict)
    found: Json = {key: value for key, value in run.items() if isinstance(value, kinds.get(key, object))}
    for key in ("parallel", "window"):
        if key in found:
            found[key] = {name: value for name, value in found[key].items() if isinstance(value, int)}
    return found


def _run(run: Mapping[str, Any], source: Mapping[str, Any], config: ModelConfig | None) -> Json:
    """What is known of the run: as registered, then as the dumps tell, then as the configuration says."""
    known = {**run}
    for key in RUN_KEYS:
        if not _known(known.get(key)):
            known[key] = source.get(key)
        if not _known(known.get(key)) and config is not None and key in ("mode", "jit_level", "sink"):
            known[key] = getattr(config, key)
    return known


def _with_split(config: ModelConfig, run: Mapping[str, Any]) -> ModelConfig:
    from analysis.config import with_split

    return with_split(config, run.get("parallel") or {}, run.get("world_size"))


def _peak(source: Mapping[str, Any], override: Peak | None) -> Peak | None:
    from analysis.peaks import find_peak

    return find_peak(device_info=source.get("device_info"), soc=source.get("soc")) or override


def _flops(
    entry: Mapping[str, Any],
    config: ModelConfig | None,
    run: Mapping[str, Any],
    series: Sequence[Json],
    peak: Peak | None,
    window: Any,
) -> Json:
    from analysis.flops import rank_utilisation

    bounds = _bounds(window)
    return rank_utilisation(
        entry, config=config, devices=run.get("world_size"), series=series, window=bounds, peak=peak
    )


def _bounds(window: Any) -> tuple[int, int] | None:
    """First and last profiled step."""
    first, last = (window.get("first_step"), window.get("last_step")) if isinstance(window, dict) else (None, None)
    return (first, last) if isinstance(first, int) and isinstance(last, int) else None


def _flops_errors(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({str(entry["flops"]["error"]) for entry in entries if entry["flops"].get("error")})


def _missing_for_mfu(config: ModelConfig | None, peak: Peak | None, entries: Sequence[Mapping[str, Any]]) -> list[Json]:
    found = []
    if config is None:
        found.append(
            {
                "file": "run configuration (YAML, or a Megatron job's script or log)",
                "hides": ["mfu", "ffn_parallel"],
                "how": "--config RUN.yaml",
            }
        )
    elif config.missing_sizes:
        how = _how_to_say(config, config.missing_sizes)
        found.append({"file": f"{config.name}: model sizes", "hides": ["mfu"], "how": how})
    elif entries and all(
        entry["flops"].get("devices") is None and not entry["flops"].get("error") for entry in entries
    ):
        how = "say the data parallel size in the configuration (a Megatron job's log prints it), or use the callback"
        found.append({"file": "number of devices", "hides": ["mfu"], "how": how})
    if config is not None and (split := [name for name in config.missing if name not in config.missing_sizes]):
        how = _how_to_say(config, split)
        found.append({"file": f"{config.name}: parallel split", "hides": ["ffn_parallel"], "how": how})
    if peak is None:
        how = (
            "--soc with the exact chip name (such as Ascend910B3), PROF_*/device_*/info.json in the dump, "
            "or a peak in the project's settings"
        )
        found.append({"file": "chip", "hides": ["mfu", "hfu"], "how": how})
    return found


def _how_to_say(config: ModelConfig, names: Sequence[str]) -> str:
    told = ", ".join(names)
    if config.from_script:
        return f"say {told} in the script and set its variables, or give the job's log, which prints them"
    return f"say {told} in the configuration"
