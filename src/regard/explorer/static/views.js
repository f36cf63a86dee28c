// The views, in the order in which a newcomer meets them.

import { arithmeticView } from "./arithmetic.js";
import { compareView } from "./compare.js";
import { costView } from "./cost.js";
import { generateView } from "./generate.js";
import { linesView } from "./lines.js";
import { mapView } from "./map.js";
import { overviewView } from "./overview.js";
import { stepsView } from "./steps.js";
import { textView } from "./text.js";
import { theoryView } from "./theory.js";

export const VIEWS = [
  { name: "overview", title: "Overview", make: overviewView },
  { name: "map", title: "Map", make: mapView },
  { name: "text", title: "Text", make: textView },
  { name: "lines", title: "Lines", make: linesView },
  { name: "arithmetic", title: "Arithmetic", make: arithmeticView },
  { name: "generate", title: "Generate", make: generateView },
  { name: "compare", title: "Compare", make: compareView },
  { name: "steps", title: "Steps", make: stepsView, needsText: false },
  { name: "cost", title: "Cost", make: costView, needsText: false },
  { name: "theory", title: "Theory", make: theoryView, needsText: false },
];
