"""doctor: one look at the machine, with advice where something is missing."""

from course_lib.runtime import doctor
from course_lib.runtime.doctor import Check, Report, _look


def test_this_machine_is_fit_and_two_real_ranks_met():
    report = doctor()
    assert report.ok, str(report)
    ranks = next(check for check in report.checks if check.name == "ranks")
    assert "summed their ranks" in ranks.found
    assert repr(report) == "doctor: everything the course needs is here"


def test_what_is_missing_is_named_with_advice():
    report = Report((Check("torch", "2.1", "the course needs torch 2.8"), Check("cores", "2")))
    assert not report.ok
    assert repr(report) == "doctor: look at torch"
    assert "-> the course needs torch 2.8" in str(report)
    assert "<b>the course needs torch 2.8</b>" in report._repr_mimebundle_()["text/html"]


def test_a_check_that_breaks_is_a_finding():
    def _loopback():
        raise OSError("no network at all")

    check = _look(_loopback)
    assert not check.ok
    assert check.found == "OSError: no network at all"
