"""Ask a running hub what a class asks of it; CI does so in a container.

    python -m tools.hub.ask ADDRESS teacher PASSWORD    a stranger stays outside, one whom the teacher has allowed
                                                        starts a server, and a cell there starts two ranks

Once for each hub: it leaves a user called ask behind, whom a second call would shut out again.
"""

import json
import secrets
import sys
import time
from urllib.parse import urljoin

import requests
import websocket

STUDENT = "ask"
CELL = """\
import os
import torch
import torch.distributed as dist
from course_lib.runtime import launch

def add_up():
    ranks = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(ranks)
    return ranks.item(), os.getuid()

print(launch(add_up, world_size=2), os.getcwd())
"""


class Visitor:
    """A browser without a window: cookies, and the token that each form wants back."""

    def __init__(self, address: str):
        self.address, self.session = address.rstrip("/") + "/", requests.Session()

    def post(self, path: str, form: str | None = None, **fields: str) -> requests.Response:
        """Send the form at `path`, or what the page `form` sends there as JSON."""
        self.session.get(self.url(form or path))
        (token,) = [cookie.value for cookie in self.session.cookies if (cookie.path, cookie.name) == ("/hub/", "_xsrf")]
        return self.session.post(self.url(path), headers={"X-XSRFToken": token},
                                 **({"json": fields} if form else {"data": {**fields, "_xsrf": token}}))

    def url(self, path: str) -> str:
        return urljoin(self.address, path)

    def log_in(self, name: str, password: str) -> bool:
        self.post("hub/login?next=/hub/home", username=name, password=password)
        return self.session.get(self.url("hub/home")).url.endswith("/hub/home")


def start_server(student: Visitor, headers: dict[str, str], patience_s: float = 180.0) -> str:
    """The address of the student's server, when it answers."""
    users = student.url(f"hub/api/users/{STUDENT}")
    requests.post(f"{users}/server", headers=headers).raise_for_status()
    for _ in range(int(patience_s)):
        if requests.get(users, headers=headers).json()["servers"].get("", {}).get("ready"):
            return student.url(f"user/{STUDENT}/")
        time.sleep(1)
    raise SystemExit("the server did not start in time")


def run_in_kernel(server: str, headers: dict[str, str], code: str) -> str:
    """What the code prints in a new kernel of the server."""
    kernel = requests.post(urljoin(server, "api/kernels"), headers=headers, json={"name": "python3"}).json()["id"]
    socket = websocket.create_connection(urljoin(server, f"api/kernels/{kernel}/channels").replace("http", "ws", 1),
                                         header=headers, timeout=180)
    number, text = secrets.token_hex(16), ""
    socket.send(json.dumps({
        "header": {"msg_id": number, "msg_type": "execute_request", "username": STUDENT, "session": number,
                   "version": "5.3", "date": ""}, "parent_header": {}, "metadata": {}, "channel": "shell",
        "buffers": [], "content": {"code": code, "silent": False, "store_history": False, "allow_stdin": False}}))
    while True:
        message = json.loads(socket.recv())
        if message["parent_header"].get("msg_id") == number:
            text += message["content"].get("text", "")
            if message["msg_type"] == "error":
                raise SystemExit("\n".join(message["content"]["traceback"]))
            if message["msg_type"] == "execute_reply":
                return text


def main(address: str, teacher: str, password: str) -> None:
    student, own = Visitor(address), secrets.token_hex(16)
    student.post("hub/signup", username=STUDENT, signup_password=own, signup_password_confirmation=own)
    assert not student.log_in(STUDENT, own), "nobody had allowed this user"
    chief = Visitor(address)
    assert not chief.log_in(teacher, "wrong"), "any password does"
    assert chief.log_in(teacher, password), "the teacher's password is refused"
    chief.session.get(chief.url(f"hub/authorize/{STUDENT}"))
    assert student.log_in(STUDENT, own), "the teacher has allowed this user"
    token = student.post(f"hub/api/users/{STUDENT}/tokens", "hub/token", note="ask").json()["token"]
    headers = {"Authorization": f"token {token}"}
    server = start_server(student, headers)
    print(f"a stranger stayed outside; the student's server: {server}")
    print(run_in_kernel(server, headers, CELL), end="")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
