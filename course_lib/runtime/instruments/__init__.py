"""Instruments: what a rank sends, holds and does, measured inside it. Files in reading order:

    recordings.py     the base of every log, and how logs leave a rank
    dispatch.py       the mode that sees every torch operator
    communication.py  record_communication: operations and bytes, by the rules of communication_rules.py
    memory.py         record_memory: bytes by kind over time
        memory_tracker.py watches, storage_book.py keeps the storages, memory_track.py is the result as plain data,
        allocator.py asks a GPU's allocator, memory_picture.py draws it
    spans.py          span: a name for a stretch of code
    clocks.py         when something happens, on the host or on a GPU
    seconds.py        seconds: what one call takes
    pending.py        what a rank is communicating right now: for timelines, and for the diagnosis of deadlocks
    timeline.py       record_timeline: spans and communication on two lanes
        timeline_recorder.py listens, timeline_event.py is what it is made of, intervals.py sets of times,
        under_way.py tells moving bytes from waiting for others, timeline_picture.py draws it, chrome_trace.py writes it
        for Perfetto
"""
