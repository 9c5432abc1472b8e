"""Reading a lake at one commit."""
