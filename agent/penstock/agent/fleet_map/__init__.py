"""The map of a fleet: who sends state to whom, how much, and in which state that is; as a model, a table and graphs. Pure."""

from __future__ import annotations

from penstock.agent.fleet_map.build import whole_map
from penstock.agent.fleet_map.document import map_document
from penstock.agent.fleet_map.drawing import Box, BoxColumn, columns, look_of, width_of
from penstock.agent.fleet_map.graphs import dot_lines, mermaid_lines
from penstock.agent.fleet_map.grouping import MOST_EDGES, MOST_NODES, grouped
from penstock.agent.fleet_map.model import (
    ROLES,
    WINDOW_SECONDS,
    FleetMap,
    MapEdge,
    MapGroup,
    MapNode,
)
from penstock.agent.fleet_map.table import edge_rows, edge_words, group_rows, left_out_words

__all__ = [
    "MOST_EDGES",
    "MOST_NODES",
    "ROLES",
    "WINDOW_SECONDS",
    "Box",
    "BoxColumn",
    "FleetMap",
    "MapEdge",
    "MapGroup",
    "MapNode",
    "columns",
    "dot_lines",
    "edge_rows",
    "edge_words",
    "group_rows",
    "grouped",
    "left_out_words",
    "look_of",
    "map_document",
    "mermaid_lines",
    "whole_map",
    "width_of",
]
