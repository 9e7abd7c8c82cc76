// A window without a page, as far as the scripts of the dashboard use one: each script is run in one of its own.
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import vm from "node:vm";

const SOURCES = join(dirname(fileURLToPath(import.meta.url)), "../../../dashboards/src/rankscope/dashboards");

// Runs scripts, named from the folder of the dashboards, and returns their window. `parts` are added to it.
export function load(names, parts = {}) {
  const listeners = {};
  const listen = (kind, call) => (listeners[kind] ??= []).push(call);
  const window = {
    addEventListener: listen,
    removeEventListener: (kind, call) => (listeners[kind] = listeners[kind].filter((other) => other !== call)),
    dispatchEvent: () => true,
    document: { addEventListener: listen, documentElement: element(), querySelectorAll: () => [], createElement: element },
    location: { pathname: "/", search: "", origin: "http://here", assign: (to) => window.went.push(to) },
    history: { pushState: (_state, _title, to) => window.went.push(to) },
    matchMedia: () => ({ matches: false, addEventListener() {} }),
    localStorage: { getItem: () => null, setItem() {} },
    went: [],
    CustomEvent,
    URL,
    URLSearchParams,
    Intl,
    Blob,
    setTimeout: (call, _ms, ...given) => setTimeout(call, 0, ...given),
    clearInterval,
    setInterval: (call) => setInterval(call, 1),
    fire: (kind, event) => (listeners[kind] ?? []).forEach((call) => call(event)),
    ...parts,
  };
  window.window = window;
  for (const name of names) {
    vm.runInNewContext(readFileSync(join(SOURCES, name), "utf8"), window, { filename: name });
  }
  return window;
}

// An element with a data set and children, found by the selectors in `found`.
export function element(found = {}, dataset = {}) {
  const made = {
    dataset,
    attributes: {},
    textContent: "",
    children: [],
    classList: { contains: () => false, add() {} },
    append: (...parts) => made.children.push(...parts),
    click: () => made.clicks++,
    clicks: 0,
    closest: () => made,
    getAttribute: (name) => made.attributes[name] ?? null,
    removeAttribute: (name) => delete made.attributes[name],
    setAttribute: (name, value) => (made.attributes[name] = value),
    querySelector: (selector) =>
      found[selector] ?? made.children.find((child) => selector === `[role=${child.attributes?.role}]`) ?? null,
    querySelectorAll: (selector) => found[selector] ?? [],
  };
  return made;
}

// A response of the server.
export function response(status, body = "", headers = {}) {
  return new Response(typeof body === "string" ? body : JSON.stringify(body), { status, headers });
}

// Waits until a condition holds.
export async function until(holds) {
  for (let tries = 0; tries < 1000 && !holds(); tries++) {
    await new Promise((go) => setTimeout(go, 1));
  }
  if (!holds()) {
    throw new Error(`not in time: ${holds}`);
  }
}
