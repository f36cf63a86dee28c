import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { createServer } from "node:http";
import { after, test } from "node:test";
import { errorMessage, httpSource } from "../../../../src/regard/explorer/frontend/transport/http-source.js";
import { Reconnection } from "../../../../src/regard/explorer/frontend/transport/reconnect.js";
import { decodeBase64 } from "../../../../src/regard/explorer/frontend/transport/unpack.js";
import { PYTHON } from "../example-session.js";

const KEY = "the-key";
const packed = Buffer.from(decodeBase64(PYTHON.packed["values only"]));
const servers = [];
after(() => {
  for (const server of servers) server.close();
});

/** Starts a server; returns the address of its page. `respond` gets the request and sends the response. */
async function start(respond) {
  const server = createServer(respond);
  servers.push(server);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  server.unref();
  return `http://127.0.0.1:${server.address().port}/${KEY}/`;
}

const send = (response, status, body) => {
  response.writeHead(status, { connection: "close" });
  response.end(body);
};

test("a request is sent to the endpoint, with the id of the server", async () => {
  const requests = [];
  const base = await start(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    requests.push([request.method, request.url, request.headers["x-server-id"], JSON.parse(body)]);
    send(response, 200, packed);
  });
  const source = httpSource(base);
  assert.deepEqual((await source.request("state", { a: 1 })).values, { n: [1, null] });
  source.adopt("server-7");
  await source.request("heads", {});
  assert.deepEqual(requests, [
    ["POST", `/${KEY}/api/state`, undefined, { a: 1 }],
    ["POST", `/${KEY}/api/heads`, "server-7", {}],
  ]);
});

test("after a restart of the server, requests with session ids wait for a new server id", async () => {
  const base = await start((request, response) => send(response, request.headers["x-server-id"] ? 409 : 200, packed));
  const source = httpSource(base);
  let numRestarts = 0;
  source.watch(
    () => {},
    () => {
      numRestarts += 1;
    },
  );
  source.adopt("old");
  await assert.rejects(source.request("tile", {}), { name: "AbortError" });
  await assert.rejects(source.request("tile", {}), { name: "AbortError" });
  assert.equal(numRestarts, 1);
  await source.request("state", {});
  source.adopt(undefined);
  await source.request("tile", {});
});

test("the error of the server is raised", async () => {
  const base = await start((_, response) => send(response, 400, JSON.stringify({ error: "head must be 0" })));
  await assert.rejects(httpSource(base).request("tile", {}), { message: "head must be 0" });
});

test("a response without a message is described by its status", () => {
  const bytes = (text) => new TextEncoder().encode(text).buffer;
  assert.equal(errorMessage(500, bytes("oops")), "The server responded with status 500.");
  assert.match(errorMessage(404, bytes("")), /address of this page is out of date/);
});

test("a server that proves to have the key is back, another one is not", async () => {
  let secret = KEY;
  const base = await start((request, response) => {
    const nonce = request.url.split("/").at(-1);
    const proof = createHmac("sha256", secret).update(`${request.socket.localPort} ${nonce}`).digest("hex");
    send(response, 200, JSON.stringify({ proof }));
  });
  const connection = new Reconnection(base, () => {});
  assert.equal(await connection.attempt(), "back");
  secret = "another";
  assert.equal(await connection.attempt(), "other");
});

test("a server without proofs is another one, and no server is a lost one", async () => {
  const base = await start((_, response) => send(response, 200, "<html>"));
  assert.equal(await new Reconnection(base, () => {}).attempt(), "other");
  assert.equal(await new Reconnection("http://127.0.0.1:1/key/", () => {}).attempt(), "lost");
});

test("all callers wait for one series of attempts", async () => {
  const statuses = [];
  let numRequests = 0;
  const base = await start((request, response) => {
    numRequests += 1;
    const nonce = request.url.split("/").at(-1);
    const proof = createHmac("sha256", KEY).update(`${request.socket.localPort} ${nonce}`).digest("hex");
    send(response, 200, JSON.stringify({ proof }));
  });
  const connection = new Reconnection(base, (status) => statuses.push(status));
  await Promise.all([connection.waitForServer(), connection.waitForServer()]);
  assert.deepEqual(statuses, ["lost", "back"]);
  assert.equal(numRequests, 1);
  assert.ok(!connection.isLost);
});
