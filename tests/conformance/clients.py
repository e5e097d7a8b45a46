"""Published Streamr clients as processes that are told what to do.

`conformance/streamr/driver.js` runs one client; a `Driver` here speaks with it. What a client reports is kept, and a
test waits for what it expects.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import json
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "conformance" / "streamr"
PATIENCE = 30.0
"""Seconds until something expected counts as missing."""

Event = dict[str, Any]


class InstallFailed(Exception):
    """The packages could not be installed; the text is what npm said last."""


def missing_tools() -> list[str]:
    """Which of node and npm this machine lacks."""
    return [tool for tool in ("node", "npm") if shutil.which(tool) is None]


def install(folder: Path = FOLDER) -> None:
    """Install the locked packages, once for each lock. No script of a package is run."""
    lock = hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()
    stamp = folder / "node_modules" / ".installed"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == lock:
        return
    command = ["npm", "ci", "--prefer-offline", "--ignore-scripts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False)
    if done.returncode:
        raise InstallFailed(done.stderr[-2000:])
    stamp.write_text(lock, encoding="utf-8")


class DriverError(AssertionError):
    """The client refused what it was told to do, or died."""


class Driver:
    """One client version in a process of its own. Its clients share the process; their names tell them apart."""

    def __init__(self, version: str, folder: Path = FOLDER) -> None:
        self.version = version
        self._log: collections.deque[str] = collections.deque(maxlen=200)
        self._events: list[Event] = []
        self._answers: dict[int, Event] = {}
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._process = subprocess.Popen(
            ["node", "driver.js", version],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._threads = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_log)]
        for thread in self._threads:
            thread.start()
        self.wait(lambda event: event["event"] == "ready")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            with self._changed:
                if "id" in said:
                    self._answers[said["id"]] = said
                else:
                    self._events.append(said)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        self._log.extend(self._process.stderr)

    def _until(self, found: Callable[[], Any], what: str, patience: float) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: found() is not None or self._process.poll() is not None, patience)
            result = found()
            if result is None:
                last = "".join(list(self._log)[-15:])
                raise DriverError(f"{self.version}: {what} did not come; last events {self._events[-5:]}; log: {last}")
            return result

    def wait(self, wanted: Callable[[Event], bool], *, patience: float = PATIENCE, since: int = 0) -> Event:
        """The first event since a mark for which `wanted` is true."""
        found: Event = self._until(
            lambda: next((event for event in self._events[since:] if wanted(event)), None), "an event", patience
        )
        return found

    def events(self) -> list[Event]:
        """Everything reported so far."""
        with self._changed:
            return list(self._events)

    def tell(self, action: str, **details: object) -> int:
        """Give an order without waiting for it."""
        number = next(self._numbers)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "do": action, **details}) + "\n")
        self._process.stdin.flush()
        return number

    def answer(self, number: int, *, patience: float = PATIENCE) -> Any:
        """What came of an order.

        Raises:
            DriverError: the client threw, or did not answer in time.
        """
        said = self._until(lambda: self._answers.get(number), f"the answer to order {number}", patience)
        if "error" in said:
            raise DriverError(f"{self.version}: {said['error']}")
        return said["result"]

    def refusal(self, number: int, client: str) -> str:
        """What a client says when an order of its is refused: as the order's answer, or as an error of its own."""

        def said() -> str | None:
            answer = self._answers.get(number, {})
            events = (event["error"] for event in self._events if event.get("client") == client and "error" in event)
            return answer.get("error") or next(events, None)

        refused: str = self._until(said, f"the refusal of order {number}", PATIENCE)
        return refused

    def ask(self, action: str, **details: object) -> Any:
        """Give an order and wait for what comes of it."""
        return self.answer(self.tell(action, **details))

    def close(self) -> None:
        """End the process; the driver leaves when its input ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


class Client:
    """One client of a driver, under a name."""

    def __init__(self, driver: Driver, name: str, **options: object) -> None:
        self.driver = driver
        self.name = name
        self.version = driver.version
        self._names = itertools.count(1)
        driver.ask("open", client=name, **options)

    def ask(self, action: str, **details: object) -> Any:
        return self.driver.ask(action, client=self.name, **details)

    def tell(self, action: str, **details: object) -> int:
        return self.driver.tell(action, client=self.name, **details)

    def subscribe(self, stream: str, **details: object) -> Inbox:
        """Subscribe and wait until the node has said so."""
        inbox = Inbox(self, f"{self.name}/{next(self._names)}")
        self.ask("subscribe", sub=inbox.name, stream=stream, **details)
        return inbox

    def publish(self, stream: str, *contents: object, **details: object) -> None:
        """Publish one message after the other."""
        for content in contents:
            self.ask("publish", stream=stream, content=content, **details)

    def resend(self, stream: str, count: int, **resend: object) -> list[object]:
        """The contents of a resend of so many messages, once the client says it is done."""
        return [message["content"] for message in self.ask("resend", stream=stream, count=count, resend=resend)]

    def mark(self) -> int:
        """How many events there are, to wait for later ones."""
        return len(self.driver.events())

    def wait(self, event: str, *, since: int = 0, **details: object) -> Event:
        """The first such event of this client."""
        wanted = {"event": event, "client": self.name, **details}
        return self.driver.wait(lambda said: wanted.items() <= said.items(), since=since)

    def errors(self) -> list[str]:
        """What the client complained of."""
        return [said["error"] for said in self.driver.events() if said.get("client") == self.name and "error" in said]

    def refusal(self, action: str, **details: object) -> str:
        """Try what will be refused; what the client says of it."""
        return self.driver.refusal(self.tell(action, **details), self.name)

    def close(self) -> None:
        self.ask("close")


class Inbox:
    """What one subscription of a client was given."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    def messages(self) -> list[Event]:
        return [
            event
            for event in self.client.driver.events()
            if event["event"] == "message" and event.get("sub") == self.name
        ]

    def until(self, content: object) -> list[Event]:
        """All messages up to the one with this content, waiting for it. Whatever came before it is in the list."""
        self.client.wait("message", sub=self.name, content=content)
        return self.messages()

    def contents_until(self, content: object) -> list[object]:
        return [message["content"] for message in self.until(content)]

    def resent(self) -> None:
        """Wait until the client says that the resend before the subscription is done."""
        self.client.wait("resent", sub=self.name)

    def unsubscribe(self) -> None:
        self.client.ask("unsubscribe", sub=self.name)
