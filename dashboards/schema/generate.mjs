// Makes JSON Schemas of Grafana's own types: `node generate.mjs INTO`. Run by checks/schema.py, where npm has installed.
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const here = process.cwd();
const { createGenerator } = createRequire(here + "/")("ts-json-schema-generator");
const types = here + "/node_modules/@grafana/schema/dist/types/raw";

function schema(folder, type) {
  const path = `${types}/${folder}/x/types.gen.d.ts`;
  const tsconfig = here + "/tsconfig.json";
  return createGenerator({ path, type, tsconfig, skipTypeCheck: true }).createSchema(type);
}

const made = { dashboard: schema("dashboard", "Dashboard") };
for (const kind of ["bargauge", "heatmap", "stat", "statetimeline", "table", "timeseries"]) {
  made[`${kind} options`] = schema(`composable/${kind}/panelcfg`, "Options");
}
for (const kind of ["heatmap", "statetimeline", "table", "timeseries"]) {
  made[`${kind} custom`] = schema(`composable/${kind}/panelcfg`, "FieldConfig");
}
writeFileSync(process.argv[2], JSON.stringify(made));
