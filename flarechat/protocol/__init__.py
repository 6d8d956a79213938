"""The vocabulary that the application and the engine process speak: requests down, events up.

Owns the dataclasses and their JSON form, one object a line. Knows no tensor, no widget and no
file. `flarechat run --json` prints these very objects, so a field name here is public.
"""

from __future__ import annotations

from flarechat.protocol.door import EngineDoor
from flarechat.protocol.events import (
    DRAFT_SOURCES,
    TAIL_SOURCES,
    Delta,
    DepthTotals,
    ErrorInfo,
    Event,
    Failed,
    Finished,
    HistoryTotals,
    Loading,
    ModelInfo,
    Progress,
    Ready,
    RequestEvent,
    Round,
    SourceTotals,
    SpeculationSummary,
    Started,
    Timings,
    TokenLogprob,
    Usage,
)
from flarechat.protocol.requests import (
    ACCEPTANCES,
    MAX_DRAFT_TOKENS,
    MAX_LANES,
    Boot,
    Cancel,
    Command,
    Message,
    Request,
    Sampling,
    Shutdown,
    Speculation,
    Submit,
)
from flarechat.protocol.wire import decode, encode, from_dict, to_dict

__all__ = [
    "ACCEPTANCES",
    "DRAFT_SOURCES",
    "MAX_DRAFT_TOKENS",
    "MAX_LANES",
    "TAIL_SOURCES",
    "Boot",
    "Cancel",
    "Command",
    "Delta",
    "DepthTotals",
    "EngineDoor",
    "ErrorInfo",
    "Event",
    "Failed",
    "Finished",
    "HistoryTotals",
    "Loading",
    "Message",
    "ModelInfo",
    "Progress",
    "Ready",
    "Request",
    "RequestEvent",
    "Round",
    "Sampling",
    "Shutdown",
    "SourceTotals",
    "Speculation",
    "SpeculationSummary",
    "Started",
    "Submit",
    "Timings",
    "TokenLogprob",
    "Usage",
    "decode",
    "encode",
    "from_dict",
    "to_dict",
]
