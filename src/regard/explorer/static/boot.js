// A page of its own: its questions go to the server that it came from, or to the answers that came with the file.

import { start } from "./main.js";
import { fileSource, httpSource } from "./source.js";

const packed = document.getElementById("regard-answers");
const source = packed ? fileSource(JSON.parse(packed.textContent).answers) : httpSource(document.baseURI);
start(document.getElementById("regard"), source);
