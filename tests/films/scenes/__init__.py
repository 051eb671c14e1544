"""The scenes, by the name of their film."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.films.scenes import others, pods, routers

if TYPE_CHECKING:
    from tests.films.scenes.base import Scene

SCENES: Final[dict[str, type[Scene]]] = {
    "calm": routers.Calm,
    "no-traffic": routers.NoTraffic,
    "policy-of-fail": routers.PolicyOfFail,
    "router-without-parameters": routers.Router,
    "router-of-a-third": routers.RouterOfAThird,
    "router-and-agent": routers.RouterAndAgent,
    "two-causes": routers.TwoCauses,
    "forgotten-quarantine": routers.ForgottenQuarantine,
    "stale-reference": routers.StaleReference,
    "wrong-engine": routers.WrongEngineAtAddress,
    "leases-unread": routers.LeasesUnread,
    "late-reads": routers.LateReads,
    "pod-drained": pods.Drained,
    "pod-undrained": pods.Undrained,
    "pod-killed": pods.Killed,
    "rolling-restart": pods.RollingRestart,
    "worker-stands-briefly": pods.StandsBriefly,
    "network-flaps": pods.NetworkFlaps,
    "worker-stands-still": pods.WorkerStandsStill,
    "pod-stands-still": pods.PodStandsStill,
    "listener-dies": pods.ListenerDies,
    "incompatible-pod": pods.Incompatible,
    "other-weights": pods.OtherWeights,
    "load-never-starts": pods.LoadNeverStarts,
    "disk-full": others.DiskFull,
    "encoder-dies": others.EncoderDies,
    "rebalances-stall": others.RebalancesStall,
    "stuck-load": others.StuckLoad,
}
