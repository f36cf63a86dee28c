// Entry point of the web page: data come from the server, or from the responses inside an exported file.

import { fileSource } from "../transport/file-source.js";
import { httpSource } from "../transport/http-source.js";
import { startExplorer } from "./main.js";

const packed = document.getElementById("regard-responses");
const source = packed ? fileSource(JSON.parse(packed.textContent ?? "").responses) : httpSource(document.baseURI);
const root = document.getElementById("regard");
if (root) startExplorer(root, source);
