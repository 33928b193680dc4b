"""The papers' rule of thumb, beside the search."""

from dataclasses import replace

import pytest

from course_lib.facts import SC21_LAYOUTS, model
from course_lib.planner.cluster import cluster
from course_lib.planner.rows import job_of_row, row_of_layout
from course_lib.planner.rule import rule_of_thumb


def test_the_rule_gives_all_ten_layouts_of_the_papers_table_1():
    for run in SC21_LAYOUTS:
        job = job_of_row(row_of_layout(run))
        found = rule_of_thumb(replace(job.shape, tied=True, biases=True, learned_positions=True), job.cluster)
        assert found == job.layout, run.name


def test_where_the_rule_finds_nothing_it_says_how_much_is_missing():
    with pytest.raises(ValueError, match="7.31 TB of state on 8 H100"):
        rule_of_thumb(model("Llama 3 405B"), cluster("H100", 8))
