"""Recognises lists of node names that were sent before.

kube-scheduler sends the same thousands of names with nearly every pod. A list is decoded and looked up once;
after that its bytes are the key. The JSON pieces of the answer are prepared as well, so that an answer is
made by choosing and joining pieces.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import compress

import msgspec
import numpy as np
import numpy.typing as npt

from gpuslice.placement.columns import Rows
from gpuslice.placement.fleet import CODES, Codes, Fleet
from gpuslice.placement.verdict import refusal
from gpuslice.scheduler.extender.wire import decode_names

REMEMBERED = 8
"""Lists kept: one per node selector in use, mostly; a few hundred kB each at 5,000 nodes."""


class NodeList:
    """One list of names with their rows and the JSON for every answer about them."""

    def __init__(self, names: list[str], rows: Rows) -> None:
        self.names = names
        self.rows = rows
        self._quoted = [msgspec.json.encode(name) for name in names]
        self._refusals: dict[int, list[bytes]] = {}

    def fitting(self, codes: Codes) -> bytes:
        """The JSON array of the names whose code accepts, in the order given."""
        return b"[" + b",".join(compress(self._quoted, (codes == 0).tolist())) + b"]"

    def failed(self, codes: Codes) -> bytes:
        """The JSON object name -> sentence of the names whose code refuses."""
        pieces: list[bytes] = []
        for number in np.unique(codes[codes != 0]).tolist():
            chosen: npt.NDArray[np.bool_] = codes == number
            pieces.extend(compress(self._refusal(number), chosen.tolist()))
        return b"{" + b",".join(pieces) + b"}"

    def _refusal(self, number: int) -> list[bytes]:
        ready = self._refusals.get(number)
        if ready is None:
            ready = [
                quoted + b":" + msgspec.json.encode(refusal(CODES[number], name).message)
                for name, quoted in zip(self.names, self._quoted, strict=True)
            ]
            self._refusals[number] = ready
        return ready


class NodeLists:
    """The lists seen lately, by their bytes. Forgets all when nodes come or go, since rows then change."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._version = fleet.version
        self._lists: OrderedDict[bytes, NodeList] = OrderedDict()

    def get(self, raw: bytes) -> NodeList:
        """The list that these bytes encode. Raises InputError if they encode none."""
        if self._version != self._fleet.version:
            self._lists.clear()
            self._version = self._fleet.version
        known = self._lists.get(raw)
        if known is None:
            known = self.of(decode_names(raw))
            self._lists[raw] = known
            if len(self._lists) > REMEMBERED:
                self._lists.popitem(last=False)
        else:
            self._lists.move_to_end(raw)
        return known

    def of(self, names: list[str]) -> NodeList:
        """A list of names that is not worth remembering."""
        return NodeList(names, self._fleet.rows(names))
