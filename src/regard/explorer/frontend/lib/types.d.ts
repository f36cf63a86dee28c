// The types that modules share: the state, the context of a view, and the responses of all endpoints.

/** A value that a request sends as JSON. Null and undefined are the same as a missing parameter. */
export type Json = string | number | boolean | null | undefined | readonly Json[] | { readonly [name: string]: Json };
export type Params = Record<string, Json>;

/** An array of a response. */
export interface PackedArray<Data = Float32Array> {
  data: Data;
  shape: number[];
}
export interface Payload<Values = object, Arrays = object> {
  values: Values;
  arrays: Arrays;
}

export type Matrix = number[][];
export type Theme = "light" | "dark";
export type ThemeChoice = "auto" | Theme;
export type Pooling = "mean" | "max";
export type ScaleName = "linear" | "log" | "rank";
export type PaletteName = "ink" | "purple-green";
/** The text of queries or of keys. */
export type Side = "query" | "key";
/** A range: the first index, and one past the last. */
export type Range = [number, number];
/** The colors of a palette as red, green, blue. */
export type Ramp = Uint8ClampedArray;
/** The content of an element; null is omitted. */
export type Child = Node | string | number | null | undefined | readonly Child[];

export interface Cell {
  query: number;
  key: number;
}

export interface Text {
  name: string;
  tokens: string[];
  word_ids: number[];
  /** Label and bytes of the tokens that are parts of a character, by position. */
  partial_characters?: PartialCharacters;
}
export type PartialCharacters = Record<number, [string, string]>;

export interface Layer {
  index: number;
  path: string;
  head_indices: number[];
  num_queries: number;
  num_keys: number;
  query_text: number;
  key_text: number;
  query_offset: number;
  is_cross_attention: boolean;
  can_hide_keys: boolean;
}

export interface GenerationStep {
  position: number;
  text: string;
  probability: number;
  top_tokens: Array<[string, number]>;
}
export interface Generation {
  first_position: number;
  steps: GenerationStep[];
}

/** The recording of one text. */
export interface Session {
  id: number;
  title: string;
  text?: string | null;
  model: string;
  texts: Text[];
  layers: Layer[];
  generation?: Generation | null;
  can_generate: boolean;
}

/** The response of the endpoint `state`. */
export interface ServerState {
  sessions: Session[];
  models: Array<{ name: string; title: string }>;
  examples?: Array<{ title: string; text: string; model: string }>;
  server_id?: string;
}

/** The state that all views share. */
export interface State {
  view: string;
  serverState: ServerState | null;
  /** Incremented with each `serverState`, because earlier responses may belong to other sessions. */
  stateVersion: number;
  /** The id of the open session. */
  session: number;
  layer: number | null;
  head: number | null;
  /** The selected cell. */
  query: number | null;
  key: number | null;
  /** The cell under the cursor. */
  hoveredCell: Cell | null;
  /** Tokens selected in the text. */
  pinnedTokens: number[];
  /** The text of the pinned tokens, in cross-attention. */
  pinnedSide: Side;
  /** Whether to show words instead of tokens. */
  showWords: boolean;
  pooling: Pooling;
  scale: "auto" | ScaleName;
  palette: PaletteName;
  hideSink: boolean;
  /** The visible part of the map: left, top and pixels per token. */
  viewport: number[] | null;
  measure: string;
  headOrder: "layer" | "largest" | "smallest";
  kindFilter: string;
  /** The heads of the Lines view. */
  lineHeads: number[] | null;
  lineMass: number;
  lineStart: number;
  generationStep: number | null;
  otherSession: number | null;
  /** The name of the experiment of the Theory view. */
  experiment: string;
  /** The properties of the mechanisms that the Gallery view shows, separated by commas. */
  galleryFilter: string;
  theme: ThemeChoice;
  /** Whether the notebook or the system uses a dark theme. */
  isDarkEnvironment: boolean;
}

export type Listener<T> = (state: T, changed: Set<string>) => void;
export interface Store<T> {
  get(): T;
  set(patch: Partial<T>): void;
  subscribe(listener: Listener<T>): () => void;
}

/** The state, the text and the model of a URL. */
export interface LinkedState {
  state: Partial<State>;
  text?: string | null;
  model?: string | null;
}

export interface MapInfo {
  num_queries: number;
  num_keys: number;
  num_levels: number;
  tile_size: number;
  sink: { key: number; mass: number } | null;
  finest_level?: number;
  sampled_rows?: number | null;
}

/** Measures of one head by name, with the indices of its layer and of the head. */
export type HeadRow = Record<string, number | null | undefined>;
export interface HeadTable {
  columns: string[];
  rows: HeadRow[];
  /** Layer, head and score of the heads of each kind. */
  heads_by_kind: Record<string, Array<[number, number, number]>>;
}

export interface Thumbnails {
  heads?: number[];
  sampled_rows?: number | null;
}
export interface PooledArrays {
  mean: PackedArray;
  max: PackedArray;
}

/** The nodes of an expression in order of evaluation: constants, variables, and operations on earlier nodes. */
export type ExprNode =
  | ["constant", number | boolean]
  | ["variable", string]
  | [operation: string, argumentIndices: number[]];
/** A stage as a tree: a number, a name, null for an argument that is left out, or an operation and its arguments. */
export type StageTree = number | string | null | [operation: string, ...StageTree[]];
export interface NormalizerSpec {
  constants: Record<string, number>;
  stage_specs: Array<{ name: string; variable: string; tree: StageTree }>;
  modifier?: { name: string; nodes: ExprNode[] } | null;
}
/** The value of a stage: a number, a vector or a matrix; booleans for visible pairs, and strings for infinities. */
export type StageValue = number | boolean | string | StageValue[];

export interface StageDescription {
  description?: string;
  formula?: string;
  axes?: string[];
}
export interface Stage extends StageDescription {
  name: string;
  values: StageValue;
}
export interface Steps {
  formula: string;
  stages: Stage[];
  query_labels?: string[];
  key_labels?: string[];
  code?: string;
  latex?: string;
}
export interface StageTemplates {
  stages: Record<string, Record<string, StageDescription>>;
  masks: Record<string, ExprNode[]>;
  normalizers: Record<string, NormalizerSpec>;
  visibility_formulas: Record<string, string>;
  formulas: Record<string, Record<string, string>>;
}

export type InputName = "x" | "w_q" | "w_k" | "w_v" | "q" | "k" | "v";
export type InputMatrices = Partial<Record<InputName, Matrix>>;
export interface WalkthroughExample extends InputMatrices {
  name: string;
  title?: string;
  tokens?: string[];
  corrections?: string[];
}
export interface WalkthroughOptions {
  masks: string[];
  normalizers: string[];
}

/** Scores of a head's vectors, from which an exported file computes the arithmetic of a weight. */
export interface HeadVectors {
  is_supported: boolean;
  scale: number;
  normalizer: string;
  formula: { text: string } | null;
  modifier: { text: string } | null;
  mask: { text: string } | null;
  code: string;
  query_offset: number;
}
export interface HeadVectorArrays {
  q: PackedArray;
  k: PackedArray;
  v: PackedArray;
  visible: PackedArray<Uint8Array>;
  scores?: PackedArray;
}

/** The arithmetic of one weight, from the query and the key to the output. */
export interface CellSteps extends Cell {
  q: number[];
  k: number[];
  v: number[];
  products?: number[] | null;
  scale: number | null;
  score_kind: string;
  dot: number | null;
  scaled: number | null;
  modified_score: number | null;
  is_visible: boolean;
  score: number | null;
  formula: { text: string } | null;
  modifier: { text: string } | null;
  mask: { text: string } | null;
  normalizer: string;
  weight: number;
  row_sum: number;
  statistic?: { name: string; value: number } | null;
  row_max?: number | null;
  exponent?: number | null;
  exp?: number;
  exp_sum?: number;
  argmax_key?: number;
  num_visible_keys?: number;
  weighted_value: number[];
  output: number[];
  code: string;
}

export type QuantityName = "flops" | "bytes" | "seconds";
export interface CostCurve {
  name: string;
  flops: number[];
  bytes: number[];
}
export interface Crossover {
  first: string;
  second: string;
  seq_len: number;
  text: string;
}
export interface Cost {
  seq_lens: number[];
  curves: CostCurve[];
  crossovers?: Crossover[];
  non_attention: { name: string; flops?: number[]; bytes?: number[] };
}
export interface ModelSize {
  embed_dim: number;
  num_heads: number;
  num_layers: number;
  ffn_dim: number;
  gated: boolean;
}
export interface Timing {
  mechanism: string;
  seq_len: number;
  num_heads: number;
  head_dim: number;
  seconds: number;
}
export interface Mechanism {
  name: string;
  description: string;
  formula: string;
}
export interface CostOptions {
  mechanisms: Mechanism[];
  default_mechanisms: string[];
  model_sizes: Array<ModelSize & { title: string }>;
  timings: Timing[];
}

export interface Comparison {
  has_equal_shapes: boolean;
  reason?: string | null;
  heads?: Array<Record<string, number>>;
  columns?: string[];
}

/** An entry of the catalog of mechanisms. */
export interface CatalogEntry {
  family: string;
  name: string;
  idea: string;
  formula: string;
  paper: string;
  example: string;
  reference_test: string;
  exact: boolean;
  exactness: string;
  time_complexity: string;
  memory_complexity: string;
  properties: string[];
}

export type Settings = Record<string, number>;
export interface Experiment {
  name: string;
  description: string;
  sliders: Array<{
    name: string;
    description: string;
    low: number;
    high: number;
    step: number;
    is_integer: boolean;
  }>;
  default_settings: Settings;
  quick_settings: Settings;
}
export interface ExperimentList {
  experiments: Experiment[];
  completed_runs: Array<{ name: string; settings: Settings; seed: number }>;
}
export interface Claim {
  statement: string;
  holds: boolean;
  max_error: number;
  tolerance: number;
  tolerance_reason: string;
  actual: number[];
  expected: number[];
  count: number;
  relation: "equal" | "at most" | "at least";
}
export interface Series {
  label: string;
  style: "line" | "dashed" | "points";
  color_index: number;
  /** Distances from the curve to the edges of a band around it. */
  spread: number[] | null;
  /** JSON has null for NaN. */
  x: Array<number | null>;
  y: Array<number | null>;
}
export interface ChartPanel {
  kind: "lines";
  title: string;
  xlabel: string;
  ylabel: string;
  log_x: boolean;
  log_y: boolean;
  series: Series[];
}
export interface ImagePanel {
  kind: "image";
  title: string;
  xlabel: string;
  ylabel: string;
  signed: boolean;
  array: string;
}
export interface AnimationPanel {
  title: string;
  times: number[];
  groups: number[];
}
export interface ExperimentResult {
  is_consistent: boolean;
  panels: Array<ChartPanel | ImagePanel>;
  animation: AnimationPanel | null;
  claims: Claim[];
  false_claims: Claim[];
}

/** The response of each endpoint. */
export interface Endpoints {
  /** A view may have an endpoint of its own, and declares the type of its response where it reads it. */
  [name: string]: Payload<unknown, unknown>;
  state: Payload<ServerState>;
  run_model: Payload<{ id: number }>;
  generate: Payload<{ id: number; first_position: number }>;
  progress: Payload<{ text: string; fraction: number | null }>;
  heads: Payload<HeadTable>;
  thumbnails: Payload<Thumbnails, PooledArrays>;
  map_info: Payload<MapInfo>;
  tile: Payload<object, { mean: PackedArray; max?: PackedArray }>;
  difference_tile: Endpoints["tile"];
  difference_map: Endpoints["tile"];
  query_weights: Payload<object, { mean: PackedArray }>;
  key_weights: Payload<object, { sum: PackedArray }>;
  top_weights: Payload<{ num_omitted?: number }, LineArrays>;
  cell_steps: Payload<CellSteps>;
  head_vectors: Payload<HeadVectors, HeadVectorArrays>;
  compare: Payload<Comparison>;
  steps: Payload<Steps>;
  stage_templates: Payload<StageTemplates>;
  walkthrough_examples: Payload<WalkthroughOptions & { examples: WalkthroughExample[] }>;
  cost_options: Payload<CostOptions>;
  cost: Payload<Cost>;
  timing: Payload<Timing>;
  experiments: Payload<ExperimentList>;
  experiment: Payload<ExperimentResult, Record<string, PackedArray>>;
  export: Payload<object, { html: PackedArray<Uint8Array<ArrayBuffer>> }>;
}
export type EndpointName = Extract<keyof Endpoints, string>;
export type TileEndpoint = "tile" | "difference_tile" | "difference_map";
export type Request = <Name extends EndpointName>(
  name: Name,
  params: Params,
  signal?: AbortSignal,
) => Promise<Endpoints[Name]>;

/** The stored response of an exported file; null if the file does not contain it. */
export type StoredResponse = <Name extends EndpointName>(name: Name, params: Params) => Promise<Endpoints[Name] | null>;

/** Computes a response of an exported file from stored ones; null for other requests, and if a response is missing. */
export type OfflineEndpoint = (
  storedResponse: StoredResponse,
  name: EndpointName,
  params: Params,
) => Promise<Payload<object, object> | null>;

/** The largest weights of some queries, one entry per line of the Lines view. */
export interface LineArrays {
  query: PackedArray<Int32Array>;
  key: PackedArray<Int32Array>;
  head: PackedArray<Int32Array>;
  weight: PackedArray;
}

export type ConnectionStatus = "lost" | "other" | "back";

/** A data source of the page: a server, a notebook's kernel, or an exported file. */
export interface Source {
  kind: "server" | "widget" | "file";
  request: Request;
  /** Sets the listeners of the connection's status, and of a restart of the server. */
  watch?(onStatus: (status: ConnectionStatus) => void, onRestart: () => void): void;
  /** Sends the next requests to the server with this id. */
  adopt?(serverId: string | undefined): void;
  end?(): void;
}

export type OnProgress = (text: string, fraction?: number | null) => void;

export interface TileRequest {
  key: string;
  name: TileEndpoint;
  params: Params;
}
export interface Tile {
  mean: Float32Array;
  max: Float32Array;
  rows: number;
  columns: number;
  /** The largest absolute values. */
  maximum: Record<Pooling, number>;
  /** The last painted bitmap; see `paintTile`. */
  bitmap?: { name: string; canvas: HTMLCanvasElement };
}
export interface TilePosition {
  level: number;
  row: number;
  column: number;
}

/** What a map shows. */
export interface MapData {
  /** Equal for equal weights. */
  name: string;
  tileRequest(level: number, row: number, column: number): TileRequest;
  numQueries: number;
  numKeys: number;
  numLevels: number;
  /** Cells per side of a tile. */
  tileSize: number;
  rowTokens: string[];
  columnTokens: string[];
  /** Whether the values are differences. */
  signed?: boolean;
  /** The finest available level, in an exported file. */
  finestLevel?: number;
  /** Sampled rows per cell, if the map is a thumbnail of a long text. */
  sampledRows?: number | null;
}

export interface ColorOptions {
  pooling: Pooling;
  scale: ScaleName;
  palette: PaletteName;
  theme: Theme;
}
/** The colors of a level: a value `x` has the color `rampColor(ramp, toFraction(x))`. */
export interface LevelColors {
  name: string;
  ramp: Ramp;
  toFraction(x: number): number;
  signed: boolean;
  maximum: number;
}

/** The tokens of a layer's queries (rows) and keys (columns), their labels and their word ids. */
export interface LayerTokens {
  rows: string[];
  columns: string[];
  rowLabels: string[];
  columnLabels: string[];
  rowWords: number[];
  columnWords: number[];
  rowParts: PartialCharacters;
  columnParts: PartialCharacters;
  isCrossAttention: boolean;
  queryOffset: number;
}

/** What the page shares with its parts: the source, the store, the caches and the callbacks of the shell. */
export interface PageContext {
  root: HTMLElement;
  source: Source;
  store: Store<State>;
  requestCache: import("../transport/request-cache.js").RequestCache;
  tiles: import("../transport/tile-cache.js").TileCache;
  request: Request;
  /** Equal requests share one response until the sessions change. */
  requestCached<Name extends EndpointName>(name: Name, params: Params): Promise<Endpoints[Name]>;
  headTable(session: number, stateVersion: number): Promise<HeadTable>;
  /** Announces a text to screen readers. */
  announce(text: string): void;
  showError(error: unknown): void;
  /** Called after each response; `isAction` is true for long requests. */
  onResponse(isAction: boolean): void;
  showConnectionStatus(status: ConnectionStatus): void;
  showProgress: OnProgress;
  /** Runs a model on a text and opens the session; `patch` returns further state. */
  runModel(text: string, model: string, patch?: () => Partial<State>): Promise<void>;
  /** Requests the sessions, then sets further state. */
  refresh(patch?: Partial<State>): Promise<void>;
  applyServerState(serverState: ServerState, patch?: Partial<State>): void;
  /** Texts by session id, for sessions that the server may have dropped. */
  history: Map<number, { text: string; model: string }>;
  /** The number of model runs so far. */
  runCount: number;
  /** Cells opened in Arithmetic, which an exported file contains. */
  openedCells: Set<string>;
  /** Maps that can be exported. */
  visibleMaps: Array<import("../charts/map/head-map.js").HeadMap>;
}

/** The context of a view. Its subscriptions end, and its callbacks of `end` are called, when the view closes. */
export interface Context extends PageContext {
  subscribe(listener: Listener<State>): void;
  end(callback: () => void): void;
}

/** An entry of the list of views; `create` returns the section element. */
export interface View {
  name: string;
  title: string;
  create(context: Context): HTMLElement;
  /** False for a view that does not need an open text. */
  needsText?: boolean;
}
