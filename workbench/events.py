"""The event graph: monotonic counters with thresholds that tiles signal and wait for.

Every tile signals one event when it ends. Where all readers of an operator need all of it, its tiles share one event
whose threshold is their number; where a reader needs a part, each tile has an event of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from workbench.errors import GraphError
from workbench.tiles import TileGraph

if TYPE_CHECKING:
    import networkx as nx

Indices = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class EventGraph:
    """``signal`` (T,) is each tile's event, ``threshold`` (E,) the signals that fire it; tile t waits for
    ``wait_event[wait_ptr[t]:wait_ptr[t + 1]]``.
    """  # fmt: skip

    signal: Indices
    threshold: Indices
    wait_ptr: Indices
    wait_event: Indices

    def waits(self, tile: int) -> list[int]:
        """Events that a tile waits for."""
        return [int(e) for e in self.wait_event[self.wait_ptr[tile] : self.wait_ptr[tile + 1]]]


def check_events(tiles: TileGraph, events: EventGraph) -> None:
    """Raise GraphError unless every event can fire and no tile waits for itself or for a later one."""
    if len(events.signal) != len(tiles) or len(events.wait_ptr) != len(tiles) + 1:
        raise GraphError(f"{len(tiles)} tiles, {len(events.signal)} signals, {len(events.wait_ptr) - 1} wait lists")
    ptr = events.wait_ptr.astype(np.int64)
    waits = ptr[1:] - ptr[:-1]
    if ptr[0] != 0 or ptr[-1] != len(events.wait_event) or (waits < 0).any():
        raise GraphError(f"wait_ptr must rise from 0 to the number of waits, {len(events.wait_event)}")
    signals = np.bincount(events.signal, minlength=len(events.threshold))
    if len(signals) > len(events.threshold) or (len(events.wait_event) and events.wait_event.max() >= len(signals)):
        raise GraphError(f"an event index is beyond the {len(events.threshold)} events")
    for event in np.flatnonzero(signals != events.threshold):
        raise GraphError(
            f"event {event} fires after {events.threshold[event]} signals but {signals[event]} tiles signal it: "
            "its waiters would wait for ever, or start early"
        )
    last = np.zeros(len(signals), np.int64)
    np.maximum.at(last, events.signal, np.arange(len(tiles)))
    waiter = np.repeat(np.arange(len(tiles)), waits)
    late = np.flatnonzero(last[events.wait_event] >= waiter)
    if len(late):
        tile, waited = int(waiter[late[0]]), int(events.wait_event[late[0]])
        raise GraphError(
            f"tile {tile} waits for event {waited}, which tile {last[waited]} signals no earlier: deadlock"
        )


def to_networkx(tiles: TileGraph, events: EventGraph) -> nx.DiGraph[tuple[str, int]]:
    """Tiles and events as one graph: ``("tile", t) → ("event", e)`` signals, ``("event", e) → ("tile", t)`` waits."""
    import networkx as nx

    graph: nx.DiGraph[tuple[str, int]] = nx.DiGraph()
    for tile, box in enumerate(tiles.boxes):
        operator = tiles.calls[int(tiles.call[tile])].operator.name
        graph.add_node(("tile", tile), operator=operator, box=box, lane=int(tiles.lane[tile]))
    for event, threshold in enumerate(events.threshold):
        graph.add_node(("event", event), threshold=int(threshold))
    for tile, event in enumerate(events.signal):
        graph.add_edge(("tile", tile), ("event", int(event)))
        graph.add_edges_from((("event", e), ("tile", tile)) for e in events.waits(tile))
    return graph
