"""A recorded timeline on a page: the events of real ranks, to zoom into, and the file for Perfetto."""

import io
import json

import pytest
from PIL import Image

from course_lib.runtime import launch, record_timeline, span
from tests.site.live.page import write_page
from tools.site.outputs import picture

pytestmark = [pytest.mark.browser, pytest.mark.ci]



def figure(trace, folder):
    """As a page has it."""
    Image.new("RGB", (100, 50)).save(png := io.BytesIO(), "png")
    return picture("", "Timeline of 2 ranks", png.getvalue(), trace, folder, "../")


@pytest.fixture(scope="module")
def timeline(site):
    """Of two ranks, which is on the page "timeline"."""
    def work():  # by value: ranks need not import what drives a browser
        import torch
        import torch.distributed as dist

        with record_timeline():
            for step in range(3):
                with span("forward", step=step), span("inner"):
                    torch.ones(400, 400) @ torch.ones(400, 400)
                dist.all_reduce(torch.ones(1000))

    found = launch(work, world_size=2).timeline
    write_page(site / "pages" / "timeline.html", figure(found.data_to_keep()["chrome_trace"], site / "pictures"))
    return found


@pytest.fixture
def page(timeline, opened):
    """The page after its button was pressed."""
    found = opened("timeline.html")
    found.page.get_by_role("button", name="Zoom into it").click()
    found.page.locator("svg [data-event]").first.wait_for()
    yield found.page
    assert found.errors == []


def window(page):
    """(number of events to be seen, text of the first tick, of the last)"""
    ticks = page.locator("svg text[text-anchor=middle]").all_text_contents()
    return page.locator("svg [data-event]").count(), float(ticks[0]), float(ticks[-1])


def test_every_event_of_every_rank_is_drawn_where_it_was_and_can_be_had_as_perfettos_file(page, timeline):
    events = timeline.events + timeline.waits
    assert window(page)[0] == len(events) > 2 * 3 * 3
    assert page.locator("svg text", has_text="rank 1").count() == 1
    drawn = page.locator("svg [data-event]").evaluate_all(
        "(boxes) => boxes.map((box) => [Number(box.getAttribute('x')), Number(box.getAttribute('width'))])")
    room = page.locator(".course-timeline-view svg").evaluate("(svg) => svg.clientWidth") - 66
    zero = min(event.start_s for event in events)
    whole = max(event.end_s for event in events) - zero
    expected = sorted(58 + room * (event.start_s - zero) / whole for event in events)
    assert sorted(x for x, _ in drawn) == pytest.approx(expected, abs=0.5)
    longest = max(event.duration_s for event in events)
    assert max(width for _, width in drawn) == pytest.approx(room * longest / whole, abs=1)
    with page.expect_download() as download:
        page.get_by_role("link", name="a file for Perfetto").click()
    with open(download.value.path(), encoding="utf-8") as file:
        complete = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    assert len(complete) == len(events) and {event["pid"] for event in complete} == {0, 1}
    page.get_by_role("button", name="Back to the recorded picture").click()
    assert page.get_by_alt_text("Timeline of 2 ranks").is_visible() and page.get_by_role("application").count() == 0


def test_it_zooms_and_moves_by_keys_and_buttons_and_tells_events_one_by_one(page):
    picture, everything = page.get_by_role("application"), window(page)
    said = page.locator(".course-timeline-view [role=status]")
    picture.press("ArrowDown")
    first = said.text_content()
    assert first.startswith("Rank 0, compute: forward, step 0; ") and "ms" in first or "µs" in first
    picture.press("ArrowDown")
    assert said.text_content().startswith("Rank 0, compute: inner; ")
    picture.press("ArrowUp")
    assert said.text_content() == first
    page.locator("svg [data-event]").last.click(force=True)
    assert said.text_content().startswith("Rank 1, waiting: ")

    page.get_by_role("button", name="Zoom in", exact=True).click()
    picture.press("+")
    closer = window(page)
    assert closer[0] < everything[0] and closer[2] - closer[1] < (everything[2] - everything[1]) / 2
    picture.press("ArrowLeft")
    assert window(page)[1] < closer[1]
    picture.press("0")
    assert window(page) == everything
    box = picture.bounding_box()
    picture.press("+")
    before = window(page)
    page.mouse.move(box["x"] + 300, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 600, box["y"] + 20)
    page.mouse.up()
    assert window(page)[1] < before[1]


def test_a_timeline_has_nothing_serious_fits_a_telephone_and_stays_a_picture_where_its_events_do_not_load(
        timeline, site, opened, look):
    look.at("pages/timeline.html")
    assert "\n".join(look.faults) == "" and look.counts["timelines"] == 1
    write_page(site / "pages" / "gone.html", figure('{"traceEvents": []}', site / "nowhere"))
    page = opened("gone.html").page
    page.get_by_role("button", name="Zoom into it").click()
    page.get_by_text("The events did not load: 404 File not found. The recorded picture stays.").wait_for()
    assert page.get_by_alt_text("Timeline of 2 ranks").count() == 1
