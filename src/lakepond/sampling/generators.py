"""The state of a replay's own random generator (PCG64, as `np.random.default_rng` makes it) as JSON."""

from __future__ import annotations

import numpy as np

FIELDS = ("state", "inc", "has_uint32", "uinteger")
"""of the state, in NumPy's words; numbers of up to 128 bits, so they are stored as text"""


def state_of(generator: np.random.Generator) -> dict[str, str]:
    """The state of a generator."""
    state = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise TypeError(f"a generator of {state['bit_generator']} has another state than one of PCG64")
    return {name: str(int({**state, **state["state"]}[name])) for name in FIELDS}


def set_state(generator: np.random.Generator, state: dict[str, str]) -> None:
    """Set a generator to a state that `state_of` returned."""
    generator.bit_generator.state = generator_in(state).bit_generator.state


def generator_in(state: dict[str, str]) -> np.random.Generator:
    """A generator with that state; ValueError if it is not one."""
    if not isinstance(state, dict) or sorted(state) != sorted(FIELDS):
        raise ValueError(f"the state of a generator has {list(FIELDS)}, not {state!r}")
    if not all(isinstance(text, str) and text.isdecimal() and len(text) < 40 for text in state.values()):
        raise ValueError(f"the state of a generator has numbers as text, not {state!r}")
    numbers = {name: int(text) for name, text in state.items()}
    limits = {"state": 1 << 128, "inc": 1 << 128, "has_uint32": 2, "uinteger": 1 << 32}
    if any(numbers[name] >= limit for name, limit in limits.items()) or numbers["inc"] % 2 == 0:
        raise ValueError(f"the state of a generator has a number out of range: {state!r}")
    bits = np.random.PCG64()
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": numbers["state"], "inc": numbers["inc"]},
        "has_uint32": numbers["has_uint32"],
        "uinteger": numbers["uinteger"],
    }
    return np.random.Generator(bits)
