"""The syntax of names and labels (apimachinery `util/validation`): what is wrong, or ""."""

from __future__ import annotations

import re
from functools import lru_cache

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")

_LABEL_WHY = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start "
    "and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_WHY = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_NAME_WHY = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_WHY = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
    "for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def dns_label(text: str) -> str:
    """An RFC 1123 label: names of containers, namespaces, services."""
    if len(text) > 63:
        return "must be no more than 63 characters"
    return "" if _LABEL.fullmatch(text) else _LABEL_WHY


def dns_subdomain(text: str) -> str:
    """An RFC 1123 subdomain: names of most objects."""
    if len(text) > 253:
        return "must be no more than 253 characters"
    return "" if _SUBDOMAIN.fullmatch(text) else _SUBDOMAIN_WHY


def path_segment(text: str) -> str:
    """A name that only has to fit into a URL: RBAC."""
    if text in (".", ".."):
        return f"may not be '{text}'"
    bad = next((char for char in "/%" if char in text), "")
    return f"may not contain '{bad}'" if bad else ""


@lru_cache(4096)
def qualified_name(text: str) -> str:
    """A label key: `prefix/name`."""
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        return (
            "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start "
            "and end with an alphanumeric character with an optional DNS subdomain prefix and '/' (e.g. "
            "'example.com/MyName')"
        )
    if slash and not prefix:
        return "prefix part must be non-empty"
    if prefix and (problem := dns_subdomain(prefix)):
        return f"prefix part {problem}"
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return "name part must be no more than 63 characters"
    return "" if _NAME.fullmatch(name) else _NAME_WHY


@lru_cache(4096)
def label_value(text: str) -> str:
    """A label's value."""
    if len(text) > 63:
        return "must be no more than 63 characters"
    return "" if not text or _NAME.fullmatch(text) else _VALUE_WHY
