"""A job whose batches come from two loader workers on each rank, slowly."""

import json
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

import harness


class Slow(Dataset[torch.Tensor]):
    """Samples that take their time."""

    def __len__(self) -> int:
        """Items."""
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        """One item."""
        time.sleep(0.02)
        return torch.tensor([index, 1.0])


job = harness.join()
model = job.ddp(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
sampler = harness.ResumableSampler(10_000, batch_size=2, seed=job.seed)
job.protect(model=model, optimizer=optimizer, data=sampler)
batches = job.batches(DataLoader(Slow(), batch_sampler=sampler, num_workers=2))
for step in job.steps(int(sys.argv[1])):
    optimizer.zero_grad()
    model(next(batches)).sum().backward()
    optimizer.step()
    if step == 1:
        print(json.dumps({"pid": os.getpid()}))
