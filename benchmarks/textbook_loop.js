// The textbook simulator of a job that saves and fails, for `benchmarks/simulate.py` to be measured against.
// Reads {mtbf, save, restart, horizon, intervals, seeds, repeats}; prints seconds of each repeat and the counts.

function generator(seed) {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

function walk(job, interval, seed) {
  const random = generator(seed);
  const failureAfter = (now) => now - Math.log(1 - random()) * job.mtbf;
  const segments = [];
  let now = 0;
  let failures = 0;
  let failure = failureAfter(now);
  while (now < job.horizon) {
    const worked = now + interval;
    const saved = worked + job.save;
    if (failure >= saved) {
      segments.push({ kind: "work", start: now, end: worked });
      segments.push({ kind: "checkpoint", start: worked, end: saved });
      now = saved;
      continue;
    }
    segments.push({ kind: "lost", start: now, end: failure });
    failures += 1;
    now = failure + job.restart;
    segments.push({ kind: "restart", start: failure, end: now });
    failure = failureAfter(now);
  }
  return { segments, failures, end: now };
}

function everything(job) {
  const counts = [];
  for (const interval of job.intervals) {
    for (const seed of job.seeds) {
      const run = walk(job, interval, seed);
      counts.push([run.segments.length, run.failures]);
    }
  }
  return counts;
}

const job = JSON.parse(require("fs").readFileSync(0, "utf8"));
const seconds = [];
let counts = everything(job); // the compiler's warm-up is not measured
for (let repeat = 0; repeat < job.repeats; repeat += 1) {
  const started = process.hrtime.bigint();
  counts = everything(job);
  seconds.push(Number(process.hrtime.bigint() - started) / 1e9);
}
console.log(JSON.stringify({ seconds, counts }));
