"""What is on a shelf is what was put there."""

from __future__ import annotations

import json
from tempfile import TemporaryFile

import pytest

from analysis.communication import settle_links
from analysis.entries import number, rows
from analysis.shelf import Shelf, Shelved, ShelvedObject

LINKS = [{"src": rank, "dst": rank + 1, "group": "7", "within_group": True, "size_bytes": 1e6} for rank in range(30)]


@pytest.fixture
def shelf():
    with TemporaryFile() as file:
        yield Shelf(file)


def test_rows_are_those_that_were_put_there(shelf):
    put = shelf.put(LINKS)
    other = shelf.put([{**row, "group": "8"} for row in LINKS])
    assert isinstance(put, Shelved) and len(put) == 30
    assert rows({"links": put}, "links") == [*put] == LINKS
    assert put[3] == LINKS[3] and put[28:] == LINKS[28:] and other[0]["group"] == "8"


def test_an_object_is_looked_into_as_a_plain_one(shelf):
    facts = {"count": 3, "by_type": [{"type": "Cast", "us": 1.5 * number} for number in range(40)]}
    put = shelf.put(facts)
    assert isinstance(put, ShelvedObject) and len(put) == 2 and dict(put) == facts
    assert number({"facts": {"casts": put}}, "facts", "casts", "count") == 3.0
    assert rows({"facts": {"casts": put}}, "facts", "casts", "by_type") == facts["by_type"]


@pytest.mark.parametrize(
    "small", [None, 3, "a" * 1000, [], {}, [{"us": 1.5}], {"us": 1.5}, [1, 2] * 500, [{"a": 1}, 2] * 99]
)
def test_what_takes_little_or_is_no_table_stays_as_it_is(shelf, small):
    assert shelf.put(small) is small


def test_links_that_become_ranks_of_the_job_stay_on_the_shelf(shelf):
    entry = {"rank": 0, "links": shelf.put(LINKS)}
    settle_links([entry], [{"groups": {"7": {"ranks": [2 * rank for rank in range(31)]}}}], 62)
    assert isinstance(entry["links"], Shelved)
    assert [(row["src"], row["dst"], row["within_group"]) for row in entry["links"]][:2] == [
        (0, 2, False),
        (2, 4, False),
    ]


def test_links_that_nobody_can_tell_are_the_very_ones_they_were(shelf):
    put = shelf.put(LINKS)
    entry = {"rank": 0, "links": put}
    settle_links([entry], [{}], 1000)
    assert entry["links"] is put


def test_it_is_no_json_so_that_nothing_stores_a_place_for_its_rows(shelf):
    with pytest.raises(TypeError):
        json.dumps(shelf.put(LINKS))
