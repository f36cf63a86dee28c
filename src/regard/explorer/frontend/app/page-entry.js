// Entry point of the web page: data come from the server, or from the responses inside an exported file.

import { startExplorer } from "./main.js";
import { fileSource, httpSource } from "../transport/data-sources.js";

const packed = document.getElementById("regard-responses");
const source = packed ? fileSource(JSON.parse(packed.textContent).responses) : httpSource(document.baseURI);
startExplorer(document.getElementById("regard"), source);
