"""How long a simulated job waits for nodes in place of failed ones."""

import heapq
from dataclasses import dataclass, field


@dataclass(slots=True)
class Pool:
    """Nodes that stand by, and those that are being repaired."""

    free: int
    repaired_s: list[float] = field(default_factory=list)
    """When each node under repair comes back; a heap."""

    def replace(self, at_s: float, repairs_s: list[float]) -> float:
        """One node for each of `repairs_s` has failed; gives when as many others are there."""
        for repair_s in repairs_s:
            heapq.heappush(self.repaired_s, at_s + repair_s)
        ready_s = at_s
        self._welcome(at_s)
        for _ in repairs_s:
            if self.free == 0:
                ready_s = max(ready_s, self.repaired_s[0])
                self._welcome(ready_s)
            self.free -= 1
        return ready_s

    def _welcome(self, at_s: float) -> None:
        """Take back what is repaired by now."""
        while self.repaired_s and self.repaired_s[0] <= at_s:
            heapq.heappop(self.repaired_s)
            self.free += 1
