// Lays the panels out, has each one asked and drawn, and says in the end what was empty or went wrong.
"use strict";

const OVER_TIME = { timeseries, "state-timeline": statetimeline, heatmap };
const AT_THE_END = { stat, bargauge };

async function annotated(dashboard) {
  const found = [];
  for (const one of dashboard.annotations?.list ?? []) {
    for (const line of await series(one.expr, one.titleFormat)) {
      // A mark stands where a stretch of points begins.
      for (const part of pieces(line.points, STEP_S * 1.5)) found.push({ at_s: part[0][0], color: one.iconColor });
    }
  }
  return found;
}

async function draw(box, body, panel, annotations) {
  const asking = panel.targets.map((one) => (one.instant ? instant : series)(one.expr, one.legendFormat));
  const answers = await Promise.all(asking);
  if (panel.type === "table") return answers.some((one) => one.length) ? (table(body, panel, answers), true) : false;
  const all = answers.flat();
  if (panel.type in AT_THE_END) {
    if (all.length) AT_THE_END[panel.type](body, panel, all);
    return all.length > 0;
  }
  const lines = all.filter((line) => line.points.length);
  if (lines.length) OVER_TIME[panel.type](box, body, panel, lines, annotations);
  return lines.length > 0;
}

function placed(grid, panel) {
  const { x, y, w, h } = panel.gridPos;
  const style = "grid-column:" + (x + 1) + "/span " + w + ";grid-row:" + (y + 1) + "/span " + h;
  const box = element(grid, "div", undefined, style);
  box.className = panel.type === "row" ? "row" : "panel";
  return box;
}

async function show() {
  const dashboard = JSON.parse(document.getElementById("dashboard").textContent);
  const grid = document.getElementById("grid"), outcome = { empty: [], wrong: [] };
  document.querySelector("h1").textContent = dashboard.title;
  document.getElementById("about").textContent = ["job_name", "run_id"].map((name) => name + " = " + asked.get(name)).join("   ");
  const annotations = await annotated(dashboard);
  const boxes = dashboard.panels.map((panel) => [panel, placed(grid, panel)]);
  for (const [panel, box] of boxes) {
    if (panel.type === "row") {
      box.textContent = panel.title;
      continue;
    }
    element(box, "h2", panel.title).title = panel.description;
    const body = element(box, "div");
    body.className = "body";
    try {
      if (await draw(box, body, panel, annotations)) continue;
      outcome.empty.push(panel.title);
      element(body, "div", "No data").className = "nothing";
    } catch (error) {
      outcome.wrong.push(panel.title + ": " + error.message);
      element(body, "div", error.message).className = "wrong";
    }
  }
  window.outcome = outcome;
}

show().catch((error) => { window.outcome = { empty: [], wrong: [String(error)] }; });
