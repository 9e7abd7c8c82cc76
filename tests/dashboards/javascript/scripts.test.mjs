// The scripts of the dashboard and of the report, without a browser: `node --test`.
import assert from "node:assert/strict";
import { test } from "node:test";

import { element, load, response, until } from "./browser.mjs";

test("a cell that a spreadsheet would run begins with an apostrophe", () => {
  const { safeCell } = load(["assets/csv.js"]).dashAgGridFunctions;
  assert.equal(safeCell("=1+1"), "'=1+1");
  assert.equal(safeCell("  @x"), "'  @x");
  assert.equal(safeCell("＝1"), "'＝1");
  assert.equal(safeCell("rank 2"), "rank 2");
  assert.equal(safeCell(-2.5), -2.5);
  assert.equal(safeCell(null), "");
  assert.equal(safeCell("a\u202eb\n"), "a\\u{202e}b\\u{a}");
});

test("a host is shown without its domain, so that its number is in view", () => {
  const window = load(["assets/lists.js"], { React: { createElement: (_kind, _properties, text) => text } });
  const { Place } = window.dashAgGridComponentFunctions;
  assert.equal(Place({ value: "host gpu-node-0017.cluster.example.org + 1" }), "gpu-node-0017 + 1");
  assert.equal(Place({ value: "host node0017" }), "node0017");
  assert.equal(Place({ value: "host 10.0.0.17" }), "host 10.0.0.17");
  assert.equal(Place({ value: "ranks 3 to 5" }), "ranks 3 to 5");
  assert.equal(Place({ value: null }), "-");
});

function savingCsv(answers) {
  const box = element();
  const button = Object.assign(element({}, { save: "csv", figure: "trend" }), { parentElement: box });
  const links = [];
  const asked = [];
  const window = load(["assets/save.js"], {
    location: { pathname: "/run/r/", search: "?rank=1", assign: (to) => asked.push(`went to ${to}`) },
    fetch: async (url) => {
      asked.push(url);
      return answers.shift();
    },
  });
  window.URL = Object.assign(function () {}, { createObjectURL: () => "blob:x", revokeObjectURL() {} });
  window.document.createElement = (kind) => {
    const made = element();
    if (kind === "a") {
      links.push(made);
    }
    return made;
  };
  window.fire("click", { target: { closest: () => button } });
  return { asked, links, status: () => box.children[0]?.textContent };
}

test("numbers that are not ready are waited for, and the page stays", async () => {
  const name = { "Content-Disposition": "attachment; filename*=UTF-8''r%20one-trend.csv" };
  const saving = savingCsv([response(503, "reading 3 of 8\n"), response(200, "a,b", name)]);
  await until(() => saving.status() === "reading 3 of 8");
  await until(() => saving.links.length === 1);
  assert.deepEqual(saving.asked, Array(2).fill("/run/r/data/trend.csv?rank=1"));
  assert.equal(saving.links[0].download, "r one-trend.csv");
  assert.equal(saving.links[0].clicks, 1);
  assert.equal(saving.status(), "");
});

test("numbers that do not exist are said to be missing once", async () => {
  const saving = savingCsv([response(404, "No step was recorded.\n")]);
  await until(() => saving.status() === "No step was recorded.");
  assert.equal(saving.asked.length, 1);
  assert.equal(saving.links.length, 0);
});

function drawing() {
  const drawn = [];
  const idle = [];
  const resized = [];
  let enters;
  const window = load(["assets/draw.js"], {
    IntersectionObserver: function (call) {
      enters = (graph) => call([{ isIntersecting: true, target: graph }]);
      return { observe() {}, unobserve() {} };
    },
    requestIdleCallback: (call) => idle.push(call),
  });
  const plotly = {
    react: (graph, figure) => Promise.resolve(drawn.push(`${graph.name}: ${figure}`)),
    Plots: { resize: (graph) => Promise.resolve(resized.push(graph.name)) },
  };
  window.rankscopeDrawing.order(plotly);
  const graph = (name) => ({ name, isConnected: true, clientWidth: 800, clientHeight: 300 });
  return { drawn, idle, resized, plotly, graph, window, enter: (entered) => enters(entered) };
}

test("a figure in view is drawn first, the others one by one when the browser is idle", () => {
  const { drawn, idle, plotly, graph, enter } = drawing();
  const [top, middle, bottom] = ["top", "middle", "bottom"].map(graph);
  [top, middle, bottom].forEach((figure) => plotly.react(figure, "new"));
  enter(bottom);
  assert.deepEqual(drawn, ["bottom: new"]);
  idle.shift()();
  assert.deepEqual(drawn, ["bottom: new", "top: new"]);
  idle.shift()();
  assert.deepEqual(drawn, ["bottom: new", "top: new", "middle: new"]);
  assert.equal(idle.length, 0);
});

test("a figure that changes before it is drawn is drawn once, as it is then; later changes are drawn at once", async () => {
  const { drawn, plotly, graph, enter } = drawing();
  const figure = graph("figure");
  const both = [plotly.react(figure, "first"), plotly.react(figure, "second")];
  enter(figure);
  await Promise.all(both);
  plotly.react(figure, "third");
  assert.deepEqual(drawn, ["figure: second", "figure: third"]);
});

test("all figures are drawn before a page is printed, and none of a page that was left", async () => {
  const { drawn, idle, plotly, graph, window } = drawing();
  const left = plotly.react(Object.assign(graph("left"), { isConnected: false }), "new");
  plotly.react(graph("here"), "new");
  window.fire("beforeprint");
  await left;
  assert.deepEqual(drawn, ["here: new"]);
  idle.shift()();
  assert.equal(idle.length, 0);
});

test("a figure is sized again only if its place has changed", async () => {
  const { resized, plotly, graph, enter } = drawing();
  const figure = graph("figure");
  plotly.react(figure, "new");
  enter(figure);
  await plotly.Plots.resize(figure);
  assert.deepEqual(resized, []);
  for (const width of [400, 800]) {
    figure.clientWidth = width;
    await plotly.Plots.resize(figure);
  }
  assert.deepEqual(resized, ["figure", "figure"]);
});

function capturing(answers, { steps = "3" } = {}) {
  const status = element();
  const asked = [];
  const parent = element({ ".progress-text": status, button: [], input: { value: steps } });
  const button = Object.assign(element({}, { capture: "/api/run/r/capture" }), { parentElement: parent });
  const window = load(["assets/capture.js"], {
    fetch: async (url, options) => {
      asked.push([url, options.body]);
      return answers.shift();
    },
  });
  window.fire("click", { target: { closest: () => button } });
  return { status, asked };
}

test("a capture is followed until its steps are known", async () => {
  const { status, asked } = capturing([
    response(202, { request_id: "1-a" }),
    response(200, { state: "asked" }),
    response(200, { state: "accepted", first_step: 7, last_step: 9 }),
  ]);
  await until(() => status.textContent.includes("Steps 7 to 9"));
  assert.deepEqual(asked[0], ["/api/run/r/capture", '{"steps":3}']);
  assert.equal(asked[2][0], "/api/run/r/capture/1-a");
});

test("a refused capture has the server's reason, and a number that is none is not sent", async () => {
  const refused = capturing([response(409, { error: "the run is over" })]);
  await until(() => refused.status.textContent.startsWith("the run is over."));
  const none = capturing([], { steps: "x" });
  assert.match(none.status.textContent, /whole number/);
  assert.equal(none.asked.length, 0);
});

test("a trace goes only to a tab that answers from the origin of Perfetto", async () => {
  const posted = [];
  const tab = { closed: false, close() {}, postMessage: (message, to) => posted.push([message, to]) };
  const parent = element({ ".progress-text": element(), button: [], "[data-export]": element({}, { export: "/run/r/perfetto" }) });
  const button = Object.assign(element({}, { perfetto: "https://ui.perfetto.dev" }), { parentElement: parent });
  const window = load(["assets/capture.js"], {
    open: () => tab,
    fetch: async (url) => (url.includes("ask=1") ? response(200, { bytes: 1, title: "t", file: "f" }) : response(200, "trace")),
  });
  window.fire("click", { target: { closest: () => button } });
  await until(() => posted.length > 0);
  const pong = (source, origin) => window.fire("message", { source, origin, data: "PONG" });
  pong(tab, "https://elsewhere.example");
  pong({}, "https://ui.perfetto.dev");
  assert.ok(posted.every(([message, to]) => message === "PING" && to === "*"));
  pong(tab, "https://ui.perfetto.dev");
  const [message, to] = posted.at(-1);
  assert.equal(to, "https://ui.perfetto.dev");
  assert.equal(message.perfetto.title, "t");
});

// A tab that opens /run/r with these answers of the server, one after the other; `asked` are the addresses of its requests.
function opening(answers) {
  const asked = [];
  const root = element();
  const appended = [];
  const window = load(["assets/early.js", "assets/page.js"], {
    location: { pathname: "/run/r", search: "?rank=1" },
    document: {
      addEventListener() {},
      cookie: "rankscope-zone=UTC",
      createElement: element,
      currentScript: element({}, { plotly: "/plotly.js" }),
      documentElement: root,
      head: { append: (part) => appended.push(part) },
      querySelectorAll: () => [],
    },
    fetch: async (url) => {
      asked.push(url);
      return answers.shift();
    },
  });
  return { window, asked, appended, open: window.dash_clientside.rankscope_page.open };
}

test("a page is asked for before the scripts that show it run, and only once", async () => {
  const page = (title) => response(200, { content: title, title, shown: { path: "/run/r" } });
  const { asked, open } = opening([page("first"), page("second")]);
  const address = "/api/page?path=%2Frun%2Fr&search=%3Frank%3D1&scheme=light";
  assert.deepEqual(asked, [address]);
  assert.deepEqual(
    [...(await open("/run/r", null, "?rank=1"))].map((part) => part.scheme ?? part),
    ["first", "first", "light"],
  );
  assert.deepEqual(asked, [address]);
  await open("/run/r", 1, "?rank=1");
  assert.deepEqual(asked, [address, address], "a page that is made again is asked for again");
});

test("a page whose early request failed is asked for again", async () => {
  const { asked, open } = opening([response(401), response(200, { content: "c", title: "t", shown: {} })]);
  assert.equal((await open("/run/r", null, "?rank=1"))[0], "c");
  assert.equal(asked.length, 2);
});

test("what draws figures is loaded early only by a page with a figure, and runs only once it is awaited", async () => {
  const part = (type, children) => ({ type, props: { children } });
  const text = [part("P", "no figure"), part("Div", null), null];
  const without = opening([response(200, { content: text })]);
  assert.equal((await without.window.rankscopePage.first.answer).content.length, text.length);
  assert.deepEqual(without.appended, []);

  const { window, appended } = opening([response(200, { content: part("Div", [...text, part("Figure", part("Graph"))]) })]);
  await until(() => appended.length > 0);
  assert.deepEqual([appended[0].rel, appended[0].href], ["preload", "/plotly.js"]);
  assert.ok(appended.every((loading) => loading.rel === "preload"));
  const ordered = [];
  window.rankscopeDrawing = { order: (plotly) => ordered.push(plotly) };
  const drawing = Promise.all([window.Plotly, window.Plotly]);
  await until(() => appended.some((part) => part.src));
  appended.at(-1).onload();
  await drawing;
  assert.deepEqual(appended.flatMap((part) => part.src ?? []), ["/plotly.js"]);
  assert.equal(ordered.length, 1);
});

test("the library of the tables is loaded once, with the first table, and its tables stay the same", async () => {
  let loader = null;
  const appended = [];
  const window = load(["assets/grid.js"], {
    React: { lazy: (load) => (loader = load), createElement: () => null, Suspense: {} },
    document: {
      createElement: element,
      getElementById: () => Object.assign(element(), { getAttribute: () => "/grid.js" }),
      head: { append: (part) => appended.push(part) },
    },
  });
  const before = window.dash_ag_grid.AgGrid;
  const api = window.dash_ag_grid.getApiAsync("g");
  const loaded = loader();
  assert.deepEqual(appended.map((part) => part.src), ["/grid.js"]);
  const Real = () => null;
  window.dash_ag_grid = { AgGrid: Real, getApi: () => null, getApiAsync: async (id) => `api of ${id}` };
  appended[0].onload();
  assert.equal((await loaded).default, Real);
  assert.equal(await api, "api of g");
  assert.equal(window.dash_ag_grid.AgGrid, before);
  assert.ok(window.dash_ag_grid.getApi);
});

test("a page whose session has ended goes to the login and comes back", async () => {
  const window = load(["assets/login.js"], {
    fetch: async () => response(401, "", { "X-Rankscope-Login": "1" }),
    location: { pathname: "/run/r", search: "?rank=1", assign: (to) => window.went.push(to) },
  });
  await window.fetch("/_dash-update-component");
  assert.deepEqual(window.went, ["/login?next=%2Frun%2Fr%3Frank%3D1"]);
});

test("a runbook is a link only to a web address", () => {
  const React = { createElement: (kind, props, ...children) => ({ kind, props, children }) };
  const { Runbook } = load(["assets/lists.js"], { React }).dashAgGridComponentFunctions;
  assert.equal(Runbook({ data: { runbook: "https://books/x" } }).props.href, "https://books/x");
  for (const runbook of ["javascript:alert(1)", "data:text/html,x", "", undefined]) {
    assert.equal(Runbook({ data: { runbook } }).kind, "span");
  }
});

test("of a figure's layout only what was dragged over counts", () => {
  const noUpdate = {};
  const { zoomed } = load(["assets/scheme.js"], { dash_clientside: { no_update: noUpdate } }).dash_clientside.rankscope;
  assert.equal(zoomed({ "xaxis.autorange": true }), "all");
  assert.deepEqual([...zoomed({ "xaxis.range[0]": 1, "xaxis.range[1]": 5 })], [1, 5]);
  assert.equal(zoomed({ autosize: true }), noUpdate);
  assert.equal(zoomed(null), noUpdate);
});

// The report ---------------------------------------------------------------------------------------------------------------------

function table(values, { number }) {
  const rows = values.map((text) => ({ cells: [{ textContent: text }], text }));
  const body = { rows, append: (...ordered) => (body.rows = ordered) };
  const head = element();
  const tableElement = Object.assign(element({ th: [head] }), { tBodies: [body] });
  Object.assign(head, { parentNode: { children: [head] }, closest: () => tableElement });
  head.classList.contains = (name) => name === "n" && number;
  const button = element();
  button.closest = (selector) => (selector === "th" ? head : button);
  button.classList.contains = (name) => name === "sort";
  return { click: (window) => window.fire("click", { target: button }), order: () => body.rows.map((row) => row.text), head };
}

test("tables of a report are ordered by value, and what is not known comes last both ways", () => {
  const window = load(["report/page.js"]);
  const numbers = table(["10", "-", "9", "1,000"], { number: true });
  numbers.click(window);
  assert.deepEqual(numbers.order(), ["9", "10", "1,000", "-"]);
  assert.equal(numbers.head.attributes["aria-sort"], "ascending");
  numbers.click(window);
  assert.deepEqual(numbers.order(), ["1,000", "10", "9", "-"]);
  const words = table(["node10", "node9"], { number: false });
  words.click(window);
  assert.deepEqual(words.order(), ["node9", "node10"]);
});
