"""Stands on a page where the anywidget package stands in Jupyter: traits, and what is to be told the browser.

There, each change is a message of its own; here session.py collects all that a question has changed.
"""

from contextlib import nullcontext

import traitlets


class AnyWidget(traitlets.HasTraits):
    comm = True  # in Jupyter: None for a widget that is closed

    def __init__(self, **traits):
        super().__init__(**traits)
        self.changed = set()  # the traits that the browser does not know
        self.sent = []  # what `send` was given
        self._hearers = []
        self.observe(lambda change: self.changed.add(change.name), names=self.keys)

    @property
    def keys(self):
        return self.trait_names(sync=True)

    def set_state(self, state):
        """What the browser asks for, all at once: TraitError leaves everything as it was."""
        with self.hold_trait_notifications():
            for name, value in state.items():
                if name in self.keys:
                    self.set_trait(name, value)

    def hold_sync(self):
        return nullcontext()

    def send(self, content):
        self.sent.append(content)

    def on_msg(self, hearer):
        self._hearers.append(hearer)

    def hear(self, content):
        for hearer in self._hearers:
            hearer(self, content, [])
