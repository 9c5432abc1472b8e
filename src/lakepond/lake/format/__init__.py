"""The files of a lake: names, bytes and checksums."""
