"""The table of the conformance run in `docs/protocols/streamr.md`, made from what came of the cases."""

from __future__ import annotations

from pathlib import Path

from .cases import CASES, SPEAKS, VERSIONS

PAGE = Path(__file__).parents[2] / "docs" / "protocols" / "streamr.md"
BEGIN, END = "<!-- conformance -->\n", "<!-- /conformance -->\n"
OURS = "ours"


class Results:
    """What came of each case with each client, and of each publisher with each receiver."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[str, str], str] = {}
        self._deliveries: dict[tuple[str, str], str] = {}

    def note(self, title: str, version: str, when: str, outcome: str) -> None:
        """Note one phase of a test. A case is ok when its call passed and nothing about it failed."""
        key = title, version
        if outcome == "passed" and when == "call":
            self._outcomes.setdefault(key, "ok")
        elif outcome != "passed":
            self._outcomes[key] = outcome

    def outcomes(self, title: str) -> dict[str, str]:
        """What came of a case, by client."""
        return {version: outcome for (noted, version), outcome in self._outcomes.items() if noted == title}

    def delivered(self, publisher: str, receiver: str, how: str) -> None:
        """Note that a receiver had what a publisher sent."""
        self._deliveries[publisher, receiver] = how

    def write(self) -> None:
        """Put the tables between the page's markers.

        Raises:
            AssertionError: a case was not run; a table of half a run would be none.
        """
        missing = [
            (title, version)
            for title, lacks in CASES.items()
            for version in VERSIONS
            if version not in lacks and (title, version) not in self._outcomes
        ]
        assert not missing, f"not run: {missing}"
        text = PAGE.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}{self._cases()}\n{self._crossed()}{END}{after}", encoding="utf-8")

    def _cases(self) -> str:
        notes: list[str] = []
        lines = [
            "| case | " + " | ".join(VERSIONS) + " |",
            "|---|" + "---|" * len(VERSIONS),
            "| control/message version | " + " | ".join(SPEAKS[version] for version in VERSIONS) + " |",
        ]
        for title, lacks in CASES.items():
            cells = [
                _note(lacks[version], notes) if version in lacks else self._outcomes[title, version]
                for version in VERSIONS
            ]
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
        lines.append("")
        lines += [f"{number}. {reason}" for number, reason in enumerate(notes, 1)]
        return "\n".join(lines) + "\n"

    def _crossed(self) -> str:
        receivers = [*VERSIONS, OURS]
        publishers = [name for name in receivers if any(key[0] == name for key in self._deliveries)]
        lines = [
            "Who receives what whom publishes: `verified` where the receiver checked the signature itself, `delivered`",
            "where one of the two cannot sign or cannot check.",
            "",
            "| published by | " + " | ".join(receivers) + " |",
            "|---|" + "---|" * len(receivers),
        ]
        for publisher in publishers:
            cells = [self._deliveries.get((publisher, receiver), "fails") for receiver in receivers]
            lines.append(f"| {publisher} | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"


def _note(reason: str, notes: list[str]) -> str:
    if reason not in notes:
        notes.append(reason)
    return f"n/a ({notes.index(reason) + 1})"
