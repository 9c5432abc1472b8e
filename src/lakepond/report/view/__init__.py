"""A local, read-only web page that shows a lake; `lakepond view LAKE` serves it.

    browser ──GET──▶ server ──▶ api ──▶ opened, files, fields, episodes, episode, trades, pictures, ...
                     access,     one method
                     query       per address

A commit is read as JSON, small columns one segment at a time, observations only for the steps that are shown.
The lake is never written, and its writer never waits.
"""

from lakepond.report.view.server import ViewServer

__all__ = ["ViewServer"]
