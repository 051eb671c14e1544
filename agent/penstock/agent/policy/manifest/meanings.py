"""What each field of ``spec`` is for, by path: for the form of the page and for ``kubectl explain``. Pure.

What may be written follows from the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MEANINGS: Final[Mapping[str, str]] = {
    "selector": "Which engines have the policy",
    "selector.matchLabels": "Labels that an engine must have, each",
    "selector.matchExpressions": "Requirements on the labels of an engine, each of which must hold",
    "selector.matchExpressions.key": "The label",
    "selector.matchExpressions.operator": "How the label is compared",
    "selector.matchExpressions.values": "What In and NotIn compare with",
    "selector.models": "Names of models, one of which the engine must serve",
    "rollout": "The share of the selected engines that has the policy; without it all have it",
    "rollout.percent": "The share, by a hash of engine and policy: a larger one only adds engines",
    "rollout.candidate": "What the share has instead of the policy's own sections; the other engines keep those",
    "priority": "The policy with the highest one wins, field by field; 100 if it is omitted, break-glass from 900 on",
    "expiresAt": "When the policy ends",
    "mode": "Whether the engine acts, or only reports what it would do",
    "kvLoadFailure": "What happens to requests whose KV blocks cannot be loaded",
    "kvLoadFailure.action": "What happens to such a request",
    "kvLoadFailure.maxRecomputeTokens": "With auto, a request that would recompute more tokens fails",
    "kvLoadFailure.recomputeBudget": "How much an engine recomputes",
    "kvLoadFailure.recomputeBudget.tokensPerSecond": "Tokens that an engine may recompute in a second",
    "kvLoadFailure.overBudget": "What happens to a request for which the budget has no room",
    "ecLoadFailure": "What happens to requests whose encoder outputs cannot be loaded",
    "ecLoadFailure.action": "What happens to such a request",
    "ecLoadFailure.maxRecomputeItems": "With auto, a request that would encode more items again fails",
    "deferral": "How long a request waits for its transfer",
    "deferral.maxStartWait": "The wait for the start of the transfer",
    "deferral.maxTransferWait": "The wait for the end of the transfer, from its start on",
    "deferral.onTimeout": "What happens to a request that waited so long",
    "peerQuarantine": "When an engine stops loading from a peer that fails",
    "peerQuarantine.failures": "So many failures within the window quarantine the peer",
    "peerQuarantine.window": "The time in which failures count",
    "peerQuarantine.duration": "The time until one probe of the peer",
    "peerQuarantine.maxPeersPercent": "At most this share of the peers is in quarantine",
    "telemetry": "What the engine reports",
    "telemetry.traceSampleRatio": "The share of successful requests whose traces are exported",
    "telemetry.failureLogInterval": "Of equal failures one line is logged in this time",
    "integrity": "Which transfers are compared with the sender's digest",
    "integrity.sampleRatio": "The share of requests whose transfers are compared",
    "integrity.action": "What happens to a request whose transfer does not match",
    "reflexes": "What an engine does by itself, by the times that it has measured itself lately",
    "reflexes.perMinute": "How often all of them together act in a minute",
    "reflexes.startWait": "A load that does not begin is given up once waiting is dearer than computing",
    "reflexes.startWait.action": "Whether it does, or only reports what it would do",
    "reflexes.startWait.factor": "How many times as long as computing its tokens takes here a load may take to begin",
    "reflexes.startWait.minWait": "It never gives a load up earlier",
    "reflexes.slowPeer": "A peer is not loaded from while its loads are dearer than computing",
    "reflexes.slowPeer.action": "Whether it is not, or the engine only reports so",
    "reflexes.slowPeer.factor": "How many times as long as computing the tokens takes here its loads may take",
    "reflexes.recomputeStorm": "Which losses were too large to be recomputed while requests queue behind others that are",
    "reflexes.recomputeStorm.action": "It only reports: acting would fail requests that are recomputed today",
    "reflexes.recomputeStorm.queueWait": "How long half of the requests may queue",
    "ejection": "When the relay that leads takes a server out of rotation; engines are sent nothing of it",
    "ejection.action": "Whether it does, or only says what it would do",
    "ejection.minReaders": "Agents whose engines read from the server, and that must find it bad",
    "ejection.minFailures": "Loads that must have failed in a minute at each of them",
    "ejection.after": "How long they must find it bad",
    "ejection.duration": "How long the server is out; each order of an hour lasts twice as long as the one before",
    "ejection.maxPodsPercent": "Of the pods with servers of one role and model, as many may be out",
    "ejection.perHour": "Orders of the whole fleet in an hour",
}
