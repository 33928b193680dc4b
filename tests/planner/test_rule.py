"""The papers' rule of thumb, beside the search."""

from dataclasses import replace

import pytest

from course_lib.facts import model, published_rows
from course_lib.planner.cluster import cluster
from course_lib.planner.rows import job_of_row
from course_lib.planner.rule import rule_of_thumb


def test_the_rule_gives_the_layouts_of_the_paper():
    """Those of table 1 that the course has."""
    for row in published_rows(group="sc21"):
        job = job_of_row(row)
        found = rule_of_thumb(replace(job.shape, tied=True, biases=True, learned_positions=True), job.cluster)
        assert (found.tp, found.pp, found.dp) == (row["tp"], row["pp"], row["dp"]), row["id"]


def test_where_the_rule_finds_nothing_it_says_how_much_is_missing():
    with pytest.raises(ValueError, match="7.31 TB of state on 8 H100"):
        rule_of_thumb(model("Llama 3 405B"), cluster("H100", 8))
