"""JSON that a model wrote, read strictly: what is not JSON is a sentence, whatever it is.

Owns what is refused beyond the grammar of JSON: whole numbers of thousands of digits, members named
twice, and nesting that others could not write down again.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

from flarechat.protocol.tools import MAX_CALL_DEPTH, is_shallow
from flarechat.textsafe import well_formed


class NoJson(ValueError):
    """What was written is no JSON that can be used: a sentence that says why."""


def read_json(text: str) -> Any:
    """The value that a text is as JSON. Raises NoJson, and nothing else."""
    try:
        value = json.loads(
            text, object_pairs_hook=_members, parse_float=_finite, parse_constant=_no_constant
        )
    except json.JSONDecodeError as error:
        raise NoJson(f"This is no JSON: {error.msg} at character {error.pos + 1}.") from error
    except NoJson:
        raise
    except ValueError as error:
        raise NoJson("A number in the JSON has too many digits.") from error
    except RecursionError as error:
        raise _too_deep() from error
    if not is_shallow(value, MAX_CALL_DEPTH):
        raise _too_deep()
    if "\\u" not in text:
        return value
    # Half of a surrogate pair is JSON, but no text.
    return json.loads(well_formed(json.dumps(value, ensure_ascii=False)))


def written_json(value: Any) -> str:
    """A value as chat templates write it: a blank behind commas and colons, letters as they are."""
    return json.dumps(value, ensure_ascii=False)


def _members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise NoJson(f"A JSON object has the member {twice[:40]!r} twice.")
    return members


def _finite(digits: str) -> float:
    """The nearest float; beyond all of them, the last, as infinity could not be written again."""
    return max(-sys.float_info.max, min(float(digits), sys.float_info.max))


def _no_constant(name: str) -> NoReturn:
    raise NoJson(f"{name} is no number in JSON.")


def _too_deep() -> NoJson:
    return NoJson(f"The JSON is nested deeper than {MAX_CALL_DEPTH} levels.")
