"""Lists of ``get``, ``drill list`` and ``quarantine list``: their options, and printing in any format, once or watched."""

from __future__ import annotations

from penstock.agent.ctl.listing.model import Listing, ListStyle, nothing_fits
from penstock.agent.ctl.listing.show import show_listing, with_listing
from penstock.agent.ctl.listing.watch import RowPrinter

__all__ = ["ListStyle", "Listing", "RowPrinter", "nothing_fits", "show_listing", "with_listing"]
