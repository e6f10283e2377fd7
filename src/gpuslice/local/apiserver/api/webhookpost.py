"""Calling a webhook over HTTPS, with nothing but the standard library."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from urllib.parse import urlsplit

from gpuslice.errors import Unavailable


async def post(url: str, body: bytes, *, authority: bytes, timeout_s: float) -> bytes:
    """POST JSON to an https URL and return the answer's body. Raises Unavailable with the reason.

    A host under `.svc` is a service; nothing resolves those here.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.to_thread(_post, url, body, authority, timeout_s)
    except TimeoutError:
        raise Unavailable(f'Post "{url}": context deadline exceeded') from None
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f'Post "{url}": {error}') from error


def _post(url: str, body: bytes, authority: bytes, timeout_s: float) -> bytes:
    parts = urlsplit(url)
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    connection = http.client.HTTPSConnection(
        parts.hostname or "", parts.port or 443, timeout=timeout_s, context=context
    )
    try:
        path = parts.path or "/"
        query = f"?{parts.query}" if parts.query else ""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        connection.request("POST", path + query, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status not in (200, 201):
            raise Unavailable(
                f"the server answered {answer.status}: {content[:200].decode(errors='replace')}"
            )
        return content
    finally:
        connection.close()
