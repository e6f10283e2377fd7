"""Optional durability: every object in one SQLite table, written in batches behind the requests.

A crash may lose the last fraction of a second. So that no resourceVersion is ever given twice, a ceiling
above the newest version is reserved on disk before it is used, and a restart after a crash begins there.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from gpuslice.errors import InputError
from gpuslice.local.apiserver.api.store import Store

RESERVE = 100_000
"""Versions reserved at a time."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    api_group TEXT, plural TEXT, namespace TEXT, name TEXT, object BLOB NOT NULL,
    PRIMARY KEY (api_group, plural, namespace, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS versions (what TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""


class Database:
    """The file behind a store."""

    def __init__(self, path: Path, store: Store) -> None:
        """Open or create the file. Raises InputError if it is no database of ours."""
        self._store = store
        problem = f"{path} cannot be used as the cluster's database"
        try:
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise InputError(f"{problem}: {error}") from error
        try:
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=NORMAL")
            self._file.executescript(_SCHEMA)
        except sqlite3.Error as error:
            self._file.close()
            raise InputError(f"{problem}: {error}") from error
        self._reserved = 0

    def load(self) -> bool:
        """Restore every object and the version; False if the database is new."""
        versions = dict(self._file.execute("SELECT what, value FROM versions"))
        rows = self._file.execute("SELECT api_group, plural, object FROM objects").fetchall()
        self._store.version = max(self._store.version, versions.get("clean") or versions.get("reserved", 0))
        self._store.floor = self._store.version if versions else 0
        for group, plural, raw in rows:
            self._store.collection((group, plural)).restore(msgspec.json.decode(raw))
        self._store.dirty = {}
        self._file.execute("DELETE FROM versions WHERE what = 'clean'")
        self._reserve()
        return bool(rows)

    def flush(self) -> None:
        """Write what has changed since the last time, in one transaction."""
        dirty = self._store.dirty
        if not dirty:
            return
        self._store.dirty = {}
        written, dropped = [], []
        for (storage, key), entry in dirty.items():
            if entry is None:
                dropped.append((*storage, *key))
            else:
                written.append((*storage, *key, entry.raw))
        self._file.execute("BEGIN")
        self._file.executemany("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", written)
        self._file.executemany(
            "DELETE FROM objects WHERE api_group = ? AND plural = ? AND namespace = ? AND name = ?", dropped
        )
        self._file.execute("COMMIT")
        if self._store.version > self._reserved - RESERVE // 2:
            self._reserve()

    def close(self) -> None:
        """Write the rest and note that nothing is missing."""
        self.flush()
        self._file.execute("INSERT OR REPLACE INTO versions VALUES ('clean', ?)", (self._store.version,))
        self._file.close()

    def _reserve(self) -> None:
        self._reserved = self._store.version + RESERVE
        self._file.execute("INSERT OR REPLACE INTO versions VALUES ('reserved', ?)", (self._reserved,))
