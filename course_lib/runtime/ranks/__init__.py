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
    notebook -> rank     Typed               what the reader typed at the cell (debugging.py)
        until the rank has ended its work in one of four ways:
    rank -> notebook     Returned            the pickled result and what was recorded
    rank -> notebook     Failed              an exception: its class, words, lines, and itself where it can be pickled
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

Files in reading order:

    messages.py       what is said, as dataclasses
    launcher.py       (one folder up) checks what is asked for and makes the tasks
    supervisor.py     one call from start to end
    crew.py           the ranks of one launch, or of one team; where they are, and for how long they have waited there
    counts.py         what ranks have called, compared: over NCCL a hang is seen by nothing else
    diagnosis.py      what went wrong, once the other ranks are heard, and the words for it
    rank.py           what happens inside a rank
    watcher.py        its thread that answers "where are you?", and takes it out of a call that is stopped
    parcels.py        pickling of the call and its result, and onto which device their tensors come
    frames.py         stack frames and tracebacks, as data, and the tensors that a failing line names
    showing.py        what ranks print and display, pictures too; pyplot_backend.py is plt.show() there
    debugging.py      breakpoint() in a rank: pdb, whose commands come from the cell

and where a rank comes from:

    pools.py          which pool a platform gets, and the simpler one: interpreters kept warm
    fork_pool.py      forked ranks, and those of a team, whose server is a fork of the first one
    fork_server.py    the process that forks them
    home.py           what is imported ahead; environment, working folder, import path: a rank's are the notebook's
    processes.py      a rank as the notebook's process sees it, and ending what ranks started
"""
