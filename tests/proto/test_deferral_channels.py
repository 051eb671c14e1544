"""What a deferral waits for."""

from penstock.proto import constants as c
from penstock.proto.deferral_channels import DEFERRAL_CHANNELS, LOAD_CHANNELS, WAITED_CHANNELS
from penstock.proto.v1.common_pb2 import DeferralReason


def test_each_reason_has_its_row() -> None:
    """A new value of the enum without one would be a wait that nobody counts."""
    assert set(DEFERRAL_CHANNELS) == set(DeferralReason.values()) - {0}


def test_a_look_up_waits_for_a_channel_and_is_no_load() -> None:
    """Its time is the store's; the load that may follow has a wait of its own."""
    assert WAITED_CHANNELS.keys() - LOAD_CHANNELS.keys() == {c.DEFERRAL_REASON_KV_LOOKUP}
    assert WAITED_CHANNELS[c.DEFERRAL_REASON_KV_LOOKUP] == c.CHANNEL_KV
