// The views in the order of their tabs.

import { arithmeticView } from "../views/arithmetic/arithmetic-view.js";
import { compareView } from "../views/compare/compare-view.js";
import { costView } from "../views/cost/cost-view.js";
import { galleryView } from "../views/gallery/gallery-view.js";
import { generateView } from "../views/generate/generate-view.js";
import { linesView } from "../views/lines/lines-view.js";
import { mapView } from "../views/map/map-view.js";
import { overviewView } from "../views/overview/overview-view.js";
import { stepsView } from "../views/steps/steps-view.js";
import { textView } from "../views/text/text-view.js";
import { theoryView } from "../views/theory/theory-view.js";

export const VIEWS = [
  { name: "overview", title: "Overview", create: overviewView },
  { name: "map", title: "Map", create: mapView },
  { name: "text", title: "Text", create: textView },
  { name: "lines", title: "Lines", create: linesView },
  { name: "arithmetic", title: "Arithmetic", create: arithmeticView },
  { name: "generate", title: "Generate", create: generateView },
  { name: "compare", title: "Compare", create: compareView },
  { name: "steps", title: "Steps", create: stepsView, needsText: false },
  { name: "cost", title: "Cost", create: costView, needsText: false },
  { name: "theory", title: "Theory", create: theoryView, needsText: false },
  { name: "gallery", title: "Gallery", create: galleryView, needsText: false },
];
