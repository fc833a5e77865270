"""Layers of each stage, by hand."""

from __future__ import annotations

import pytest

from analysis.config import ModelConfig, config_from_json, fingerprint, read_config
from analysis.stages import Held, even, held, layers_by_stage, shifted, with_ends, without

YAML = """\
model:
  model_config:
    {{model_type: llama, num_layers: {layers}, hidden_size: 64, offset: {offset}, pp_interleave_num: {chunks}}}
parallel_config: {{pipeline_stage: {stages}}}
use_parallel: True
"""


@pytest.mark.parametrize(
    ("layers", "stages", "chunks", "offset", "layout"),
    [
        (40, 4, 1, [-1, 0, 2, -1], ((9, 10, 12, 9),)),
        (61, 8, 2, [[1] * 8, [1, 1, 1, 1, 1, 1, 1, -2]], ((4,) * 8, (4, 4, 4, 4, 4, 4, 4, 1))),
        (12, 2, 2, [1, -1], ((4, 2), (4, 2))),
        (10, 4, 1, [0, 1, 1, 0], ((2, 3, 3, 2),)),
        (8, 4, 1, [1, 1, 1, 1], None),  # twelve layers
        (8, 4, 1, [1, -1], None),
        (8, 4, 1, [-3, 1, 1, 1], None),
        (8, 4, 1, 1, None),
        (8, 4, 1, ["1", 0, 0, -1], None),
    ],
)
def test_an_offset_is_added_to_the_mean(layers, stages, chunks, offset, layout):
    assert shifted(layers, stages, chunks, offset) == layout
    config = read_config(YAML.format(layers=layers, stages=stages, chunks=chunks, offset=offset), "run.yaml")
    assert config.stage_layers == layout
    assert ("stage_layers" in config.missing) == (layout is None)


def test_no_offset_is_no_layout_and_keeps_the_fingerprint():
    plain = read_config(YAML.format(layers=8, stages=4, chunks=1, offset=0), "run.yaml")
    moved = read_config(YAML.format(layers=8, stages=4, chunks=1, offset=[1, 0, 0, -1]), "run.yaml")
    assert plain.stage_layers is None
    assert "stage_layers" not in plain.missing
    assert fingerprint(plain) != fingerprint(moved)
    assert config_from_json(moved.as_json()) == moved


def test_the_first_and_the_last_stage_may_have_a_number_of_their_own():
    assert with_ends(10, 4, 1, 1, 3) == ((1, 3, 3, 3),)
    assert with_ends(10, 4, 1, 2, None) is None  # eight layers on three stages
    assert with_ends(10, 4, 1, None, 1) == ((3, 3, 3, 1),)


def test_numbers_of_a_file_make_no_layout_that_fills_the_memory():
    assert even(2**31 - 2, 2**30 - 1) is None
    assert shifted(2**31 - 2, 2**30 - 1, 1, 1) is None
    assert with_ends(2**31 - 2, 2**30 - 1, 1, 2, None) is None


def test_layers_are_counted_through_the_chunks():
    """Two chunks on two stages hold layers 0-1, 2-3, 4-5 and 6-7."""
    assert without(even(8, 2, 2), {0, 4, 5}) == ((1, 2), (0, 2))
    assert layers_by_stage(((1, 2), (0, 2))) == [1, 4]


def test_the_first_layers_without_experts_lie_on_the_first_stage():
    config = ModelConfig("m", layers=8, pp=2, experts=4, dense_layers=3)
    assert held(config, 0) == Held((4, 4), (3, 3), (1, 1))
    assert held(config, 1) == Held((4, 4), (0, 0), (4, 4))
    assert held(config, None) == Held((4, 4), (0, 3), (1, 4))
    chunks = ModelConfig("m", layers=8, pp=2, interleave=2, experts=4, dense_layers=3)
    assert held(chunks, 1) == Held((4, 4), (1, 1), (3, 3))  # layers 2, 3, 6 and 7


def test_where_layers_do_not_go_into_the_stages_one_may_hold_one_more():
    assert held(ModelConfig("m", layers=10, pp=4), 2) == Held((2, 3), (2, 3), (0, 0))
    assert held(ModelConfig("m", layers=10, pp=4, experts=8, dense_layers=1), 2) == Held((2, 3), (0, 1), (1, 3))
