"""Instruments: what a rank sends, holds and does, measured inside it. Files in reading order:

    recordings.py     what all recorders share: logs and how they leave a rank, spans, the mode that sees operators
    arrivals.py       where every call on a process group arrives, of any thread and through any API
    communication.py  record_communication: operations, their messages, and what a ring would send of them
    wire.py           what the operating system counts on the wire
    memory.py         record_memory: bytes by kind over time
        memory_tracker.py watches, storage_book.py keeps the storages
    clocks.py         when something happens, on the host or on a GPU; seconds: what one call takes
    pending.py        what a rank is communicating right now: for timelines, and for the diagnosis of deadlocks
    timeline.py       record_timeline: spans and communication on two lanes; timeline_events.py: what it is made of
    pictures.py       draws memory and timelines
"""
