// How each kind of panel is drawn, as Grafana would roughly draw it. The options read here are those that we set.
"use strict";

const NAMES_OF = "http://www.w3.org/2000/svg";
const LEFT = 52, RIGHT = 8, TOP = 8, BOTTOM = 18;

function element(parent, kind, text, style) {
  const made = parent.appendChild(document.createElement(kind));
  if (text !== undefined) made.textContent = text;
  if (style) made.setAttribute("style", style);
  return made;
}

function shape(parent, kind, attributes, text) {
  const made = parent.appendChild(document.createElementNS(NAMES_OF, kind));
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function defaults(panel) {
  return panel.fieldConfig?.defaults ?? {};
}

function overridden(panel, name) {
  const rule = (panel.fieldConfig?.overrides ?? []).find((one) => one.matcher.options === name);
  return Object.fromEntries((rule?.properties ?? []).map((one) => [one.id, one.value]));
}

function canvas(body) {
  const width = body.clientWidth - 14, height = body.clientHeight - 4;
  const svg = shape(body, "svg", { viewBox: "0 0 " + width + " " + height });
  const across = (at_s) => LEFT + ((at_s - START_S) / (END_S - START_S)) * (width - LEFT - RIGHT);
  return { svg, width, height, across };
}

function clock(view) {
  const count = Math.max(2, Math.floor((view.width - LEFT) / 90));
  for (let i = 0; i <= count; i += 1) {
    const at_s = START_S + ((END_S - START_S) * i) / count, x = view.across(at_s);
    const label = new Date(at_s * 1000).toLocaleTimeString("sv");
    const anchor = i === 0 ? "start" : i === count ? "end" : "middle";
    shape(view.svg, "text", { x, y: view.height - 4, "text-anchor": anchor }, label);
  }
}

function marks(view, annotations) {
  for (const { at_s, color } of annotations) {
    const x = view.across(at_s);
    shape(view.svg, "line", { x1: x, x2: x, y1: TOP, y2: view.height - BOTTOM, stroke: color, "stroke-dasharray": "3 3" });
    shape(view.svg, "path", { d: "M" + (x - 4) + " " + (view.height - BOTTOM) + "h8l-4 -6z", fill: color });
  }
}

function legend(box, entries) {
  const line = element(box, "div");
  line.className = "legend";
  for (const [name, color] of entries) {
    const entry = element(line, "span");
    element(entry, "i", "", "background:" + color);
    entry.append(name);
  }
}

function stackedUp(lines) {
  const below = new Map();
  return lines.map((line) => ({
    ...line,
    points: line.points.map(([at_s, value]) => {
      const from = below.get(at_s) ?? 0;
      below.set(at_s, from + value);
      return [at_s, from + value, from];
    }),
  }));
}

function nice(low, high) {
  const rough = (high - low) / 4 || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  return { low: Math.floor(low / step + 1e-9) * step, high: Math.ceil(high / step - 1e-9) * step, step };
}

function axis(view, panel, lines, log) {
  const values = lines.flatMap((line) => line.points.map((point) => point[1]));
  const { unit, min, max } = defaults(panel);
  let low = min ?? Math.min(...values), high = max ?? Math.max(...values);
  if (low === high) high = low + (Math.abs(low) || 1);
  const ticks = [];
  if (log) {
    low = 10 ** Math.floor(Math.log10(Math.min(...values.filter((v) => v > 0))));
    high = Math.max(low * 10, 10 ** Math.ceil(Math.log10(high)));
    for (let tick = low; tick <= high * 1.001; tick *= 10) ticks.push(tick);
  } else {
    const grid = nice(low, high);
    [low, high] = [min ?? grid.low, max ?? grid.high];
    for (let i = 0; low + i * grid.step <= high + grid.step / 1e6; i += 1) ticks.push(low + i * grid.step);
  }
  const share = (v) => (log ? Math.log10(Math.max(v, low) / low) / Math.log10(high / low) : (v - low) / (high - low));
  const up = (v) => view.height - BOTTOM - share(v) * (view.height - BOTTOM - TOP);
  for (const tick of ticks) {
    shape(view.svg, "line", { x1: LEFT, x2: view.width - RIGHT, y1: up(tick), y2: up(tick), stroke: "#e7e9ec" });
    shape(view.svg, "text", { x: LEFT - 5, y: up(tick) + 3, "text-anchor": "end" }, told(Number(tick.toPrecision(6)), unit));
  }
  return up;
}

// Points further apart than a line may go on are drawn as two lines.
function pieces(points, gap_s) {
  const cut = [];
  for (const point of points) {
    const last = cut.at(-1)?.at(-1);
    if (last && point[0] - last[0] <= gap_s) cut.at(-1).push(point);
    else cut.push([point]);
  }
  return cut;
}

function outline(view, up, points, stairs) {
  const steps = points.map((point) => [view.across(point[0]), up(point[1])]);
  return steps.map(([x, y], i) => (i === 0 ? "M" + x + " " + y : (stairs ? "H" + x : "") + "L" + x + " " + y)).join("");
}

// The way back along what lies below, so that the two enclose an area.
function under(view, up, points, stairs) {
  const steps = [...points].reverse().map((point) => [view.across(point[0]), up(point[2])]);
  return steps.map(([x, y], i) => (stairs && i > 0 ? "V" + y + "H" + x : "L" + x + " " + y)).join("") + "Z";
}

function timeseries(box, body, panel, lines, annotations) {
  const custom = defaults(panel).custom ?? {}, stacked = custom.stacking?.mode === "normal";
  const stairs = custom.lineInterpolation === "stepAfter", log = custom.scaleDistribution?.type === "log";
  const gap_s = typeof custom.spanNulls === "number" ? custom.spanNulls / 1000 : STEP_S * 1.5;
  const all = stacked ? stackedUp(lines) : lines;
  const colors = all.map((line, i) => overridden(panel, line.name).color?.fixedColor ?? PALETTE[i % PALETTE.length]);
  legend(box, all.map((line, i) => [line.name, colors[i]]));
  const view = canvas(body), up = axis(view, panel, all, log);
  all.forEach((line, i) => {
    const dash = overridden(panel, line.name)["custom.lineStyle"]?.dash?.join(" ") ?? "";
    for (const part of pieces(line.points, gap_s)) {
      const d = outline(view, up, part, stairs);
      if (stacked) {
        shape(view.svg, "path", { d: d + under(view, up, part, stairs), fill: colors[i], "fill-opacity": 0.7 });
      } else if (part.length === 1) {
        shape(view.svg, "circle", { cx: view.across(part[0][0]), cy: up(part[0][1]), r: 2, fill: colors[i] });
      }
      shape(view.svg, "path", { d, fill: "none", stroke: colors[i], "stroke-width": 1.4, "stroke-dasharray": dash });
    }
  });
  clock(view);
  marks(view, annotations);
}

function bands(view, lines, fill) {
  const tall = (view.height - BOTTOM - TOP) / lines.length;
  lines.forEach((line, row) => {
    const y = TOP + row * tall;
    shape(view.svg, "text", { x: LEFT - 5, y: y + tall / 2 + 3, "text-anchor": "end" }, line.name);
    for (const [at_s, value] of line.points) {
      const x = view.across(at_s), width = Math.max(1, view.across(at_s + STEP_S) - x + 0.4);
      const color = fill(value);
      if (x + width <= view.width && color) shape(view.svg, "rect", { x, y: y + tall * 0.1, width, height: tall * 0.8, fill: color, "shape-rendering": "crispEdges" });
    }
  });
  clock(view);
}

function statetimeline(box, body, panel, lines, annotations) {
  const names = defaults(panel).mappings[0].options;
  const seen = new Set(lines.flatMap((line) => line.points.map((point) => point[1])));
  legend(box, Object.entries(names).filter(([v]) => seen.has(Number(v))).map(([, one]) => [one.text, one.color]));
  const view = canvas(body);
  bands(view, lines, (value) => names[value]?.color);
  marks(view, annotations);
}

function heatmap(box, body, panel, lines, annotations) {
  const most = Math.max(1e-9, ...lines.flatMap((line) => line.points.map((point) => point[1])));
  const shade = (share) => "rgb(" + [255 - 80 * share, 245 - 195 * share, 235 - 225 * share].map(Math.round).join() + ")";
  const ordered = [...lines].sort((a, b) => Number(b.name) - Number(a.name));
  legend(box, [0, 0.5, 1].map((share) => [told(share * most, panel.options.cellValues.unit), shade(share)]));
  const view = canvas(body);
  bands(view, ordered, (value) => shade(Math.sqrt(value / most)));
  marks(view, annotations);
}

function stat(body, panel, values) {
  const { unit, decimals, thresholds, mappings } = defaults(panel), value = values[0].value;
  const mapped = mappings?.[0]?.options[value];
  const text = mapped?.text ?? told(value, unit, decimals);
  element(body, "div", text, "color:" + (mapped?.color ?? colorAt(value, thresholds?.steps))).className = "figure";
}

function bargauge(body, panel, values) {
  const list = element(body, "div"), most = Math.max(1e-12, ...values.map((one) => one.value));
  list.className = "bars";
  for (const one of values) {
    const line = element(list, "div"), fixed = overridden(panel, one.name).color?.fixedColor;
    const color = fixed ?? colorAt(one.value, defaults(panel).thresholds?.steps);
    line.className = "bar";
    element(line, "span", one.name);
    element(element(line, "div"), "b", "", "width:" + (100 * one.value) / most + "%;background:" + color);
    element(line, "span", told(one.value, defaults(panel).unit));
  }
}

function table(body, panel, answers) {
  const organized = panel.transformations.find((one) => one.id === "organize").options, rows = new Map();
  answers.forEach((values, i) => {
    const column = answers.length === 1 ? "Value" : "Value #" + panel.targets[i].refId;
    for (const { labels, value } of values) {
      const key = JSON.stringify(Object.entries(labels).sort());
      rows.set(key, { ...(rows.get(key) ?? labels), [column]: value });
    }
  });
  const columns = Object.entries(organized.indexByName).sort((a, b) => a[1] - b[1]).map(([name]) => name);
  const made = element(body, "table"), head = element(made, "tr");
  for (const column of columns) element(head, "th", organized.renameByName[column]);
  for (const row of rows.values()) {
    const line = element(made, "tr");
    for (const column of columns) {
      const shown = overridden(panel, organized.renameByName[column]), value = row[column];
      const text = value === undefined ? "" : shown.unit ? told(value, shown.unit) : value;
      element(line, "td", text, shown.thresholds ? "color:" + colorAt(value, shown.thresholds.steps) : "");
    }
  }
}
