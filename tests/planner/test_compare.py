"""Published beside predicted: one convention of MFU, sources left out, measured memory."""

import pytest

from course_lib.facts import published_rows
from course_lib.planner import validate
from course_lib.planner.compare import (
    compare,
    errors_of,
    generic_job,
    mfu_in_full,
    mfu_of,
    printed_mfu,
    told_job,
)
from course_lib.planner.constants import FITTED, priors
from course_lib.planner.peaks import measured_peaks, table_of_peaks
from course_lib.planner.rows import job_of_row
from course_lib.planner.validate import constants_without, source_of, table_of_ways

ROWS = published_rows()
CONVENTIONS = {
    "causal": "model TFLOP/s per GPU (causal attention counted half; convention assumed)",
    "full": "model TFLOP/s per GPU (no recompute, full s^2)",
    "sc21": "achieved TFLOP/s per GPU incl. recompute FLOPs (SC21 eq 3)"}


# One convention

@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_printed_mfu_converted_is_that_of_the_published_step(convention):
    rows = [row for row in ROWS if row["metric"] == CONVENTIONS[convention]]
    assert rows
    for row in rows:
        job = job_of_row(row)
        converted = mfu_in_full(printed_mfu(row, job), job.shape, row["seq"], convention)
        assert converted == pytest.approx(mfu_of(row, job), rel=1e-9), row["id"]


def test_the_43_percent_of_llama_3_are_46_where_attention_is_counted_in_full_and_others_are_refused():
    row = next(row for row in ROWS if row["id"] == "Llama3-8k")
    job = job_of_row(row)
    assert printed_mfu(row, job) == pytest.approx(0.43, abs=0.005)
    assert mfu_of(row, job) == pytest.approx(0.453, abs=0.01)
    with pytest.raises(ValueError, match="convention='half': expected one of full, causal, sc21"):
        mfu_in_full(0.4, job.shape, 2048, "half")


# Left out

@pytest.mark.ci
def test_a_source_does_not_move_the_constants_that_predict_it(monkeypatch):
    left = "mosaicml/llm-foundry"
    constants = constants_without.__wrapped__(left)
    assert constants != FITTED
    others = [row | {"value": 2 * row["value"]} if source_of(row) == left else row for row in ROWS]
    monkeypatch.setattr(validate, "published_rows", lambda *split: others)
    assert constants_without.__wrapped__(left) == constants


def test_two_things_told_of_an_unknown_software_halve_what_its_runs_are_missed_by():
    known = [row for row in ROWS if row["group"] in ("ultra", "foundry", "cp")]
    nothing, told = (errors_of(compare(known, job_of=job)).median for job in (generic_job, told_job))
    assert told < nothing / 2
    for row in ROWS[::7]:
        told, software = told_job(row).software, job_of_row(row).software
        assert told.name == "Megatron-LM 2021" or told.attention == software.attention


# As text

def test_every_way_of_predicting_has_its_columns():
    rows = [row for row in ROWS if row["group"] in ("sc21", "korth")]
    lines = table_of_ways({"as fitted": compare(rows), "priors alone": compare(rows, priors())}).splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == ["sc21", "korth", "all", "mean of groups"]
    assert all(line.count("%") == 4 for line in lines[1:4])


# Memory

def test_every_measured_peak_stands_beside_a_predicted_one():
    peaks = measured_peaks(ROWS)
    assert len(peaks) == sum(bool(row.get("peak_gb")) for row in ROWS)
    assert all(each.predicted_bytes > 0 and each.measured_bytes > 2**28 for each in peaks)
    assert {each.row["split"] for each in peaks if each.fitted} == {"calibration"}
    text = table_of_peaks(peaks)
    assert "nanotron 2025" in text and text.splitlines()[1].split()[3] == str(sum(not each.fitted for each in peaks))
