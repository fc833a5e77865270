from __future__ import annotations

import pytest

from analysis.peaks import find_peak

# Expected figures: table of computed FP16/BF16 TFLOPS in the vendor's configuration data.
TABLE = {
    "Ascend910B1": 363.7, "Ascend910B2": 353.9, "Ascend910B2C": 353.9, "Ascend910B3": 294.9, "Ascend910B4": 245.8,
    "Ascend910B4-1": 245.8, "Ascend910_9391": 363.7, "Ascend910_9362": 245.8, "Ascend910A": 262.1,
    "Ascend910ProA": 288.4, "Ascend910ProB": 282.6, "Ascend910PremiumA": 314.6,
}  # fmt: skip


@pytest.mark.parametrize(("soc", "tflops"), TABLE.items())
def test_exact_chip_names(soc, tflops):
    assert find_peak(soc=soc).tflops == pytest.approx(tflops, abs=0.051)


def test_bare_910b_is_a_first_generation_chip():
    peak = find_peak(soc="Ascend910B")
    assert peak.tflops == pytest.approx(221.2, abs=0.05)
    assert peak.dtype == "FP16"
    assert "first generation" in peak.source


def test_a3_is_counted_per_die():
    peak = find_peak(soc="Ascend910_9391")
    assert peak.tflops < 376
    assert "one die" in peak.source


@pytest.mark.parametrize("soc", ["Ascend910B5", "Ascend910_9999", "910B3x", "Ascend310P3", "", "910"])
def test_unknown_names_are_not_matched_in_part(soc):
    assert find_peak(soc=soc) is None


@pytest.mark.parametrize("soc", ["ascend910b3", "910B3", " Ascend910B3 "])
def test_case_and_prefix_do_not_matter(soc):
    assert find_peak(soc=soc).tflops == pytest.approx(294.9, abs=0.05)


def test_the_dumps_own_cores_and_clock_win():
    info = {"DeviceInfo": [{"ai_core_num": 25, "aic_frequency": "1850"}]}
    peak = find_peak(device_info=info, soc="Ascend910B3", override=100.0)
    assert peak.tflops == pytest.approx(378.9, abs=0.05)  # 25 x 1850e6 x 8192
    assert peak.source == "info.json: 25 cores x 1850 MHz"


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"DeviceInfo": []},
        {"DeviceInfo": [None]},
        {"DeviceInfo": [{"ai_core_num": 24}]},
        {"DeviceInfo": [{"ai_core_num": "N/A", "aic_frequency": 1800}]},
        {"DeviceInfo": [{"ai_core_num": 24, "aic_frequency": 1.8}]},
        {"DeviceInfo": [{"ai_core_num": 24, "aic_frequency": "nan"}]},
    ],
)
def test_unusable_device_info_falls_through_to_the_name(info):
    assert find_peak(device_info=info, soc="Ascend910B3").source.startswith("table")


def test_project_figure_is_last():
    assert find_peak(soc="Ascend910B2", override=100.0).source.startswith("table")
    peak = find_peak(soc="unheard of", override=100.0)
    assert (peak.tflops, peak.dtype, peak.source) == (100.0, "BF16", "project")
    assert find_peak(override=0.0) is None
    assert find_peak() is None
