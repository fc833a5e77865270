"""Column orders and cell habits of kernel_details.csv and step_trace_time.csv, one entry per known form."""

from __future__ import annotations

from dataclasses import dataclass

_PIPE = (
    "aicore_time(us),aic_total_cycles,aic_mac_time(us),aic_mac_ratio,aic_scalar_time(us),aic_scalar_ratio,"
    "aic_mte1_time(us),aic_mte1_ratio,aic_mte2_time(us),aic_mte2_ratio,aic_fixpipe_time(us),aic_fixpipe_ratio,"
    "aic_icache_miss_rate,aiv_time(us),aiv_total_cycles,aiv_vec_time(us),aiv_vec_ratio,aiv_scalar_time(us),"
    "aiv_scalar_ratio,aiv_mte2_time(us),aiv_mte2_ratio,aiv_mte3_time(us),aiv_mte3_ratio,aiv_icache_miss_rate,"
    "cube_utilization(%)"
)
_PIPE_SHORT = (
    "aicore_time(us),aic_total_cycles,aic_mac_time(us),aic_mac_ratio,aic_scalar_time(us),aic_scalar_ratio,"
    "aic_mte1_time(us),aic_mte1_ratio,aic_mte2_time(us),aic_mte2_ratio,aic_icache_miss_rate,aiv_time(us),"
    "aiv_total_cycles,aiv_vec_time(us),aiv_vec_ratio,aiv_scalar_time(us),aiv_scalar_ratio,aiv_mte2_time(us),"
    "aiv_mte2_ratio,aiv_icache_miss_rate,cube_utilization(%)"
)
_ARITHMETIC = (
    "aicore_time(us),aic_total_cycles,aic_mac_fp16_ratio,aic_mac_int8_ratio,aic_cube_fops,aic_vector_fops,"
    "aiv_time(us),aiv_total_cycles,aiv_vec_fp32_ratio,aiv_vec_fp16_ratio,aiv_vec_int32_ratio,aiv_vec_misc_ratio,"
    "aiv_cube_fops,aiv_vector_fops"
)
_MEMORY_L0 = (
    "aicore_time(us),aic_total_cycles,aic_l0a_read_bw(GB/s),aic_l0a_write_bw(GB/s),aic_l0b_read_bw(GB/s),"
    "aic_l0b_write_bw(GB/s),aic_l0c_read_bw_cube(GB/s),aic_l0c_write_bw_cube(GB/s),aiv_time(us),aiv_total_cycles,"
    "aiv_l0c_read_bw(GB/s),aiv_l0c_write_bw(GB/s)"
)
PMU = {"pipe": _PIPE, "pipe_short": _PIPE_SHORT, "arithmetic": _ARITHMETIC, "memory_l0": _MEMORY_L0}

_TIMES = "Start Time(us),Duration(us),Wait Time(us)"
_TENSORS = "Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats,Context ID"
_IDS = "Model ID,Task ID,Stream ID"


@dataclass(frozen=True)
class Form:
    """One form of kernel_details.csv. `tab` ends start times in a TAB; `comm_core` is what communication rows say."""

    columns: str
    pmu: str | None
    newline: str = "\n"
    tab: bool = True
    comm_core: str = "COMMUNICATION"

    @property
    def names(self) -> list[str]:
        return [*self.columns.split(","), *(PMU[self.pmu].split(",") if self.pmu else [])]

    @property
    def level0(self) -> bool:
        return "Input Shapes" not in self.columns


FORMS = {
    "level0_nostep": Form(f"Name,Type,Accelerator Core,{_TIMES},Block Dim", None, tab=False, comm_core="HCCL"),
    "level0": Form(f"Step Id,Name,Type,Accelerator Core,{_TIMES},Block Dim", None, "\r\n", comm_core="HCCL"),
    "2023": Form(
        f"Step Id,{_IDS},Name,Type,Accelerator Core,{_TIMES},Block Dim,Mix Block Dim,{_TENSORS}",
        "arithmetic",
        tab=False,
        comm_core="HCCL",
    ),
    "2023_hf32": Form(
        f"Step Id,{_IDS},Name,Type,Accelerator Core,{_TIMES},Block Dim,Mix Block Dim,HF32 Eligible,{_TENSORS}",
        "memory_l0",
        tab=False,
        comm_core="HCCL",
    ),
    "2025": Form(
        f"Step Id,{_IDS},Name,Type,OP State,Accelerator Core,{_TIMES},Block Dim,Mix Block Dim,HF32 Eligible,{_TENSORS}",
        "pipe",
        "\r\n",
        comm_core="HCCL",
    ),
    "cann8.3": Form(
        f"Step Id,Device_id,{_IDS},Name,Type,OP State,Accelerator Core,{_TIMES},Block Dim,Mix Block Dim,HF32 Eligible,"
        f"{_TENSORS}",
        "pipe",
    ),
    "cann8.5": Form(
        f"Device_id,{_IDS},Name,Type,OP State,Accelerator Core,{_TIMES},Block Num,Mix Block Num,HF32 Eligible,"
        f"{_TENSORS}",
        "pipe",
        "\r\n",
    ),
    "cann8.5_step": Form(
        f"Step Id,Device_id,{_IDS},Name,Type,OP State,Accelerator Core,{_TIMES},Block Num,Mix Block Num,HF32 Eligible,"
        f"{_TENSORS}",
        "pipe",
        "\r\n",
    ),
    "mindspore": Form(
        f"Step ID,{_IDS},Name,Type,OP State,Accelerator Core,{_TIMES},Block Num,Mix Block Num,HF32 Eligible,{_TENSORS}",
        "pipe",
        "\r\n",
    ),
    "mindspore_short": Form(
        f"Step ID,{_IDS},Name,Type,OP State,Accelerator Core,{_TIMES},Block Num,Mix Block Num,HF32 Eligible,{_TENSORS}",
        "pipe_short",
        "\r\n",
    ),
    "mindspore_2.7": Form(
        f"Step ID,{_IDS},Name,Type,OP State,Accelerator Core,{_TIMES},Block Dim,Mix Block Dim,HF32 Eligible,{_TENSORS}",
        "pipe",
        "\r\n",
    ),
    "mindspore_nostep": Form(
        f"{_IDS},Name,Type,OP State,Accelerator Core,{_TIMES},Block Num,Mix Block Num,HF32 Eligible,{_TENSORS}",
        "pipe_short",
        "\r\n",
    ),
    "mindspore_level0": Form(
        f"Step ID,{_IDS},Name,Type,OP State,Accelerator Core,{_TIMES},Block Num", "pipe_short", "\r\n"
    ),
}

STEP_TRACE = {
    9: "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive)",
}
STEP_TRACE[10] = STEP_TRACE[9] + ",Preparing"
STEP_TRACE[11] = "Device_id," + STEP_TRACE[10]


def form_for(header: str | None, framework: str, level: int) -> Form:
    """The form of that name, or the newest of the framework at that profiler level."""
    if header is not None:
        return FORMS[header]
    if framework == "mindspore":
        return FORMS["mindspore_level0" if level == 0 else "mindspore"]
    return FORMS["level0" if level == 0 else "cann8.3"]
