"""The metrics of the health of training, from what is known of a run at one moment: pure."""

from collections.abc import Callable, Mapping

from harness import metrics
from harness.present import Present, Values, one

DRAW_HEALTH: Mapping[str, Callable[[Present], Values]] = {
    metrics.GRAD_NORM.name: lambda now: one(now.account.findings.grad_norm),
    metrics.CLIP_NORM.name: lambda now: one(now.account.findings.clip_norm),
    metrics.CLIPS.name: lambda now: one(now.account.findings.clips),
    metrics.CLIPPED.name: lambda now: one(now.account.findings.clipped),
    metrics.UPDATE_TO_WEIGHT.name: lambda now: {
        (group,): ratio for group, ratio in now.account.findings.update_to_weight.items()
    },
    metrics.NONFINITE.name: lambda now: one(now.account.findings.nonfinite_steps),
    metrics.LOSS_SPIKES.name: lambda now: one(now.account.findings.spikes),
    metrics.REPLICA_CHECKS.name: lambda now: one(now.account.findings.replicas.made),
    metrics.REPLICA_MISMATCHES.name: lambda now: one(now.account.findings.replicas.unequal),
    metrics.AUDITS.name: lambda now: one(now.account.findings.audits.made),
    metrics.AUDIT_MISMATCHES.name: lambda now: one(now.account.findings.audits.unequal),
}
"""How each of these families is drawn, by name."""
