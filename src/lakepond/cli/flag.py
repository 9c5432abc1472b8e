"""Options that need not be given."""

from typing import Annotated, Any

from tyro.conf import arg

Flag = Annotated[bool, arg(help_behavior_hint="")]
"""true if given; `--help` shows no default"""
Json = Annotated[bool, arg(help="print JSON instead of text", help_behavior_hint="")]
"""option --json"""


def optional(metavar: str, default: str) -> Any:
    """The form of an option that is None unless given; `default` says in `--help` what applies then."""
    return arg(metavar=metavar, help_behavior_hint=f"(default: {default})")
