"""All-reduces for a number of rounds, as any plain script would."""

import json
import os
import sys
import time

import torch
from torch import distributed as dist

dist.init_process_group("gloo")
print(json.dumps({"pid": os.getpid(), "attempt": int(os.environ["HARNESS_ATTEMPT"])}))
for _ in range(int(sys.argv[1])):
    total = torch.ones(4)
    dist.all_reduce(total)
    assert total[0].item() == dist.get_world_size()
    time.sleep(0.01)
dist.destroy_process_group()
