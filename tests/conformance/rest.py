"""The owner of the streams that a case needs: logs in and arranges them over REST."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import quote

from catchment.crypto.ethereum import Signer

from ..net.processes import NodeProcess

OWNER = Signer(b"\x04" * 32)


class Owner:
    """A logged-in user of one node."""

    def __init__(self, node: NodeProcess, signer: Signer = OWNER) -> None:
        self._host = node.url.partition("://")[2].strip("/")
        self._token = ""
        challenge = self.ask("POST", f"/login/challenge/{signer.address}")
        answer = {
            "challenge": challenge,
            "signature": signer.sign(challenge["challenge"].encode()),
            "address": signer.address,
        }
        self._token = self.ask("POST", "/login/response", answer)["token"]

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """What the node answers; anything but success is an error of the test."""
        connection = http.client.HTTPConnection(self._host, timeout=30)
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection.request(method, "/api/v1" + path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        assert 200 <= response.status < 300, (method, path, response.status, text)
        return json.loads(text) if text else None

    def create(self, stream: str, **properties: object) -> None:
        self.ask("POST", "/streams", {"id": stream, "name": stream, **properties})

    def grant(self, stream: str, user: str, *operations: str) -> None:
        for operation in operations:
            self.ask("POST", f"/streams/{quote(stream, safe='')}/permissions", {"operation": operation, "user": user})

    def stream_key(self, stream: str, permission: str) -> str:
        """An anonymous key to one stream, as the oldest clients give with every request."""
        made = self.ask("POST", f"/streams/{quote(stream, safe='')}/keys", {"name": stream, "permission": permission})
        key: str = made["id"]
        return key

    def api_key(self) -> str:
        """A key that stands for the owner."""
        key: str = self.ask("POST", "/users/me/keys", {"name": "conformance"})["id"]
        return key
