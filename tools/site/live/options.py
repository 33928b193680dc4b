"""The options of the planner's command as a form can show them: the command is the only place that lists them."""

import argparse
from typing import Any

from course_lib.facts import ACCELERATORS, DEVICE_VARIANTS
from course_lib.facts.models import MODELS
from course_lib.planner.command import DESCRIPTION, parser
from course_lib.planner.software import SOFTWARE

LEFT_OUT = {"help"}


def planner_options() -> dict[str, Any]:
    """{"description", "groups": [{"title", "options": [...]}], "known": names by option}."""
    found = parser()
    groups = [{"title": group.title, "options": [option(each) for each in group._group_actions
                                                 if each.dest not in LEFT_OUT]}
              for group in found._action_groups]
    return {"description": DESCRIPTION, "groups": [group for group in groups if group["options"]],
            "known": {"model": [each.name for each in MODELS], "software": [each.name for each in SOFTWARE],
                      "gpus": [f"64x{each.name}" for each in (*ACCELERATORS, *DEVICE_VARIANTS)]}}


def option(action: argparse.Action) -> dict[str, Any]:
    """One option: its name, what it takes (None: it is there or not), and what it means."""
    return {"name": action.option_strings[0].lstrip("-"), "help": action.help, "required": action.required,
            "choices": None if action.choices is None else list(map(str, action.choices)),
            "takes": None if action.nargs == 0 else action.metavar or action.dest, "default": action.default}
