"""A local, read-only web page to look into a lake; `lakepond view LAKE` serves it.

    browser ──GET──▶ server ──▶ api ──▶ opened, episodes, pictures, windows, columns, sharing, checks
                     who may      one function
                     ask          an address

Nothing is loaded whole: a commit is read as JSON, the small columns a segment at a time, observations only
for the steps that are looked at. The lake is never written, and its writer never waits.
"""

from lakepond.report.view.server import ViewServer

__all__ = ["ViewServer"]
