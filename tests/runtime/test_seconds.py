"""seconds: what one call takes here."""

from course_lib.runtime import seconds


def test_seconds_calls_once_with_the_arguments_given_and_ends_when_the_call_does():
    given = []

    def call(*args, **kwargs):
        given.append((args, kwargs))
        return 7

    inner = []
    outer = seconds(lambda: (call(1, b=2), inner.append(seconds(call, 3))))
    assert given == [((1,), {"b": 2}), ((3,), {})] and 0 < inner[0] < outer
