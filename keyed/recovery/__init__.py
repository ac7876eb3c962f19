"""What is done with a changelog beside writing it: restore, verify, flush, and read its changes."""

from keyed.recovery.local_checkpoint import flush
from keyed.recovery.reading import StateChange, read_changelog
from keyed.recovery.verify import Verified, verify_changelog, verify_checkpoint

__all__ = [
    "StateChange",
    "Verified",
    "flush",
    "read_changelog",
    "verify_changelog",
    "verify_checkpoint",
]
