"""The hub's settings; compose.yaml gives the environment variables. JupyterHub reads this file with its own names.

The course's folder has to be on PYTHONPATH, for the hub and for the servers, which inherit it.
"""

import os
import re
import sys
from pathlib import Path

from nativeauthenticator import NativeAuthenticator

from tools.hub.accounts import give_account, password_of
from tools.hub.room import container_bytes, servers_that_fit
from tools.lab import settings_in_environment

c = get_config()  # noqa: F821
RANKS = int(os.environ.setdefault("COURSE_RANKS", "4"))
HOMES = Path(os.environ.get("COURSE_HOMES", "/home"))
NAME = r"[a-z][a-z0-9-]{0,30}"  # what an account of the container may be called
TEACHER = os.environ.get("COURSE_TEACHER", "teacher")
if not re.fullmatch(NAME, TEACHER):
    raise ValueError(f"COURSE_TEACHER={TEACHER!r}: expected small letters, digits and -, such as teacher")


class ClassAuthenticator(NativeAuthenticator):
    """Everybody may ask for an account with a password of their own, and nobody comes in before the teacher has allowed
    it on /hub/authorize.

    The teacher's account is made before the hub listens, with a password made by chance: whoever signs up first under
    an administrator's name would become the administrator.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for name in self.admin_users:
            if not self.user_exists(name):
                self.create_user(name, password_of(name, Path.cwd()))


c.JupyterHub.bind_url = os.environ.get("COURSE_BIND", "http://:8000")
c.JupyterHub.active_server_limit = servers_that_fit(container_bytes(), RANKS)
c.JupyterHub.cleanup_servers = True  # the container ends with the hub

c.JupyterHub.authenticator_class = ClassAuthenticator
c.Authenticator.admin_users = {TEACHER}
c.Authenticator.allow_all = True  # all whom the teacher has allowed; the others cannot log in
c.Authenticator.username_pattern = NAME + r"\Z"  # JupyterHub asks re.match, which leaves the end open
c.NativeAuthenticator.open_signup = False
c.NativeAuthenticator.minimum_password_length = 10
c.NativeAuthenticator.check_common_password = True
c.NativeAuthenticator.allowed_failed_logins = 5
c.NativeAuthenticator.seconds_before_next_try = 60

c.JupyterHub.spawner_class = "localprocess"
c.Spawner.pre_spawn_hook = lambda spawner: give_account(spawner.user.name, HOMES)
c.Spawner.cmd = [sys.executable, "-m", "tools.hub.server"]
c.Spawner.notebook_dir = "~"
c.Spawner.default_url = "/lab/tree/workspace/notebooks/00_start_here.ipynb"
c.Spawner.environment = {**settings_in_environment(), "COURSE_RANKS": str(RANKS)}
c.Spawner.start_timeout = 120
c.Spawner.http_timeout = 120

# A server in which nobody does anything for an hour makes room for another reader.
c.JupyterHub.services = [{"name": "idle-culler",
                          "command": [sys.executable, "-m", "jupyterhub_idle_culler", "--timeout=3600"]}]
c.JupyterHub.load_roles = [{"name": "idle-culler", "services": ["idle-culler"],
                            "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"]}]
