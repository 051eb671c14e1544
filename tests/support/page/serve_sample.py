"""Starts a real agent with made-up engines, and prints the address of its page, and a link to it that has a token.

Usage: ``python -m tests.support.page.serve_sample [--write] [--relay]``; ends with the standard input, or with Ctrl-C.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import ExitStack, suppress

from tests.support.agent.agent import running_agent, short_directory
from tests.support.agent.batches import deferral_start, transfer_failure
from tests.support.agent.relay import running_relay
from tests.support.page.addresses import page_of, relay_page_of, token_of
from tests.support.page.sample_fleet import PEERS, sample_fleet, snapshot

_EVERY_SECONDS = 3.0


def main() -> None:
    """Serve until the standard input ends."""
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    flags = ["--page=127.0.0.1:0", *(["--page-write=yes"] if "--write" in sys.argv else [])]
    with ExitStack() as parts, suppress(KeyboardInterrupt):
        agent = parts.enter_context(running_agent(flags))
        engines = parts.enter_context(sample_fleet(agent))
        page, admin = page_of(agent), agent.admin
        if "--relay" in sys.argv:
            directory = parts.enter_context(short_directory())
            relay = parts.enter_context(running_relay(directory, f"--agents=pod-0={agent.admin}", *flags))
            relay.wait_for(**{"pod-0": "up"})
            page, admin = relay_page_of(relay), relay.address
        sys.stdout.write(
            json.dumps({"page": page, "link": f"{page}/#token={token_of(admin)}", "admin": admin}) + "\n"
        )
        sys.stdout.flush()
        number = 0
        while not ended.wait(_EVERY_SECONDS):
            number += 1
            now = time.time_ns()
            engines[0].publish(
                transfer_failure(f"cmpl-live-{number}", peer=PEERS[number % 2], time_ns=now),
                deferral_start(f"cmpl-waits-{number}", peer=PEERS[1], time_ns=now),
            )
            engines[0].snapshot(snapshot(PEERS, 4 + number))


if __name__ == "__main__":
    main()
