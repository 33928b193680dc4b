"""seconds: what one call takes here."""

from course_lib.runtime import seconds


def test_seconds_calls_once_with_the_arguments_given_and_ends_when_the_call_does():
    given = []

    def call(*args, **kwargs):
        given.append((args, kwargs))
        return 7

    took = seconds(lambda: (call(1, b=2), seconds(call, 3)))
    assert given == [((1,), {"b": 2}), ((3,), {})]
    assert isinstance(took, float) and took > 0


def test_the_time_of_a_call_is_part_of_the_time_of_the_call_around_it():
    inner = []
    outer = seconds(lambda: inner.append(seconds(sum, range(10_000))))
    assert 0 < inner[0] < outer
