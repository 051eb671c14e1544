"""Why an agent cannot be reached: connects to its socket and maps each error to its remedy."""

from __future__ import annotations

import os
import pwd
import socket
import stat
from pathlib import Path

from penstock.agent.views.checks import WRONG, Finding

_SUBJECT = "agent"
_PATIENCE = 2.0
_MANY = 5


def probe_address(address: str) -> Finding | None:
    """Connect to *address* and return why that fails; None if it succeeds. Blocks up to 2 s.

    Args:
        address: ``unix:...`` or ``host:port``.

    """
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        return _unix(Path(path.removeprefix("//") if path.startswith("///") else path))
    host, _, port = address.rpartition(":")
    return _tcp(host.strip("[]"), int(port))


def _unix(path: Path) -> Finding | None:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_PATIENCE)
            connection.connect(str(path))
    except FileNotFoundError:
        return _absent(path)
    except PermissionError:
        return _forbidden(path)
    except ConnectionRefusedError:
        return _left_over(path)
    except TimeoutError:
        return _wrong(
            f"{path} accepts no connection within {_PATIENCE:g} s",
            "the agent hangs or is stopped: check its process and its log, then restart its container",
        )
    except OSError as error:
        return _wrong(
            f"{path} is not usable: {error.strerror or error}", "give --address the agent's admin socket"
        )
    return None


def _left_over(path: Path) -> Finding:
    try:
        is_socket = stat.S_ISSOCK(path.stat().st_mode)
    except OSError:  # it was removed meanwhile
        is_socket = True
    if not is_socket:
        return _wrong(
            f"{path} is not a socket", "give --address the value of penstock-agent's --admin-listen"
        )
    return _wrong(
        f"no process listens at {path}: a leftover socket",
        "the agent that created it has ended; start penstock-agent again and check its log "
        "(it removes the old socket)",
    )


def _absent(path: Path) -> Finding:
    parent = path.parent
    if not parent.is_dir():
        return _wrong(
            f"directory {parent} does not exist",
            "run agentctl in the agent's container (kubectl exec POD -c penstock -- agentctl doctor), "
            "or mount the volume with the socket; --address names another socket",
        )
    try:
        others = sorted(str(item) for item in parent.iterdir() if item.is_socket())[:_MANY]
    except OSError:
        others = []
    near = f"; sockets there: {', '.join(others)}" if others else ""
    return _wrong(
        f"socket {path} does not exist{near}",
        "start penstock-agent, or check its log; it creates the socket that --admin-listen names",
    )


def _forbidden(path: Path) -> Finding:
    me = _user(os.geteuid())
    try:
        status = path.stat()
    except OSError:
        return _wrong(
            f"user {me} may not read {path.parent}",
            "run agentctl as the agent's user, in the agent's container",
        )
    owner = _user(status.st_uid)
    return _wrong(
        f"user {me} may not open {path}: it belongs to {owner}, mode {stat.S_IMODE(status.st_mode):04o}",
        f"run agentctl as {owner} (sudo -u {owner} agentctl ..., or in the agent's container); "
        "the admin socket is closed to others on purpose",
    )


def _tcp(host: str, port: int) -> Finding | None:
    where = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), timeout=_PATIENCE):
            return None
    except socket.gaierror as error:
        return _wrong(f"{host} has no address: {error.strerror}", "check the host name in --address")
    except ConnectionRefusedError:
        return _wrong(
            f"no process listens at {where}",
            "start penstock-agent with --admin-listen and its certificates; by default it listens on a unix socket only",
        )
    except TimeoutError:
        return _wrong(
            f"{where} does not answer within {_PATIENCE:g} s",
            "check the network policy and the firewall between here and the agent",
        )
    except OSError as error:
        return _wrong(f"{where} cannot be reached: {error.strerror or error}", "check the network")


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _wrong(what: str, advice: str) -> Finding:
    return Finding(WRONG, _SUBJECT, what, advice)
