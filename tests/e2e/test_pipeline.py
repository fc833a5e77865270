"""A pipeline's dumps through agent and worker to the chart of its stages, whose boxes lead into the timeline."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from analysis.synthetic.capture import write_capture
from analysis.synthetic.spec import GptSpec
from tests.e2e.conftest import Tab, Upload

pytestmark = pytest.mark.browser
CHART = '[data-chart-url*="/charts/pipeline/"]'
MIDDLE = """(selector) => {
  const box = document.querySelector(selector);
  box.scrollIntoView({block: "center"});
  const chart = echarts.getInstanceByDom(box);
  const {name, data} = chart.getOption().series[1];
  const [line, start, end] = data[0].value;
  const [x, y] = chart.convertToPixel({seriesIndex: 1}, [(start + end) / 2, line]);
  const place = box.getBoundingClientRect();
  return {name, count: data.length, x: place.x + x, y: place.y + y};
}"""


def test_a_pass_of_the_pipeline_leads_to_its_place_in_the_timeline(tab: Tab, upload: Upload, tmp_path: Path) -> None:
    write_capture(tmp_path, GptSpec(layers=4, pp=2, micro_batches=4, mode="torch"), steps=1)
    upload(tmp_path, "--run", "A pipeline of two stages")
    tab.open("/projects/gpt/runs/?order=newest")
    tab.click("text=A pipeline of two stages")
    tab.click("main a[href^='/captures/']")
    tab.wait_for_selector(CHART)
    tab.draw_all()
    assert tab.locator(CHART).get_attribute("data-state") == "ready"
    found = tab.evaluate(MIDDLE, CHART)
    assert (found["name"], found["count"]) == ("Backward", 8)  # 4 micro-batches on 2 stages
    tab.mouse.click(found["x"], found["y"])
    tab.wait_for_url(re.compile(r"/ranks/0/.*#t="))
    tab.wait_for_selector("canvas[data-canvas]")
