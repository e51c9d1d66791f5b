"""The rows of the fault matrix, in the order in which they are run and shown."""

from tests.crash.faults import kill
from tests.crash.matrix import Fault

FAULTS: tuple[Fault, ...] = (kill.FAULT,)
