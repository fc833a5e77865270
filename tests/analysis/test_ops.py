from __future__ import annotations

import polars as pl

from analysis import communication, memory, ops
from analysis.schema import COMMUNICATION_COLUMNS, MEMORY_COLUMNS, polars_schema


def kernels(*rows: tuple[str | None, str, str | None, str, int | None]) -> pl.DataFrame:
    schema = {"type": pl.String, "core": pl.String, "class": pl.String, "kind": pl.String, "duration_ns": pl.Int64}
    return pl.DataFrame(list(rows), schema=schema, orient="row")


MIXED = kernels(
    ("Cast", "AI_VECTOR_CORE", "cast", "compute", 10_000),
    ("Transpose", "AI_VECTOR_CORE", "movement", "compute", 30_000),
    ("MatMulV3", "AI_CORE", "matmul", "compute", 160_000),
    ("hcom_allReduce_", "HCCL", "communication", "communication", 999_000),
)


def test_shares_are_of_compute_and_communication_is_left_out():
    found = ops.totals(MIXED)
    assert (found["count"], found["compute_count"], found["communication_count"]) == (4, 3, 1)
    assert (found["compute_us"], found["communication_us"]) == (200.0, 999.0)
    assert (found["cast_us"], found["cast_ratio"]) == (10.0, 0.05)
    assert (found["movement_us"], found["movement_ratio"]) == (40.0, 0.2)


def test_shares_are_unknown_without_types_and_never_zero():
    found = ops.totals(kernels((None, "N/A", None, "compute", 10), (None, "N/A", None, "compute", 20)))
    assert found["cast_us"] is None and found["cast_ratio"] is None and found["movement_ratio"] is None


def test_kernels_of_which_none_says_how_long_it_took_sum_to_nothing_known():
    found = ops.totals(
        kernels(("Cast", "AI_CORE", "cast", "compute", None), ("MatMul", "AI_CORE", "matmul", "compute", None))
    )
    assert found["count"] == found["compute_count"] == 2
    assert found["compute_us"] is found["cast_us"] is found["cast_ratio"] is None
    assert found["communication_us"] == 0.0
    assert ops.op_types(kernels(("Cast", "AI_CORE", "cast", "compute", None))) == []


def test_no_kernels_at_all_have_no_share():
    assert ops.totals(kernels())["cast_ratio"] is None


def test_operator_types_are_ordered_by_time_and_communication_has_no_share():
    found = [(row["type"], row["total_us"], row["share"]) for row in ops.op_types(MIXED)]
    assert found == [
        ("hcom_allReduce_", 999.0, None),
        ("MatMulV3", 160.0, 0.8),
        ("Transpose", 30.0, 0.15),
        ("Cast", 10.0, 0.05),
    ]


def operations(*rows: tuple[object, ...]) -> pl.DataFrame:
    return pl.DataFrame([list(row) for row in rows], schema=polars_schema(COMMUNICATION_COLUMNS), orient="row")


def test_operations_are_summed_by_group_and_bandwidth_is_size_over_transit_time():
    table = operations(
        ("1", "77", "collective", "hcom_allReduce", "hcom_allReduce__1_0", 100, 5_000, 2_000, 1_000, 8_000, "HCCS"),
        ("1", "77", "collective", "hcom_allReduce", "hcom_allReduce__1_1", 200, 7_000, 2_000, 3_000, 0, None),
    )
    row = communication.by_operation(table)[0]
    assert (row["count"], row["elapse_us"], row["transit_us"], row["wait_us"]) == (2, 12.0, 4.0, 4.0)
    # 8 000 bytes in the 2 us of the first: how much the second moved is not told
    assert (row["size_bytes"], row["bandwidth_gbps"], row["link"]) == (8_000, 4.0, "HCCS")


def test_bandwidth_is_unknown_where_nothing_is_known_to_have_moved():
    table = operations(("1", "7", "p2p", "hcom_send", "hcom_send__0", 1, 5, 0, 5, 0, None))
    assert communication.by_operation(table)[0]["bandwidth_gbps"] is None


def test_times_that_no_operation_tells_are_unknown_and_not_0():
    """A communication.json whose cells are no numbers still tells the operation; its time stays open."""
    table = operations(
        ("1", "7", "collective", "hcom_allReduce", "hcom_allReduce__0", None, None, None, None, None, None),
        ("1", "7", "collective", "hcom_allGather", "hcom_allGather__0", 1, 5_000, None, 2_000, None, None),
        ("1", "7", "collective", "hcom_allGather", "hcom_allGather__1", 1, None, None, 1_000, None, None),
    )
    first, second = communication.by_operation(table)
    keys = ("op", "count", "elapse_us", "transit_us", "wait_us", "size_bytes")
    assert [first[key] for key in keys] == ["hcom_allGather", 2, 5.0, None, 3.0, None]
    assert [second[key] for key in keys] == ["hcom_allReduce", 1, None, None, None, None]


def test_sends_and_receives_are_point_to_point_in_any_spelling():
    names = ("hcom_send__1_0", "hcom_receive__1", "hcom_batchSendRecv__3", "Receive-op3")
    assert [communication.kind_of(name) for name in names] == ["p2p"] * 4
    assert communication.kind_of("hcom_reduceScatter__1") == "collective"


def test_memory_peaks_are_those_of_the_framework_not_of_the_process():
    rows = [["APP", 1, None, 900], ["PTA", 2, 100, 400], ["PTA", 3, 300, 500], ["PTA+GE", 3, 310, 520]]
    table = pl.DataFrame(rows, schema=polars_schema(MEMORY_COLUMNS), orient="row")
    assert memory.peaks(table) == {"peak_allocated_bytes": 310, "peak_reserved_bytes": 520}


def test_memory_of_the_process_alone_has_no_allocated_peak():
    table = pl.DataFrame([["APP", 1, None, 900]], schema=polars_schema(MEMORY_COLUMNS), orient="row")
    assert memory.peaks(table) == {"peak_allocated_bytes": None, "peak_reserved_bytes": 900}
    assert memory.peaks(None) == {"peak_allocated_bytes": None, "peak_reserved_bytes": None}
