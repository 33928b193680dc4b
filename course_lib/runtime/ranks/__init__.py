"""Ranks: where they come from, what they are told, where they are, and how a launch ends.

The life of a call, `launch(fn, world_size=4)`. Three kinds of process take part: the notebook's own, the server that
forks ranks (Linux; elsewhere the ranks are interpreters kept warm), and the ranks.

    notebook -> server   fork                a request for each rank, answered by its process id (fork_pool.py)
    notebook -> rank     Home                environment, working folder, import path (home.py)
    notebook -> rank     Task                which rank of how many, backend, seed, and the pickled call (messages.py)
        the rank joins the process group and calls fn (rank.py); meanwhile, four times a second,
    notebook -> rank     where are you?
    rank -> notebook     Whereabouts         lines, pending communication, CPU time (watcher.py)
    rank -> notebook     Asks                at a breakpoint, what the debugger says; clocks stand still
    notebook -> rank     Typed               what the reader typed at the cell (conversation.py)
        until the rank has ended its work in one of five ways:
    rank -> notebook     Returned            the pickled result and what was recorded
    rank -> notebook     Failed              an exception: its class, words, lines, and itself where it can be pickled
    rank -> notebook     Exited              sys.exit
    rank -> notebook     Quit                q at a breakpoint
    rank -> notebook     Closed              nothing: its process has died
    notebook -> rank     you may go          dismissed: a rank that left early would fail its peers
    notebook -> server   finish              ends what has not ended, and whatever ranks have started

A team (course_lib/runtime/team) is the same with more than one call. Its ranks have a server of their own, forked from
the first one, so that launches come and go beside them:

    notebook -> server   branch              a server for the team; then fork, Home, Task as above
        and instead of being dismissed, a rank whose call has ended waits for the next one:
    notebook -> rank     Task                the next call; with another number of its group, that is joined anew
    notebook -> rank     stop that           where the call has gone wrong: the ranks that are still in it leave it

The supervisor follows all of this, decides what the story is, and raises it as one error: RankFailed, RankDied,
Deadlock (all that are left wait, and have not moved for seconds), LaunchTimeout, LaunchInterrupted. A server that does
not answer is killed with its ranks, which is a LaunchError; the next launch starts a new one.

COURSE_LIB_TRACE=FILE writes a line for each of these messages, as the notebook's process sends or receives it.

Files in reading order:

    messages.py       what is said, as dataclasses
    launcher.py       (one folder up) checks what is asked for and makes the tasks
    crew.py           the ranks of one launch, or of one team, from start to end
    supervisor.py     one call in them from start to end
    asking.py         asks its ranks where they are, by message and by signal
    lookout.py        hang detection: what they answered, and how long they have waited there
    went_wrong.py     which failure, death or lateness is the story, once the other ranks are heard
    rank.py           what happens inside a rank
    watcher.py        its thread that answers "where are you?"
    stopping.py       taking a rank out of a call so that it lives on
    parcels.py        pickling of the call and its result, and onto which device their tensors come
    evidence.py       shapes, dtypes and devices of the tensors that a failing line names
    places.py         stack frames and tracebacks, as data
    diagnosis.py      from what ranks report to what the reader should know: pure functions
    output.py         what ranks print: reading their pipes, and the rank before each line
    debugging.py      breakpoint() in a rank: pdb, whose commands come from the cell
    conversation.py   the ranks at breakpoints and the one reader
    showing.py        what ranks display, pictures too, and pyplot_backend.py, which is plt.show() there
    pools.py          which pool a platform gets:
    fork_pool.py      forked ranks, and fork_server.py, the process that forks them
    branch_pool.py    ranks that stay, forked from a server of their own
    interrupts.py     interrupts of the notebook wait until what is asked of a server has been answered
    warm_pool.py      interpreters kept warm, and warm_rank.py, one of them
    rank_process.py   a rank as the notebook's process sees it, from either pool
    preload.py        what is imported ahead
    home.py           environment variables, working folder, import path: a rank's are the notebook's
    processes.py      ending what ranks started
    trace.py          the trace
"""
