"""A learner as the hub sees one, for try_hub.py: logs in with a password, and uses the server's REST and kernel interface."""

from __future__ import annotations

import json
import re
import time
import uuid

import requests
import websocket

PATIENCE = 300  # seconds for a server to start, or for a cell


class Learner:
    """Someone who is logged in at `hub`, such as "http://127.0.0.1:8000", and whose server runs. RuntimeError where not."""

    def __init__(self, hub: str, name: str, password: str):
        self.hub, self.name, self.session = hub, name, requests.Session()
        form = self.session.get(f"{hub}/hub/login", timeout=30)
        token = re.search(r'name="_xsrf" value="([^"]*)"', form.text)[1]
        answer = self.session.post(f"{hub}/hub/login?next=/hub/spawn", timeout=PATIENCE,
                                   data={"username": name, "password": password, "_xsrf": token})
        if answer.status_code >= 400 or "/hub/login" in answer.url:
            raise RuntimeError(f"{name} cannot log in: {answer.status_code} at {answer.url}")
        # Of a page that is open already: it asks for a token, and with that all else is asked.
        headers = {"X-XSRFToken": self.session.cookies.get("_xsrf", path="/hub/"), "Referer": f"{hub}/hub/"}
        made = self.session.post(f"{hub}/hub/api/users/{name}/tokens", json={}, timeout=30, headers=headers)
        made.raise_for_status()
        self.token = made.json()["token"]
        self._until_it_runs()

    def _until_it_runs(self) -> None:
        end = time.monotonic() + PATIENCE
        while (answer := self.ask("GET", "api/status", check=False)).status_code != 200:
            if time.monotonic() > end:
                raise RuntimeError(f"{self.name}'s server did not start: {answer.status_code} {answer.text[:200]}")
            time.sleep(1)

    def ask(self, method: str, path: str, whose: str | None = None, check: bool = True, **more) -> requests.Response:
        """Asks this learner's server, or that of `whose`; raises requests.HTTPError for a refusal, unless `check` is False."""
        answer = requests.request(method, f"{self.hub}/user/{whose or self.name}/{path}", timeout=PATIENCE,
                                  allow_redirects=False, headers={"Authorization": f"token {self.token}"}, **more)
        if check:
            answer.raise_for_status()
        return answer

    def nbgrader(self, action: str, course: str, lab: str) -> None:
        """What a button of JupyterLab's list of assignments does: fetch, submit, fetch_feedback. RuntimeError where not."""
        said = self.ask("POST", f"assignments/{action}", json={"course_id": course, "assignment_id": lab}).json()
        if not said["success"]:
            raise RuntimeError(f"{self.name}: {action} {lab}: {said}")

    def work_through(self, path: str, edits: dict[str, str]) -> list[str]:
        """Opens a notebook, replaces the text of some cells, {cell id: text}, runs all of them, saves it, and returns what each
        code cell printed, or the error that it ended with.
        """
        notebook = self.ask("GET", f"api/contents/{path}").json()["content"]
        printed = []
        with Kernel(self, path) as kernel:
            for cell in notebook["cells"]:
                cell["source"] = edits.get(cell["id"], cell["source"])
                if cell["cell_type"] == "code":
                    printed.append(kernel.run(cell["source"]))
        self.ask("PUT", f"api/contents/{path}", json={"type": "notebook", "format": "json", "content": notebook})
        return printed


class Kernel:
    """A kernel of a learner's server, in the folder of a notebook; it ends with the block."""

    def __init__(self, learner: Learner, path: str):
        self.learner = learner
        session = {"path": path, "type": "notebook", "name": "", "kernel": {"name": "python3"}}
        self.id = learner.ask("POST", "api/sessions", json=session).json()["kernel"]["id"]
        self.socket = websocket.create_connection(
            f"{learner.hub.replace('http', 'ws', 1)}/user/{learner.name}/api/kernels/{self.id}/channels", timeout=PATIENCE,
            header=[f"Authorization: token {learner.token}"])

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_) -> None:
        self.socket.close()
        self.learner.ask("DELETE", f"api/kernels/{self.id}")

    def run(self, code: str) -> str:
        """What the code prints; in its place the error's name and text, where it ends with one."""
        asked = uuid.uuid4().hex
        self.socket.send(json.dumps({
            "channel": "shell", "parent_header": {}, "metadata": {}, "content": {"code": code, "silent": False},
            "header": {"msg_id": asked, "msg_type": "execute_request", "session": asked, "username": "", "version": "5.3"}}))
        printed = ""
        while True:
            message = json.loads(self.socket.recv())
            if message.get("parent_header", {}).get("msg_id") != asked:
                continue
            kind, content = message["header"]["msg_type"], message["content"]
            if kind == "stream":
                printed += content["text"]
            elif kind == "error":
                printed += f"{content['ename']}: {content['evalue']}"
            elif kind == "status" and content["execution_state"] == "idle":
                return printed
