"""Peak dense matrix throughput of one device (on A3: of one die, which is one rank).

The vendor's rule is cores x clock x 8192 operations a cycle for FP16 and BF16. Nominal product figures ("376T") are
FP16 boost values 6 to 14 % higher and are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OPS_PER_CYCLE = 8192  # 16 x 16 x 16 multiply-adds of FP16 or BF16
_MAX_CORES = 256
_MHZ = (100.0, 10_000.0)


@dataclass(frozen=True)
class Peak:
    """`tflops` per device for matrices of `dtype`; `source` says where the figure is from."""

    tflops: float
    dtype: str
    source: str


@dataclass(frozen=True)
class _Chip:
    cores: int
    mhz: int
    dtype: str = "BF16"
    note: str = ""


_FIRST = "first generation"
_DIE = "one die of an A3 package"

# Whole SoC names without the leading "Ascend", lower case. Sources: CANN platform_config for the 910B series and A3;
# a CANN runtime test stub for the first generation, which has no BF16.
_CHIPS: dict[str, _Chip] = {
    "910b1": _Chip(24, 1850),
    "910b2": _Chip(24, 1800),
    "910b2c": _Chip(24, 1800),
    "910b3": _Chip(20, 1800),
    "910b4": _Chip(20, 1500),
    "910b4-1": _Chip(20, 1500),
    "910_9391": _Chip(24, 1850, note=_DIE),
    "910_9362": _Chip(20, 1500, note=_DIE),
    "910a": _Chip(32, 1000, "FP16", _FIRST),
    "910b": _Chip(30, 900, "FP16", _FIRST),  # not the 910B series: those always carry a digit
    "910proa": _Chip(32, 1100, "FP16", _FIRST),
    "910prob": _Chip(30, 1150, "FP16", _FIRST),
    "910premiuma": _Chip(32, 1200, "FP16", _FIRST),
}


def find_peak(
    *,
    device_info: Mapping[str, Any] | None = None,
    soc: str | None = None,
    override: float | None = None,
    override_dtype: str = "BF16",
) -> Peak | None:
    """The peak from the dump's own info.json, else the exact SoC name, else the project's figure; None when unknown.

    `device_info` is a parsed `PROF_*/device_N/info.json`; `override` is TFLOPS per device (per die on A3).
    """
    measured = _from_device(device_info) if device_info else None
    if measured is not None:
        return measured
    named = _from_name(soc) if soc else None
    if named is not None:
        return named
    if override is not None and 0 < override < 100_000:
        return Peak(float(override), override_dtype, "project")
    return None


def _tflops(cores: float, mhz: float) -> float:
    return cores * mhz * OPS_PER_CYCLE / 1e6


def _from_device(info: Mapping[str, Any]) -> Peak | None:
    devices = info.get("DeviceInfo")
    device = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else None
    if device is None:
        return None
    cores, mhz = _positive(device.get("ai_core_num")), _positive(device.get("aic_frequency"))
    if cores is None or mhz is None or cores > _MAX_CORES or not _MHZ[0] <= mhz <= _MHZ[1]:
        return None
    return Peak(_tflops(cores, mhz), "BF16", f"info.json: {cores:g} cores x {mhz:g} MHz")


def _positive(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if 0 < number < float("inf") else None


def _from_name(soc: str) -> Peak | None:
    token = soc.strip().lower().removeprefix("ascend").lstrip(" _-")
    chip = _CHIPS.get(token)
    if chip is None:
        return None
    note = f", {chip.note}" if chip.note else ""
    return Peak(_tflops(chip.cores, chip.mhz), chip.dtype, f"table: {soc.strip()} {chip.cores} x {chip.mhz} MHz{note}")
