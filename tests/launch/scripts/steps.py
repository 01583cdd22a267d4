"""The smallest job that uses the library; its environment says how it misbehaves."""

import atexit
import json
import os
import signal
import sys
import time

import torch

import harness

job = harness.join()
print(json.dumps({"pid": os.getpid(), "attempt": job.attempt}))
width = int(os.environ.get("WIDTH", "2"))
model = job.ddp(torch.nn.Linear(width, width))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.protect(model=model, optimizer=optimizer)
is_culprit = job.rank == job.world_size - 1 and job.attempt == int(os.environ.get("BAD", "0"))
for step in job.steps(int(sys.argv[1])):
    optimizer.zero_grad()
    loss = model(torch.ones(1, width)).sum()
    loss.backward()
    optimizer.step()
    job.observe(loss=loss)
    time.sleep(float(os.environ.get("STEP_S", "0")))
    if os.environ.get("FAIL_AT") == str(step):
        raise ArithmeticError("no good")
    if is_culprit and step == 3:
        exec(os.environ["DEED"])
if is_culprit and "LAST" in os.environ:
    atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
