
"use strict";
// Asks for the state each second and writes it into the page: always as text, never as HTML.
const EVERY_MS = 1000, PATIENCE_MS = 5000;
const WINDOWS = [[60, "1 min"], [300, "5 min"], [900, "15 min"]];
const SPLITS = [["phases_s", "by phase"], ["kinds_s", "in four kinds"]];
const KINDS = { kept: "work", work: "work", checkpoint: "save_stall" };
const NAMES = { kept: "work kept", lost: "work lost", save_stall: "save stall" };
const view = { window: 300, split: "phases_s", paused: false, open: new Set(), drawn: new Map() };
let state = null, lastContact = null, timer = 0;

const $ = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function drawing(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function coloured(made, kind) {
  made.style.setProperty("--kind", `var(--${KINDS[kind] ?? kind})`);
  if (kind === "lost") made.classList.add("hatched");
  return made;
}

// ── words ──────────────────────────────────────────────────────────────────────────────────────

const named = (kind) => NAMES[kind] ?? kind.replaceAll("_", " ");
const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const known = (value, word = String) => (value === null || value === undefined ? "–" : word(value));
const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;
const clock = (s) => new Date(1000 * s).toLocaleTimeString("en-GB");
const fixed = (value) => (typeof value === "number" ? value.toPrecision(4) : String(value));

function lasted(s) {
  const minutes = Math.floor(s / 60);
  const words = s < 1 ? `${Math.round(1000 * s)} ms` : s < 60 ? `${s.toFixed(s < 10 ? 2 : 1)} s`
    : minutes < 60 ? `${minutes} min ${Math.floor(s % 60)} s`
    : minutes < 2880 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(minutes / 1440)} days`;
  return words.replaceAll(" ", "\u00a0");
}

function since(s) {
  return s < 60 ? `${Math.floor(s)}\u00a0s` : lasted(s);
}

function bytes(count) {
  const power = Math.min(4, Math.floor(Math.log10(Math.max(count, 1)) / 3));
  return `${(count / 1000 ** power).toPrecision(3)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

// ── the parts; each is drawn anew only when what it shows has changed ───────────────────────────

function changed(part, shown) {
  const text = JSON.stringify(shown);
  if (view.drawn.get(part) === text) return false;
  view.drawn.set(part, text);
  return true;
}

function head({ run }) {
  document.title = `${run.name}: ${run.phase}`;
  $("name").textContent = run.name;
  const ended = run.outcome !== "going";
  $("phase").textContent = named(ended ? run.outcome : run.phase);
  $("phase").classList.toggle("bad", ["failed", "lost", "interrupted"].includes(run.outcome));
  coloured($("phase"), run.outcome === "finished" ? "work" : run.phase);
  $("about").textContent = [counted(run.ranks, "rank"), counted(run.attempts, "attempt"), run.reason].filter(Boolean).join(" · ");
}

function figures({ run, progress, goodput, loss, restarts, checkpoints, ranks }) {
  const newest = checkpoints.filter((one) => one.age_s !== null).sort((one, other) => one.age_s - other.age_s)[0];
  const going = run.outcome === "going";
  const shown = [
    ["goodput", known(goodput.ratio, percent), `of ${lasted(run.wall_s)}`],
    ["step", progress.step.toLocaleString("en"), progress.total_steps ? `of ${progress.total_steps.toLocaleString("en")}` : ""],
    ["loss", known(loss.last, fixed), progress.tokens_per_work_second ? `${Math.round(progress.tokens_per_work_second).toLocaleString("en")} tokens/s` : ""],
    ["restarts", String(restarts.count), restarts.median_s === null ? "" : `back after ${lasted(restarts.median_s)}`],
    ["lost steps", String(progress.lost_steps), `${progress.redone_steps} done again`],
    ["last checkpoint", newest ? `step ${newest.last_step}` : "–", newest ? `${since(newest.age_s)} ago` : ""],
    ["ranks up", going ? `${ranks.up} of ${ranks.count}` : String(ranks.up), ""],
  ];
  $("figures").replaceChildren(...shown.map(([name, value, more]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value, more ? element("small", {}, more) : null))));
}

function stripe({ strip }) {
  const parts = strip.runs.map(([kind, count]) => {
    const part = coloured(element("i", { title: named(kind) }), kind);
    part.style.flexBasis = `${(100 * count) / strip.of}%`;
    return part;
  });
  const blank = element("i");
  blank.style.flexBasis = `${(100 * strip.blank) / strip.of}%`;
  const marks = strip.failures.map((at) => {
    const mark = element("b", { title: "failure" });
    mark.style.left = `${(100 * (at + 0.5)) / strip.of}%`;
    return mark;
  });
  $("strip").replaceChildren(element("div", {}, blank, ...parts), ...marks);
  const times = Object.entries(strip.seconds).sort((one, other) => other[1] - one[1]);
  const words = times.map(([kind, s]) => `${named(kind)} ${lasted(s)}`);
  const failures = counted(strip.failures.length, "failure");
  $("strip").setAttribute("aria-label", words.length ? `the last ${lasted(strip.window_s)}: ${words.join(", ")}; ${failures}` : "no time yet");
  $("strip-from").textContent = clock(strip.until_s - strip.window_s);
  $("strip-to").textContent = clock(strip.until_s);
  const legend = times.map(([kind, s]) => element("li", {}, coloured(element("span", { class: "swatch" }), kind), `${named(kind)} ${lasted(s)}`));
  if (strip.failures.length) legend.push(element("li", {}, element("span", { class: "swatch cross" }, "✕"), failures));
  $("legend").replaceChildren(...legend);
}

function split({ goodput }) {
  const rows = Object.entries(goodput[view.split]).filter(([kind, s]) => s > 0 || kind === "kept");
  const sum = rows.reduce((total, [, s]) => total + s, 0) || 1;
  const longest = Math.max(...rows.map(([, s]) => s), 1e-9);
  $("split").tBodies[0].replaceChildren(...rows.map(([kind, s]) => {
    const bar = coloured(element("span"), kind);
    bar.style.width = `${(100 * s) / longest}%`;
    return element("tr", {}, element("th", { scope: "row" }, named(kind)),
      element("td", { class: "bar", "aria-hidden": "true" }, bar), element("td", {}, lasted(s)), element("td", {}, percent(s / sum)));
  }));
}

function curve({ loss }) {
  const width = Math.max(260, $("loss").clientWidth), height = 190, left = 44, low = height - 22;
  const points = loss.training.filter(([, value]) => typeof value === "number");
  const scored = loss.validation.filter(([, value]) => typeof value === "number");
  const all = [...points, ...scored];
  if (!all.length) return $("loss").replaceChildren(element("p", { class: "quiet" }, "No loss was read yet."));
  const steps = all.map(([step]) => step), values = all.map(([, value]) => value);
  const [first, last, least, most] = [Math.min(...steps), Math.max(...steps), Math.min(...values), Math.max(...values)];
  const room = most - least || Math.abs(most) || 1;
  const x = (step) => left + ((step - first) / (last - first || 1)) * (width - left - 6);
  const y = (value) => low - 6 - ((value - least) / room) * (low - 20);
  const place = ([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`;
  const marks = [least, least + (most - least) / 2, most].filter((mark, at, them) => them.indexOf(mark) === at);
  const ends = points.length ? `from ${fixed(points[0][1])} at step ${points[0][0]} to ${fixed(points.at(-1)[1])} at step ${points.at(-1)[0]}` : "none";
  const scores = scored.length ? `; validation ${fixed(scored.at(-1)[1])} at step ${scored.at(-1)[0]}` : "";
  $("loss").replaceChildren(
    drawing("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `training loss ${ends}${scores}` },
      ...marks.flatMap((mark) => [
        drawing("line", { class: "grid", x1: left, x2: width, y1: y(mark), y2: y(mark) }),
        drawing("text", { x: left - 6, y: y(mark) + 4, "text-anchor": "end" }, mark.toPrecision(3))]),
      drawing("text", { x: left, y: height - 4 }, `step ${first}`),
      drawing("text", { x: width - 2, y: height - 4, "text-anchor": "end" }, `step ${last}`),
      drawing("polyline", { class: "line", points: points.map(place).join(" ") }),
      ...scored.map(([step, value]) => drawing("circle", { class: "dot", cx: x(step), cy: y(value), r: 4 }))),
    element("p", { class: "quiet" }, `training ${ends}${scores}`));
}

function record(key, words, facts) {
  const more = facts.filter(([, value]) => value !== "").map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
  const made = element("details", {}, element("summary", {}, ...words), element("dl", {}, ...more.flat()));
  made.open = view.open.has(key);
  made.addEventListener("toggle", () => view.open[made.open ? "add" : "delete"](key));
  return element("li", {}, made);
}

function restarts({ restarts: told }) {
  $("restarts-sum").textContent = told.failures
    ? `${counted(told.failures, "failure")}, ${counted(told.count, "restart")}` + (told.burnt ? `, ${told.burnt} burnt` : "")
    : "Nothing has failed.";
  $("restarts").replaceChildren(...told.records.map((one) => {
    const back = one.duration_s !== null ? `back after ${lasted(one.duration_s)}` : one.burnt ? "burnt" : "not back yet";
    const who = one.rank === null ? "" : `, rank ${one.rank}`;
    const stages = Object.entries(one.phase_s).map(([stage, s]) => `${stage} ${lasted(s)}`).join(", ");
    return record(`restart ${one.number}`, [`${clock(one.at_s)}  ${one.cause}${who}: `, element("strong", {}, back)], [
      ["what", one.reason || one.cause], ["attempt", String(one.attempt)], ["resumed", known(one.resumed_step, (step) => `at step ${step}` + (one.tier ? ` from ${one.tier}` : ""))],
      ["lost", `${counted(one.lost_steps, "step")}, ${lasted(one.lost_s)}`], ["way back", stages], ["faults", one.faults.join(", ")]]);
  }));
}

function faults({ faults: told }, start) {
  $("faults-sum").textContent = told.count ? counted(told.count, "fault") : "None: nobody breaks this run on purpose.";
  $("faults").replaceChildren(...told.records.map((one) =>
    element("li", {}, `${known(one.at_s, (s) => clock(start + s))}  ${one.kind || one.id} ${one.target}: `, element("strong", {}, one.became))));
}

function table(id, heads, rows) {
  const cells = (tag, row) => row.map((cell, at) => (cell instanceof Node ? cell : element(at ? tag : "th", at && tag === "td" ? {} : { scope: tag === "th" ? "col" : "row" }, cell)));
  $(id).replaceChildren(element("thead", {}, element("tr", {}, ...cells("th", heads))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells("td", row)))));
}

function remarks(id, told) {
  $(id).replaceChildren(...told.map(([words, bad]) => element("li", bad ? { class: "bad" } : {}, words)));
}

function health({ health: told }) {
  remarks("health", told.map((one) => [one.text, one.bad]));
}

function slow({ slow: told, helpers }) {
  remarks("slow", [...told.map((line) => [line, line.includes("named ") && !line.includes("none of them")]),
    ...helpers.map((one) => [`${one.name}: started again ${counted(one.restarts, "time")}, last because of ${one.reason}`, true])]);
}

function saves({ checkpoints, rejected }) {
  table("saves", ["tier", "step", "age", "size", "took", "saved", "failed"], checkpoints.map((one) => [
    one.tier, known(one.last_step), known(one.age_s, since), known(one.last_bytes, bytes), known(one.last_commit_s, lasted), String(one.committed),
    element("td", one.failed ? { class: "bad" } : {}, String(one.failed))]));
  $("saves").hidden = !checkpoints.length;
  const every = checkpoints.filter((one) => one.every_steps !== null);
  remarks("rejected", [...(checkpoints.length ? [] : [["None yet.", false]]),
    ...every.map((one) => [`to ${one.tier} every ${counted(one.every_steps, "step")} (${lasted(one.every_s)}): ${one.why}`, false]),
    ...rejected.map((line) => [`rejected: ${line}`, true])]);
}

function ranks({ ranks: told, run }) {
  const hidden = told.count - told.listed.length;
  $("ranks-sum").textContent = `${told.up} of ${told.count} up` + (hidden > 0 ? `; ${hidden} that are neither down nor late are left out` : "");
  table("ranks", ["rank", "is", "step", "late by"], told.listed.map((one) => [
    String(one.rank), element("td", { class: one.up ? "good" : run.outcome === "going" ? "bad" : "quiet" }, one.up ? one.doing ?? "up" : "down"),
    known(one.step), element("td", one.named ? { class: "bad" } : {}, known(one.delay_s, lasted) + (one.named ? `, ${one.named}` : ""))]));
}

const PARTS = { run: head, figures, strip: stripe, goodput: split, loss: curve, restarts, faults, checkpoints: saves, ranks, health, slow };

function draw() {
  if (state === null) return;
  const { at_s: _, ...rest } = state;
  const shown = { ...state, figures: rest, goodput: [state.goodput, view.split], ranks: [state.ranks, state.run.outcome], faults: [state.faults, state.run.started_s], checkpoints: [state.checkpoints, state.rejected], slow: [state.slow, state.helpers] };
  for (const [part, drawn] of Object.entries(PARTS)) {
    if (changed(part, shown[part])) drawn(state, state.run.started_s);
  }
}

// ── asking ─────────────────────────────────────────────────────────────────────────────────────

async function ask() {
  clearTimeout(timer);
  if (!view.paused && !document.hidden) await once();
  timer = setTimeout(ask, EVERY_MS);
}

async function once() {
  try {
    const answer = await fetch(`/state.json?window_s=${view.window}`, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!answer.ok) return lose(`The exporter answers: ${(await answer.text()).trim()}`);
    const told = await answer.json();
    if (state !== null && told.schema !== state.schema) return location.reload();
    state = told;
    lastContact = Date.now();
    $("contact").textContent = `as of ${clock(state.at_s)}`;
    $("lost").hidden = true;
    document.body.classList.remove("lost");
  } catch {
    return lose("No answer from the exporter");
  }
  draw();
}

function lose(what) {
  const since_ = lastContact === null ? "" : ` since ${clock(lastContact / 1000)}; all below is of then`;
  $("lost").textContent = `${what}${since_}. Asking again every second.`;
  $("lost").hidden = false;
  $("contact").textContent = "no contact";
  document.body.classList.add("lost");
}

function choice(id, options, key, then) {
  $(id).replaceChildren(...options.map(([value, words]) => {
    const button = element("button", { type: "button", "aria-pressed": String(view[key] === value) }, words);
    button.addEventListener("click", () => {
      view[key] = value;
      for (const other of $(id).children) other.setAttribute("aria-pressed", String(other === button));
      then();
    });
    return button;
  }));
}

choice("windows", WINDOWS, "window", once);
choice("splits", SPLITS, "split", draw);
$("pause").addEventListener("click", () => {
  view.paused = !view.paused;
  $("pause").setAttribute("aria-pressed", String(view.paused));
  $("pause").textContent = view.paused ? "Go on" : "Pause";
  if (view.paused) $("contact").textContent = `paused at ${clock(state?.at_s ?? Date.now() / 1000)}`;
  else ask();
});
addEventListener("resize", () => { view.drawn.delete("loss"); draw(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
ask();
