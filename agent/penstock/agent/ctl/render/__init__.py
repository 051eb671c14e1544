"""From messages to tables, lines and trees. Pure."""

from __future__ import annotations

from penstock.agent.ctl.render import order_rows, rows, text
from penstock.agent.ctl.render.console import say
from penstock.agent.ctl.render.events import event_peer, event_words
from penstock.agent.ctl.render.field_diff import Difference, differences, leaves, plain_rows
from penstock.agent.ctl.render.json_values import MOST, FieldKind, kind_of, may_be_absent, name_of, plain
from penstock.agent.ctl.render.order_rows import drill_words, selector_words
from penstock.agent.ctl.render.rows import Table
from penstock.agent.ctl.render.span_tree import tree_lines

__all__ = [
    "MOST",
    "Difference",
    "FieldKind",
    "Table",
    "differences",
    "drill_words",
    "event_peer",
    "event_words",
    "kind_of",
    "leaves",
    "may_be_absent",
    "name_of",
    "order_rows",
    "plain",
    "plain_rows",
    "rows",
    "say",
    "selector_words",
    "text",
    "tree_lines",
]
