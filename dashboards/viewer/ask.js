// What the panels of a dashboard ask Prometheus, and what numbers look like. Nothing is drawn here.
"use strict";

const asked = new URLSearchParams(location.search);
const START_S = Number(asked.get("start"));
const END_S = Number(asked.get("end"));
const POINTS = 240;
const STEP_S = Math.max(1, Math.round((END_S - START_S) / POINTS));
const PALETTE = ["#7EB26D", "#EAB839", "#6ED0E0", "#EF843C", "#E24D42", "#1F78C1", "#BA43A9", "#705DA0", "#508642"];

function filled(text) {
  const known = {
    __rate_interval: Math.max(4, STEP_S + 1) + "s",
    __interval: STEP_S + "s",
    __range: Math.round(END_S - START_S) + "s",
  };
  return text.replace(/\$(\w+)/g, (whole, name) => known[name] ?? asked.get(name) ?? whole);
}

async function answered(path, parameters) {
  const answer = await (await fetch("/api/v1/" + path + "?" + new URLSearchParams(parameters))).json();
  if (answer.status !== "success") throw new Error(answer.error);
  return answer.data.result;
}

function named(legend, labels) {
  if (legend) return legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? "");
  const told = Object.entries(labels).filter(([label]) => label !== "__name__");
  return told.length ? told.map(([label, value]) => label + "=" + value).join(" ") : "value";
}

async function series(expr, legend) {
  const query = filled(expr);
  const found = await answered("query_range", { query, start: START_S, end: END_S, step: STEP_S });
  return found.map((one) => ({
    name: named(legend, one.metric),
    points: one.values.map(([at_s, value]) => [at_s, Number(value)]).filter(([, value]) => Number.isFinite(value)),
  }));
}

async function instant(expr, legend) {
  const found = await answered("query", { query: filled(expr), time: END_S });
  return found
    .map((one) => ({ name: named(legend, one.metric), labels: one.metric, value: Number(one.value[1]) }))
    .filter((one) => Number.isFinite(one.value));
}

function scaled(value, names, base) {
  let power = 0;
  while (Math.abs(value) >= base && power < names.length - 1) {
    value /= base;
    power += 1;
  }
  return rounded(value) + names[power];
}

function rounded(value, decimals) {
  if (decimals !== undefined) return value.toFixed(decimals);
  if (value === 0) return "0";
  return String(Number(value.toPrecision(3)));
}

function duration(seconds, decimals) {
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 0.001) return rounded(seconds * 1e6) + " µs";
  if (size < 1) return rounded(seconds * 1e3) + " ms";
  if (size < 60) return rounded(seconds, decimals) + " s";
  if (size < 3600) return rounded(seconds / 60) + " min";
  if (size < 86400) return rounded(seconds / 3600) + " h";
  return rounded(seconds / 86400) + " d";
}

function told(value, unit, decimals) {
  switch (unit) {
    case "s": return duration(value, decimals);
    case "percentunit": return rounded(value * 100, decimals) + "%";
    case "bytes": return scaled(value, [" B", " KiB", " MiB", " GiB", " TiB"], 1024);
    case "Bps": return scaled(value, [" B/s", " kB/s", " MB/s", " GB/s"], 1000);
    case "sci": return value === 0 ? "0" : value.toExponential(1);
    case "none": return rounded(value, decimals);
    case "dateTimeAsLocal": return new Date(value).toLocaleString("sv");
    case "short": return scaled(value, ["", " K", " Mil", " Bil"], 1000);
    default: throw new Error("unknown unit " + unit);
  }
}

function colorAt(value, steps, otherwise) {
  let color = otherwise;
  for (const step of steps ?? []) if (step.value === null || step.value === undefined || value >= step.value) color = step.color;
  return color;
}
