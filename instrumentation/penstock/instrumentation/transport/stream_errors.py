"""Sentences for an operator about the end of a stream to the agent. Pure."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 300

# A part of grpc's text, in lower case, and its meaning. The first that matches counts.
_MEANINGS: Final = (
    ("no such file or directory", "there is no such socket; start penstock-agent, and mount the directory of its socket here"),
    ("permission denied", "this user may not open the socket; run the engine with the group of the agent's socket"),
    ("http1.x server", "something else listens there; PENSTOCK_ENDPOINT takes what penstock-agent has as --listen"),
    ("failed parsing http/2", "something else listens there; PENSTOCK_ENDPOINT takes what penstock-agent has as --listen"),
    ("connection refused", "nothing listens there; start penstock-agent, or correct PENSTOCK_ENDPOINT"),
    ("errors resolving", "the host name has no address; correct PENSTOCK_ENDPOINT"),
    ("dns resolution failed", "the host name has no address; correct PENSTOCK_ENDPOINT"),
    ("no route to host", "the network has no way there"),
    ("network is unreachable", "the network has no way there"),
    ("timed out", "it does not answer in time"),
    ("timeout", "it does not answer in time"),
    ("failed to connect to all addresses", "it cannot be reached"),
    ("goaway", "the agent ended the connection"),
    ("socket closed", "the agent ended the connection"),
    ("connection reset", "the connection broke off"),
    ("broken pipe", "the connection broke off"),
    ("recvmsg", "the connection broke off"),
)  # fmt: skip


def explain_end(code: str, details: str) -> str:
    """Return why a stream ended, for an operator, in at most 300 characters.

    Args:
        code: name of its status (``"UNAVAILABLE"``).
        details: text of its status, by grpc or by the agent.

    """
    if code == "UNIMPLEMENTED":
        return (
            "what listens there does not know this call; PENSTOCK_ENDPOINT takes what penstock-agent has as --listen, "
            "or the agent is too old"
        )
    text = " ".join(details.split())
    if code == "UNAVAILABLE":
        lower = text.lower()
        text = next((meaning for sign, meaning in _MEANINGS if sign in lower), text)
    return text[:_LONGEST] or f"the stream ended ({code})"
