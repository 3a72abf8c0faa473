"""A model on a GPU that is not there: the host waits while a batch is computed elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence


class Device:
    """Takes `DEVICE_BATCH_SECONDS` for a batch of any size, as weights that pass through a GPU once do.

    How long it takes does not depend on who else uses the processors of the test's machine.
    """

    def load(self) -> None:
        self._seconds = float(os.environ["DEVICE_BATCH_SECONDS"])

    def read(self, images: Sequence[bytes]) -> list[list[str] | Exception]:
        time.sleep(self._seconds)
        return [[f"{len(image)} bytes"] for image in images]
