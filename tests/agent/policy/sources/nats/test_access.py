"""Who may read a bucket: credentials, permissions and certificates, with a real nats-server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trustme
from nats.js.api import KeyValueConfig
from penstock.agent.policy.sources.nats.connection import NatsAccess

from tests.support.nats.cluster import users_of_guide
from tests.support.nats.following import BUCKET, following, is_away, until, value
from tests.support.nats.server import NatsServer

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.agent.policy.store.database import PolicyDatabase


async def test_wrong_credentials(tmp_path: Path, database: PolicyDatabase) -> None:
    """They are said without the password; right ones work."""
    config = 'authorization: {users: [{user: agent, password: "right"}]}'
    server = NatsServer(tmp_path / "nats", config=config).start()
    try:
        async with following(database, server.url, user="agent", password="wrong") as followed:
            await until(lambda: "refuses the credentials" in followed.state.error, followed.state.error)
            assert "wrong" not in followed.state.error
        async with await server.client(user="agent", password="right") as client:
            bucket = await client.jetstream().create_key_value(KeyValueConfig(bucket=BUCKET))
            await bucket.put("a", value("a"))
        async with following(database, server.url, user="agent", password="right") as followed:
            await followed.shows({"a": 1})
    finally:
        server.kill()


async def test_the_permissions_of_the_guide_are_enough(tmp_path: Path, database: PolicyDatabase) -> None:
    """They allow to follow the bucket, and no write to it; no replica is asked where the bucket allows that."""
    server = NatsServer(tmp_path / "nats", config=users_of_guide()).start()
    operator = await server.client(user="ops", password="o")
    try:
        bucket = await operator.jetstream().create_key_value(KeyValueConfig(bucket=BUCKET, direct=True))
        await bucket.put("a", value("a"))
        async with following(database, server.url, user="agent", password="a") as followed:
            await followed.shows({"a": 1})
            await bucket.put("a", value("a", 2))
            await followed.shows({"a": 2})
            async with await server.client(user="agent", password="a", error_cb=_ignore) as agent:
                await agent.publish(f"$KV.{BUCKET}.a", b"")
                await agent.flush()
            assert (await bucket.get("a")).value == value("a", 2)
    finally:
        await operator.close()
        server.kill()


async def _ignore(_: Exception) -> None: ...


async def test_tls_with_a_certificate_of_the_client(tmp_path: Path, database: PolicyDatabase) -> None:
    """Both sides are verified; a client without a certificate, or of another authority, is away."""
    authority, other = trustme.CA(), trustme.CA()
    served, mine = authority.issue_cert("127.0.0.1"), authority.issue_cert("agent")
    files = {
        name: tmp_path / f"{name}.pem" for name in ("ca", "other", "server", "server-key", "cert", "key")
    }
    authority.cert_pem.write_to_path(files["ca"])
    other.cert_pem.write_to_path(files["other"])
    served.cert_chain_pems[0].write_to_path(files["server"])
    served.private_key_pem.write_to_path(files["server-key"])
    mine.cert_chain_pems[0].write_to_path(files["cert"])
    mine.private_key_pem.write_to_path(files["key"])
    config = (
        f'tls: {{cert_file: "{files["server"]}", key_file: "{files["server-key"]}", '
        f'ca_file: "{files["ca"]}", verify: true}}'
    )
    server = NatsServer(tmp_path / "nats", config=config).start()
    url = server.url.replace("nats://", "tls://")
    pair: dict[str, Any] = {"cert": files["cert"], "key": files["key"]}
    try:
        access = NatsAccess((url,), ca=files["ca"], **pair)
        async with await server.client(tls=access.options()["tls"]) as client:
            bucket = await client.jetstream().create_key_value(KeyValueConfig(bucket=BUCKET))
            await bucket.put("a", value("a"))
        for wrong in ({"ca": files["ca"]}, {"ca": files["other"], **pair}, {"ca": tmp_path / "none"}):
            async with following(database, url, **wrong) as followed:
                await until(is_away(followed), "away")
                assert followed.items() == {}
        async with following(database, url, ca=files["ca"], **pair) as followed:
            await followed.shows({"a": 1})
    finally:
        server.kill()
