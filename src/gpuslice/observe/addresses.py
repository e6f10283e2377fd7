"""Reads the addresses to listen on, as people write them."""

from __future__ import annotations

import ipaddress

from gpuslice.errors import InputError
from gpuslice.units import read_digits


def parse_listen(text: str, field: str = "--listen") -> tuple[str, int]:
    """Read HOST:PORT (or :PORT for all addresses, [::1]:PORT). Raises InputError."""
    host, _, port = text.rpartition(":")
    number = read_digits(port, 65535)
    if number is None:
        raise InputError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:32766", field=field)
    return host.strip("[]") or "0.0.0.0", number  # noqa: S104 - ":PORT" asks for it


def is_loopback(host: str) -> bool:
    """Whether only this machine (or this pod) reaches what listens there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
