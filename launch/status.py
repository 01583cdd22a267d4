"""The present of a run in one line: pure, from the fold and rank 0's slot."""

import math
from collections import deque
from dataclasses import dataclass, field

from rich.text import Text

from harness.account import Account
from harness.goodput import split
from harness.phases import Phase
from harness.report.spread import duration
from harness.report.strip import LOOKS
from harness.slots import Mark, Slot

WINDOW_NS = 10_000_000_000
"""How far back speed is measured: never over the whole run, and never across a restart."""


@dataclass(slots=True)
class Pace:
    """The speed of the attempt that goes on, over its last seconds."""

    attempt: int = -1
    marks: deque[tuple[int, int, int]] = field(default_factory=deque)
    """Instant of a finished step, steps and tokens done by then."""

    def observe(self, account: Account) -> None:
        """Take note of the last finished step."""
        if account.holder != self.attempt:
            self.attempt = account.holder
            self.marks.clear()
        at_ns = account.last_step_at_ns
        if account.idle or at_ns is None or (self.marks and self.marks[-1][0] == at_ns):
            return
        steps = account.ledger.useful_steps + account.ledger.redone_steps
        self.marks.append((at_ns, steps, account.tokens_useful + account.tokens_redone))
        while at_ns - self.marks[0][0] > WINDOW_NS and len(self.marks) > 2:
            self.marks.popleft()

    def per_second(self) -> tuple[float, float] | None:
        """Steps and tokens; None before two steps were seen."""
        if len(self.marks) < 2:
            return None
        (first_ns, first_steps, first_tokens), (ns, steps, tokens) = self.marks[0], self.marks[-1]
        elapsed_s = (ns - first_ns) / 1_000_000_000
        return (steps - first_steps) / elapsed_s, (tokens - first_tokens) / elapsed_s


@dataclass(frozen=True, slots=True)
class Status:
    """What one line shows."""

    phase: str
    attempt: int
    step: int
    total_steps: int | None
    loss: float | None
    tokens_per_second: float | None
    remaining_s: float | None
    goodput: float | None
    fault: str
    """The last one injected; empty before the first."""

    def line(self) -> Text:
        """The status as a line, with colours for whoever shows them."""
        of = "" if self.total_steps is None else f"/{self.total_steps}"
        parts = [(f"step {self.step}{of}", "bold")]
        if self.loss is not None:
            parts.append((f"loss {self.loss:.4f}", ""))
        if self.tokens_per_second is not None:
            parts.append((f"{self.tokens_per_second:,.0f} tokens/s", ""))
        if self.goodput is not None:
            parts.append((f"goodput {self.goodput:.1%}", "bold"))
        parts.append((self.phase.replace("_", " "), LOOKS.get(self.phase, ("", ""))[1]))
        if self.attempt >= 0:
            parts.append((f"attempt {self.attempt}", ""))
        if self.remaining_s is not None and self.remaining_s > 0:
            parts.append((f"{duration(round(self.remaining_s * 1e9))} to go", "dim"))
        if self.fault:
            parts.append((f"last fault: {self.fault}", "red"))
        line = Text(no_wrap=True, overflow="ellipsis")
        for place, (text, style) in enumerate(parts):
            line.append(" · " if place else "", "dim").append(text, style)
        return line


def status(account: Account, slot: Slot | None, pace: Pace) -> Status:
    """The present: from rank 0's slot where that is of the newest attempt, else from the log."""
    step, loss = account.step, account.loss
    if slot is not None and slot.attempt >= max(0, account.attempt) and slot.mark >= Mark.STEPPING:
        step = slot.step
        loss = loss if math.isnan(slot.loss) else slot.loss
    speed, total_steps = pace.per_second(), account.total_steps
    remaining_s = None
    if speed is not None and speed[0] > 0 and total_steps is not None:
        remaining_s = max(0, total_steps - step) / speed[0]
    of = split(account)
    injected = [one for one in account.faults.records if one.injected_at_ns is not None]
    return Status(
        phase=_phase(account),
        attempt=account.attempt,
        step=step,
        total_steps=total_steps,
        loss=loss,
        tokens_per_second=speed[1] if speed is not None and speed[1] > 0 else None,
        remaining_s=remaining_s,
        goodput=of.goodput if of.wall_ns else None,
        fault=f"{injected[-1].kind} {injected[-1].target}" if injected else "",
    )


def _phase(account: Account) -> str:
    """A launcher that looks at its run is not down: the log is a second late. The end has a name of its own."""
    if account.phase is Phase.FINISHED and account.outcome is not None:
        return account.outcome.value
    return (Phase.STARTUP if account.phase is Phase.DOWN else account.phase).value
