"""Formats of strings that are enforced, and patterns for those that are taken too widely.

None means that the grammar library's own form is exact. Dates are those of the calendar, from the
year 1; a time has no leap second.
"""

from __future__ import annotations

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP = f"(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
_DAY = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|"
    f"[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_HOUR = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_HOUR}:[0-5][0-9](?:[.][0-9]{{1,9}})?(?:Z|[+-]{_HOUR})"

MAX_HOSTNAME = 253

FORMATS: dict[str, str | None] = {
    "date": f"^{_DAY}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DAY}T{_TIME}$",
    "hostname": None,
    "duration": None,
    "email": None,
    "ipv4": None,
    "ipv6": None,
    "uuid": None,
    "uri": None,
}
