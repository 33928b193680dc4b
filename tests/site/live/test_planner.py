"""The planner on a static page says what the command says in a terminal."""

import json
import shlex
from urllib.parse import urlencode

import pytest

from course_lib.planner import command
from tests.site.live.page import require_close

pytestmark = [pytest.mark.browser, pytest.mark.ci]

LLAMA = {"model": "Llama 3 405B", "gpus": "16384xH100", "tokens": "16M"}


def in_a_terminal(capsys, *options):
    """What the command prints."""
    try:
        command.main(options)
    except SystemExit:
        pass
    printed = capsys.readouterr()
    return (printed.out + printed.err).rstrip()


def answer_on(page):
    """(the command that the page shows, its answer)."""
    answer = page.get_by_label("the planner's answer")
    answer.wait_for()
    return shlex.split(page.locator(".course-command").text_content())[3:], answer.text_content()


def test_llama_on_16384_h100_is_planned_as_in_a_terminal_and_a_link_holds_the_question(opened, capsys):
    found = opened("planner.html")
    page = found.page
    page.get_by_role("button", name="Plan").press("Enter")
    options, text = answer_on(page)
    assert options == [word for name, value in LLAMA.items() for word in (f"--{name}", value)]
    assert text == in_a_terminal(capsys, *options) and text.startswith("Llama 3 405B on 16,384 H100")
    assert page.evaluate("location.hash.slice(1)") == urlencode(LLAMA)
    page.get_by_label("Answer as").select_option("megatron")
    page.get_by_role("button", name="Plan").click()
    page.get_by_text("--tensor-model-parallel-size").wait_for()
    options, text = answer_on(page)
    assert options[-1] == "--megatron" and text == in_a_terminal(capsys, *options) and found.errors == []


def test_a_link_is_answered_when_it_is_opened_with_reasons_errors_and_numbers_equal_to_pythons(opened, capsys):
    asked = {"model": "llama-3-70b", "gpus": "64xH100", "tokens": "2M", "tp": "8", "answer": "json"}
    found = opened(f"planner.html#{urlencode(asked)}")
    options, text = answer_on(found.page)
    require_close(json.loads(text), json.loads(in_a_terminal(capsys, *options)))
    assert json.loads(text)["plans"][0]["tp"] == 8
    assert found.page.get_by_label("tp", exact=True).input_value() == "8" and found.errors == []


def test_what_cannot_be_understood_is_said_in_the_planners_words(opened, capsys):
    page = opened("planner.html").page
    page.get_by_label("gpus", exact=True).fill("many")
    page.get_by_role("button", name="Plan").click()
    options, text = answer_on(page)
    assert text == in_a_terminal(capsys, *options) and "--gpus 'many': expected a number and a device" in text
    page.get_by_text("The planner did not understand this:").wait_for()


@pytest.mark.sweep(words="a model of the reader's own")
def test_a_model_of_the_readers_own_is_planned_and_its_link_holds_it(opened, tmp_path, capsys, monkeypatch):
    config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
              "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
              "max_position_embeddings": 8192, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = opened("planner.html")
    page = found.page
    page.get_by_label("or your own config.json").set_input_files(tmp_path / "config.json")
    page.get_by_label("gpus", exact=True).fill("16xH100")
    page.get_by_label("tokens", exact=True).fill("1M")
    page.get_by_role("button", name="Plan").click()
    options, text = answer_on(page)
    monkeypatch.chdir(tmp_path)
    assert text == in_a_terminal(capsys, *options) and "config.json on 16 H100" in text
    again = opened(f"planner.html{page.evaluate('location.hash')}")
    assert answer_on(again.page)[1] == text and found.errors == again.errors == []
