"""A small JupyterHub for a class, in one container: compose.yaml starts it, docs/one_click.md says how to use it.

    jupyterhub_config.py    the hub's settings: who may come in, how many at a time
    accounts.py             the teacher's first password; an account of its own in the container for each user
    server.py               what a user's server does first: copies of the notebooks, a bound on memory
    ask.py                  what CI asks a hub that runs
    room.py                 how many servers a container's memory carries, by the number of ranks
"""
