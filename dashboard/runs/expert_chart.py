"""Load of a rank's experts by layer: which ranks the router sends more tokens than others."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence

from django.db import connection
from django.urls import reverse
from django.utils.translation import gettext as _

from dashboard.runs.charts import HEAT, SPREAD, Spec, empty, heat_map, rounded, spec
from dashboard.runs.models import Capture
from dashboard.runs.pipeline_chart import sizes

MOST_LINES = 64
"""More ranks than these are drawn in blocks of neighbours, each as its busiest."""
HALF = 50
"""Colours end at 50 % above and below the mean."""

_TOKENS = """
    SELECT rank, entry#>'{facts,expert_tokens,layers}', (entry#>>'{facts,steps}')::float
    FROM runs_dump
    WHERE capture_id = %s AND jsonb_typeof(entry#>'{facts,expert_tokens,layers}') = 'array'
    ORDER BY rank
"""


def expert_tokens(capture: Capture) -> dict[tuple[int, int], float]:
    """(rank, layer) -> tokens a step that the rank's experts got in forward, of the ranks whose shapes tell."""
    with connection.cursor() as cursor:
        cursor.execute(_TOKENS, [capture.pk])
        rows = cursor.fetchall()
    return {
        (rank, row["layer"]): row["tokens"] / steps
        for rank, layers, steps in rows
        if steps
        for row in (json.loads(layers) if isinstance(layers, str) else layers)
        if row.get("layer") is not None and row.get("tokens") is not None
    }


def against_mean(tokens: Mapping[tuple[int, int], float], width: int | None) -> dict[tuple[int, int], float]:
    """The same as a share above (or below) the mean of the layer over the ranks of a stage, `width` neighbours. Layers
    count from 0 in each stage, so that those of two stages are different layers."""
    stage = {rank: rank // width if width else 0 for rank, _layer in tokens}
    layers: dict[tuple[int, int], list[float]] = defaultdict(list)
    for (rank, layer), count in tokens.items():
        layers[stage[rank], layer].append(count)
    means = {key: sum(of) / len(of) for key, of in layers.items()}
    return {
        (rank, layer): count / mean - 1
        for (rank, layer), count in tokens.items()
        if (mean := means[stage[rank], layer]) and len(layers[stage[rank], layer]) > 1
    }


def chart(capture: Capture, absolute: bool) -> Spec:
    """Ranks down, layers across, coloured by tokens against the layer's mean or by tokens alone."""
    tokens = expert_tokens(capture)
    known = sizes(capture)
    values = tokens if absolute else against_mean(tokens, known[1] if known else None)
    if not values:
        return empty(_("Tokens of experts are told by the shapes of GroupedMatmul on two ranks or more (Level1)."))
    ranks, layers = sorted({rank for rank, _layer in values}), sorted({layer for _rank, layer in values})
    block = -(-len(ranks) // MOST_LINES)
    parts = [ranks[start : start + block] for start in range(0, len(ranks), block)]
    scale = 1 if absolute else 100
    cells, rows = [], []
    for line, part in enumerate(parts):
        busiest = {layer: _busiest(values, part, layer) for layer in layers}
        rows.append([_name(part), *(None if one is None else rounded(one[0] * scale) for one in busiest.values())])
        cells += [
            {"value": [layers.index(layer), line, rounded(one[0] * scale)], "url": _address(capture, one[1], layer)}
            for layer, one in busiest.items()
            if one is not None
        ]
    unit, colours = ("number", HEAT) if absolute else ("percent", SPREAD)
    highest = max(values.values()) or 1.0
    columns, lines = [_("Layer %d") % layer for layer in layers], [_name(part) for part in parts]
    drawn = heat_map(columns, lines, cells, (0, highest) if absolute else (-HALF, HALF), unit, colours)
    height = max(200, min(900, 90 + 18 * len(lines)))
    return spec(drawn, unit, [_("Ranks"), *columns], rows, grid=True, x=columns, y=lines, height=height)


def _busiest(values: Mapping[tuple[int, int], float], ranks: Sequence[int], layer: int) -> tuple[float, int] | None:
    """The largest value among the ranks, and whose it is."""
    return max(((values[rank, layer], rank) for rank in ranks if (rank, layer) in values), default=None)


def _name(ranks: Sequence[int]) -> str:
    return _("rank %(rank)s") % {"rank": ranks[0] if len(ranks) == 1 else f"{ranks[0]}–{ranks[-1]}"}


def _address(capture: Capture, rank: int, layer: int) -> str:
    return f"{reverse('runs:step', args=[capture.pk, rank])}?layer={layer}#kernels"
