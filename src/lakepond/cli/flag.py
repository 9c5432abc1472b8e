"""The type of an option without a value."""

from typing import Annotated

from tyro.conf import arg

Flag = Annotated[bool, arg(help_behavior_hint="")]
"""true if given; `--help` shows no default"""
