"""Who may read a lake through `view`: the token, the cookie that replaces it, and the names of this server.

    GET /?token=T   the address that is printed; a valid token sets a cookie, and the page hides the token
    GET /api/...    the cookie, `?token=T`, or `Authorization: Bearer T`

Host        IP addresses, localhost and the names given with `--allow-host`; any other name is refused, so
            that a web site cannot reach in through a DNS name that it points at this machine (DNS rebinding)
Sec-Fetch   a request made by another site's page is refused, except for opening the page in a tab
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Iterable, Mapping
from email.message import Message
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

TOKEN = "token"
"""the query field"""


class Access:
    """The token of one server and the names it answers to."""

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        self.token = secrets.token_urlsafe(32)
        self._hosts = {"localhost", *(host.lower() for host in hosts)}

    def cookie(self, port: int) -> str:
        """The value of `Set-Cookie`; browsers share cookies between ports, so its name has the port."""
        return f"{_name(port)}={self.token}; Path=/; HttpOnly; SameSite=Lax"

    def knows(self, headers: Message, query: Mapping[str, str], port: int) -> bool:
        """Whether a request carries the token in its query, its cookie or its `Authorization`."""
        cookies = SimpleCookie()
        try:
            cookies.load(headers.get("Cookie", ""))
        except CookieError:
            cookies.clear()
        kind, _, given = headers.get("Authorization", "").partition(" ")
        found = [query.get(TOKEN, ""), given if kind.lower() == "bearer" else ""]
        found += [cookies[_name(port)].value] if _name(port) in cookies else []
        return any([hmac.compare_digest(one.encode(), self.token.encode()) for one in found])

    def accepts(self, headers: Message, path: str) -> bool:
        """Whether `Host` is a name of this server, and no other site's page made the request."""
        opens = path == "/" and headers.get("Sec-Fetch-Dest") == "document"
        site = headers.get("Sec-Fetch-Site", "none")
        return self._is_mine(headers.get("Host", "")) and (opens or site in ("none", "same-origin"))

    def _is_mine(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in self._hosts or bool(ipaddress.ip_address(name))
        except ValueError:
            return False


def _name(port: int) -> str:
    return f"lakepond-{port}"
