"""Who may: the roles of a LAO, asked by every rule (facts/popstellar.md, section 2, "Who")."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from catchment.popstellar.steps import Missing, Step
from catchment.wire.popstellar.fields import ErrorCode, fault

Value = TypeVar("Value", bound=msgspec.Struct)


def data_of(step: Step, kind: type[Value]) -> Value:
    """The data as the type its row of `KINDS` has."""
    assert isinstance(step.data, kind)
    return step.data


def require_organizer(step: Step) -> None:
    """Only the organizer may (-5)."""
    if step.sender != step.lao.organizer:
        raise fault("Only the organizer of the LAO may do this.", ErrorCode.ACCESS_DENIED)


def require_server(step: Step) -> None:
    """Only a server that greeted this LAO may (-5), whoever brings its message; its greeting may be on its way."""
    if step.sender not in step.lao.servers:
        raise Missing("Only a server of the LAO may do this.", ErrorCode.ACCESS_DENIED)


def require_attendee(step: Step) -> None:
    """Only who attended the last roll call may (-5)."""
    if not step.lao.may_act(step.sender, step.source):
        raise fault("Only an attendee of the last roll call may do this.", ErrorCode.ACCESS_DENIED)


def require_elder(step: Step) -> None:
    """Only the organizer or a witness may (-5)."""
    if not step.lao.is_elder(step.sender):
        raise fault("Only the organizer or a witness of the LAO may do this.", ErrorCode.ACCESS_DENIED)
