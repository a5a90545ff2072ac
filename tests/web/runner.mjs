// Runs models in ONNX Runtime Web: node runner.mjs ENVIRONMENT [BROWSER]. Each line of the standard input is a job of `runs.mjs`,
// or {url, selector}: a page to open, until it has an element. Each line of the standard output is a result. Models run in Node or,
// with the path of a browser, there, in the build of the job's execution provider.

import { createReadStream, existsSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { dirname, extname, join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [environment, browser] = process.argv.slice(2);
const folder = dirname(process.argv[1]);

async function inNode() {
  const { run } = await import("./runs.mjs");
  const ort = await import(pathToFileURL(join(environment, "node_modules/onnxruntime-web/dist", "ort.node.min.mjs")));
  ort.env.wasm.numThreads = 1;
  return { answer: job => run(ort, job), close: () => {} };
}

async function inBrowser() {
  const types = { ".html": "text/html", ".mjs": "text/javascript", ".wasm": "application/wasm" };
  const server = createServer((request, response) => {
    const path = request.url.split("?")[0];
    const file = join(path.startsWith("/node_modules/") ? environment : folder, path);
    if (path === "/") return response.writeHead(200, { "Content-Type": "text/html" }).end("<!doctype html>");
    if (!existsSync(file)) return response.writeHead(404).end();
    response.writeHead(200, { "Content-Type": types[extname(file)] ?? "application/octet-stream" });
    return createReadStream(file).pipe(response);
  });
  await new Promise(listening => server.listen(0, "127.0.0.1", listening));

  const { chromium } = createRequire(join(environment, "package.json"))("playwright-core");
  const args = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"];
  const opened = await chromium.launch({ executablePath: browser, args });
  const pages = {};
  const pageOf = async build => {
    const page = await opened.newPage();
    page.on("console", message => console.error(message.text()));
    await page.goto(`http://127.0.0.1:${server.address().port}/`);
    await page.evaluate(async build => {
      globalThis.ort = await import(`/node_modules/onnxruntime-web/dist/ort.${build}.min.mjs`);
      ort.env.wasm.numThreads = 1;
    }, build);
    return page;
  };
  const run = async job => {
    const [build] = job.options.executionProviders;
    pages[build] ??= await pageOf(build);
    return pages[build].evaluate(async job => (await import("/runs.mjs")).run(ort, job), job);
  };
  const open = async ({ url, selector }) => {
    const other = await opened.newPage();
    try {
      await other.goto(url);
      await other.waitForSelector(selector, { timeout: 0 });
      return { text: await other.innerText("body") };
    } finally {
      await other.close();
    }
  };
  const close = async () => {
    await opened.close();
    server.close();
  };
  return { answer: job => (job.url ? open(job) : run(job)), close };
}

const { answer, close } = await (browser ? inBrowser() : inNode());
for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await answer(JSON.parse(line))) + "\n");
}
await close();
