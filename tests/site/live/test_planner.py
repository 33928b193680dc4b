"""The planner on a static page says what the command says in a terminal."""

import json
import re
import shlex
from urllib.parse import urlencode

import pytest

from course_lib.planner import command
from tests.site.live.page import require_close

pytestmark = [pytest.mark.browser, pytest.mark.ci]

LLAMA = {"model": "Llama 3 405B", "gpus": "16384xH100", "tokens": "16M"}


@pytest.fixture
def answer_on(capsys):
    """answer_on(page): (the command that the page shows, its answer), which is what the command prints."""
    def compare(page):
        answer = page.get_by_label("the planner's answer")
        answer.wait_for()
        options, text = shlex.split(page.locator(".course-command").text_content())[3:], answer.text_content()
        try:
            command.main(options)
        except SystemExit:
            pass
        printed = "".join(capsys.readouterr()).rstrip()
        if "--json" in options:
            require_close(json.loads(text), json.loads(printed))
        else:
            assert text == printed
        return options, text

    return compare


def test_llama_on_16384_h100_is_planned_as_in_a_terminal_and_a_link_holds_the_question(opened, answer_on):
    found = opened("planner.html")
    page = found.page
    page.get_by_role("button", name="Plan").press("Enter")
    options, text = answer_on(page)
    assert options == [word for name, value in LLAMA.items() for word in (f"--{name}", value)]
    assert text.startswith("Llama 3 405B on 16,384 H100")
    assert page.evaluate("location.hash.slice(1)") == urlencode(LLAMA)
    page.get_by_label("Answer as").select_option("megatron")
    page.get_by_role("button", name="Plan").click()
    page.get_by_text("--tensor-model-parallel-size").wait_for()
    assert answer_on(page)[0][-1] == "--megatron"
    page.get_by_label("gpus", exact=True).fill("many")
    page.get_by_role("button", name="Plan").click()
    page.get_by_text("The planner did not understand this:").wait_for()
    assert "--gpus 'many': expected a number and a device" in answer_on(page)[1] and found.errors == []


def test_a_link_is_answered_when_it_is_opened_with_numbers_equal_to_pythons(opened, answer_on):
    asked = {"model": "llama-3-70b", "gpus": "64xH100", "tokens": "2M", "tp": "8", "answer": "json"}
    found = opened(f"planner.html#{urlencode(asked)}")
    assert json.loads(answer_on(found.page)[1])["plans"][0]["tp"] == 8
    assert found.page.get_by_label("tp", exact=True).input_value() == "8" and found.errors == []


def test_a_link_of_a_strangers_is_shown_as_text_and_runs_nothing(opened, answer_on):
    tag = "<img src=x onerror=document.title='broken-in'>"
    asked = {"model": f"{tag}'; \x1b[201~rm x; \u202e", "gpus": f"{tag}", "tokens": "--megatron", "tp": f'"{tag}',
             "answer": tag, "__proto__": tag, "constructor": tag, "no such option": tag, "toString": "1"}
    found = opened(f"planner.html#{urlencode(asked)}")
    options, text = answer_on(found.page)
    assert options[:2] == ["--model", f"{tag}';  [201~rm x;"] and "no such option" not in options
    assert not {*"\x1b\u202e\r\n"} & {*found.page.locator(".course-command").text_content()}
    assert "broken-in" not in found.page.title() and found.page.locator(".course-planner img").count() == 0
    for config in ("[" * 100_000, '{"__proto__": 1}', "null", f'"{tag}"'):
        found.page.evaluate("(hash) => { location.hash = hash }", urlencode(
            {"model": "config.json", "gpus": "16xH100", "tokens": "1M", "config": config}))
        found.page.locator(".course-status", has_text=re.compile("Error|not understand")).wait_for()
    assert "broken-in" not in found.page.title()


@pytest.mark.sweep(words="a model of the reader's own")
def test_a_model_of_the_readers_own_is_planned_and_its_link_holds_it(opened, tmp_path, answer_on, monkeypatch):
    config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
              "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
              "max_position_embeddings": 8192, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    found = opened("planner.html")
    page = found.page
    page.get_by_label("or your own config.json").set_input_files(tmp_path / "config.json")
    page.get_by_label("gpus", exact=True).fill("16xH100")
    page.get_by_label("tokens", exact=True).fill("1M")
    page.get_by_role("button", name="Plan").click()
    text = answer_on(page)[1]
    assert "config.json on 16 H100" in text
    again = opened(f"planner.html{page.evaluate('location.hash')}")
    assert answer_on(again.page)[1] == text and found.errors == again.errors == []
