// The data of the widgets, as tools/docs/guide/widget_data.py writes it.

import type { Matrix, StageTemplates } from "../../../../src/regard/explorer/frontend/lib/types.js";

export interface WordData {
  tokens: string[];
  x: Matrix;
  w_q: Matrix;
  w_k: Matrix;
  w_v: Matrix;
}

export interface PaintData {
  cans: string[];
  /** The direction of each label, in degrees. */
  angles: number[];
  /** The labels as vectors. */
  k: Matrix;
  /** Red, green and blue of each paint, from 0 to 255. */
  v: Matrix;
  query: { angle: number; length: number };
}

export interface HeadData {
  head: number;
  q: Matrix;
  k: Matrix;
  v: Matrix;
}

export interface SentenceData {
  tokens: string[];
  layer: number;
  heads: HeadData[];
}

export interface ModelData {
  /** The most likely next tokens and their probabilities, by position. */
  predictions: Array<Array<[token: string, probability: number]>>;
  /** By layer and head. */
  weights: Matrix[][];
}

export interface GuideData {
  templates: StageTemplates;
  words: WordData;
  saturation: { q: Matrix; k: Matrix };
  paint: PaintData;
  sentence: SentenceData;
  model: ModelData;
}
