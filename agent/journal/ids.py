"""Identifiers that sort by time and can be typed at night: ``i-1kd8q2m7v3f9``.

In: a prefix and a clock. Out: prefix, ``-``, 9 characters of milliseconds, 3 random ones. The alphabet is
Crockford's base 32 in small letters: no i, l, o, u.
"""

from __future__ import annotations

import secrets

from agent.model import Clock

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_DIGITS = 9  # 45 bits of milliseconds: until the year 3084


def new_id(prefix: str, clock: Clock) -> str:
    """A new identifier; two of one millisecond differ in their random end (all but 1 in 32,768)."""
    milliseconds = int(clock.now().timestamp() * 1000)
    digits = [_ALPHABET[milliseconds >> 5 * place & 31] for place in reversed(range(_TIME_DIGITS))]
    return f"{prefix}-{''.join(digits)}{''.join(secrets.choice(_ALPHABET) for _ in range(3))}"
