"""The files of a host, under a folder: `/` on the node itself, `/host` in a pod of `kubectl debug node`.

Whatever is wrong with a file is remembered, not raised: the doctor says it and goes on.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import re
import stat
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

import msgspec

from gpuslice.config.reader import load_yaml
from gpuslice.errors import InputError

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

LARGEST: Final = 16 * 2**20
"""Bytes of a file that is read; a CDI specification of eight GPUs has some 50,000."""
MAX_LINKS: Final = 40
"""As many symbolic links as Linux follows in one path."""
_TOML_PLACE: Final = re.compile(r"(?P<what>.*) \(at (?P<place>.*)\)", re.DOTALL)
_TYPE_PLACE: Final = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$\.?(?P<key>.*)`)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Broken:
    """A file that is there and says nothing: `why` has the line if the parser knows it."""

    path: str
    why: str


class Root:
    """A host's files, by the paths that they have there."""

    def __init__(self, path: Path) -> None:
        self.broken: dict[str, Broken] = {}
        """Path -> what is wrong with that file."""
        self.denied: set[str] = set()
        """What may not be looked at by this user."""
        self._path = path

    def place(self, path: str) -> Path:
        """Where a path of the host lies here. Links lead where they lead on the host: an absolute one starts
        at the root. Raises OSError if a folder on the way is not there or may not be looked at.
        """
        todo = list(reversed(PurePosixPath(path).parts))
        at: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
            if part == "/":
                at.clear()
            elif part == "..":
                at[-1:] = []
            elif stat.S_ISLNK((here := self._path.joinpath(*at, part)).lstat().st_mode):
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, "too many symbolic links", path)
                todo.extend(reversed(here.readlink().parts))
            else:
                at.append(part)
        return self._path.joinpath(*at)

    def exists(self, path: str) -> bool:
        """True if something is there: a file, a folder, a socket, a device."""
        return self._ask(path, lambda here: True, False)

    def first(self, *paths: str) -> str:
        """The first of these paths that exists, or ""."""
        return next((path for path in paths if self.exists(path)), "")

    def names(self, folder: str) -> list[str]:
        """What is in a folder, sorted; empty if there is none."""
        return self._ask(folder, lambda here: sorted(one.name for one in here.iterdir()), [])

    def files(self, folder: str) -> list[str]:
        """The paths of the files in a folder, sorted."""
        paths = [f"{folder}/{name}" for name in self.names(folder)]
        return [path for path in paths if self._ask(path, Path.is_file, False)]

    def glob(self, pattern: str) -> list[str]:
        """The paths that match a pattern, as Go's filepath.Glob finds them."""
        found = [""]
        for part in PurePosixPath(pattern).parts[1:]:
            wild = any(sign in part for sign in "*?[")
            found = [
                f"{one}/{name}"
                for one in found
                for name in (fnmatch.filter(self.names(one or "/"), part) if wild else [part])
            ]
        return [path for path in found if self.exists(path)]

    def real(self, path: str) -> str:
        """The path without links: libnvidia-ml.so.570.86.15 for libnvidia-ml.so.1; "" if it is not there."""
        return self._ask(path, lambda here: f"/{here.relative_to(self._path).as_posix()}", "")

    def text(self, path: str) -> str | None:
        """A file's text; None if it is not there, or broken."""
        try:
            here = self.place(path)
            facts = here.lstat()
            if not stat.S_ISREG(facts.st_mode):
                why = "it is not a file; remove it"
            elif facts.st_size > LARGEST:
                why = f"it has more than {LARGEST // 2**20} MiB"
            else:
                return here.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            self.denied.add(path)
            return None
        except UnicodeDecodeError as error:
            why = f"byte {error.start + 1} is not UTF-8 text"
        except OSError as error:
            why = error.strerror or str(error)
        self.broken[path] = Broken(path, why)
        return None

    def toml(self, path: str, model: type[S]) -> S | None:
        """A TOML file; None if it is not there, or broken."""
        return self._document(path, model, tomllib.loads)

    def json(self, path: str, model: type[S]) -> S | None:
        """The same of JSON."""
        return self._document(path, model, json.loads)

    def yaml(self, path: str, model: type[S]) -> S | None:
        """The same of YAML."""
        return self._document(path, model, load_yaml)

    def _document(self, path: str, model: type[S], parse: Callable[[str], object]) -> S | None:
        text = self.text(path)
        if text is None or not text.strip():
            return None
        try:
            return msgspec.convert(parse(text), model)
        except msgspec.ValidationError as error:
            why = _explain_type(str(error))
        except json.JSONDecodeError as error:
            why = f"line {error.lineno}: {error.msg}"
        except tomllib.TOMLDecodeError as error:
            match = _TOML_PLACE.fullmatch(str(error))
            why = f"{match['place']}: {match['what']}" if match else str(error)
        except (ValueError, RecursionError, InputError) as error:
            why = str(error)
        self.broken[path] = Broken(path, why)
        return None

    def _ask(self, path: str, question: Callable[[Path], T], otherwise: T) -> T:
        try:
            return question(self.place(path))
        except PermissionError:
            self.denied.add(path)
        except OSError:
            pass
        return otherwise


def _explain_type(message: str) -> str:
    """msgspec's sentence, the key first."""
    match = _TYPE_PLACE.fullmatch(message)
    assert match is not None  # the pattern matches any text
    what = match["what"].replace("`", "")
    what = what[:1].lower() + what[1:]
    return f"{match['key']}: {what}" if match["key"] else what
