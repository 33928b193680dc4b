"""The text that notebooks are tested on besides Python's help topics."""

from pydoc_data.topics import topics

from tools.other_text import text


def test_it_is_english_long_enough_and_not_what_the_topics_say():
    other = text()
    paragraphs = {" ".join(paragraph.split()) for paragraph in other.split("\n\n")}
    of_topics = {" ".join(paragraph.split()) for topic in topics.values() for paragraph in topic.split("\n\n")}
    assert len(other) > 300_000
    assert other.count(" the ") > 2_000
    assert len(paragraphs & of_topics) < 0.01 * len(paragraphs)
