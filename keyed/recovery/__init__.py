"""What is done with a changelog beside writing it: restore, verify, flush, follow, take over, and read its changes."""

from keyed.recovery.local_checkpoint import flush
from keyed.recovery.reading import StateChange, read_changelog
from keyed.recovery.standby import Lag, Standby
from keyed.recovery.verify import Verified, verify_changelog, verify_checkpoint

__all__ = [
    "Lag",
    "Standby",
    "StateChange",
    "Verified",
    "flush",
    "read_changelog",
    "verify_changelog",
    "verify_checkpoint",
]
