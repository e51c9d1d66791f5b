// The page: reads the API, and writes text nodes only, so nothing that came from a task is ever read as HTML.

const main = document.getElementById("main");
const notice = document.getElementById("notice");
const STATES = ["", "PENDING", "RECEIVED", "STARTED", "SUCCESS", "FAILURE", "RETRY", "REVOKED", "REJECTED", "IGNORED",
  "TIMED_OUT", "CHILD_LOST", "UNKNOWN"];
const SPANS = [["15m", "15 minutes"], ["1h", "1 hour"], ["6h", "6 hours"], ["1d", "1 day"], ["7d", "7 days"]];
const REFRESH_MS = 1000;
const PAGE_ROWS = 50;
const FIRST_ROWS = "400ms"; // a page of a list ends after it; the next one continues
const SEARCH_MS = 60000; // a search goes through so much time by itself
const SVG = "http://www.w3.org/2000/svg";

// ---------------------------------------------------------------- elements

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const kind = (column) => (column.number ? "number" : null);
const row = (columns, one) => h("tr", {}, columns.map((column) =>
  h("td", { class: kind(column), "data-label": column.name }, column.of(one))));

function table(caption, columns, rows) {
  return h("table", {},
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, columns.map((one) => h("th", { scope: "col", class: kind(one) }, one.name)))),
    h("tbody", {}, rows.map((one) => row(columns, one))));
}

function when(text) {
  if (!text) return "";
  const moment = new Date(text);
  if (Number.isNaN(moment.getTime())) return text;
  const shown = moment.toLocaleString(undefined, {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });
  return h("time", { datetime: text, title: text }, shown);
}

function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 1) return `${Number((value * 1000).toPrecision(3))} ms`;
  if (value < 60) return `${Number(value.toPrecision(3))} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

function bytes(value) {
  let number = value, unit = "B";
  for (const larger of ["KiB", "MiB", "GiB", "TiB"]) {
    if (number < 1024) break;
    number /= 1024;
    unit = larger;
  }
  return `${unit === "B" ? number : number.toFixed(1)} ${unit}`;
}

const KIND = { SUCCESS: "good", FAILURE: "bad", RETRY: "wait", REVOKED: "dim", REJECTED: "bad", STARTED: "run" };
const state = (task) => h("span", { class: `state ${KIND[task.state] || ""}` }, task.state,
  task.event && ["TIMED_OUT", "CHILD_LOST", "UNKNOWN"].includes(task.event) ? ` (${task.event})` : "");
const short = (text, most = 160) => (text && text.length > most ? `${text.slice(0, most)}…` : text || "");

// ---------------------------------------------------------------- addresses

function link(page, query = {}) {
  const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return `#/${page}${given ? `?${given}` : ""}`;
}
const taskLink = (id, text) => h("a", { href: `#/task/${encodeURIComponent(id)}` }, text || id);

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/");
  return { page, rest: rest.join("/"), query: Object.fromEntries(new URLSearchParams(query || "")) };
}

async function api(path, query = {}) {
  const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  const answer = await fetch(`${path}${given ? `?${given}` : ""}`, { headers: { Accept: "application/json" } });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.detail || answer.statusText);
  return body;
}

// ---------------------------------------------------------------- plots

function plot(title, buckets, series, stepS) {
  const width = 1000, height = 140, top = 16, bottom = 16;
  const most = Math.max(...buckets.map((one) => Math.max(...series.map((line) => line.of(one) || 0),
    series.filter((line) => line.bar).reduce((sum, line) => sum + (line.of(one) || 0), 0))), 0);
  const x = (number) => (number * width) / buckets.length;
  const y = (value) => height - bottom - (most ? (value / most) * (height - top - bottom) : 0);
  const drawn = [];
  buckets.forEach((bucket, number) => {
    let below = 0;
    for (const line of series.filter((one) => one.bar)) {
      const value = line.of(bucket) || 0;
      if (value) {
        drawn.push(s("rect", {
          x: x(number) + 0.5, width: Math.max(1, width / buckets.length - 1), y: y(below + value),
          height: Math.max(1, y(below) - y(below + value)), class: `fill-${line.kind}`,
        }, s("title", {}, `${new Date(bucket.time).toLocaleString()}: ${value} ${line.name}`)));
      }
      below += value;
    }
  });
  for (const line of series.filter((one) => !one.bar)) {
    const known = buckets.map((one, number) => [number, line.of(one)]).filter(([, value]) => value !== null);
    const points = known.map(([number, value]) => `${x(number + 0.5)},${y(value)}`).join(" ");
    if (known.length > 1) drawn.push(s("polyline", { points, class: `stroke-${line.kind}` }));
    for (const [number, value] of known) {
      drawn.push(s("circle", { cx: x(number + 0.5), cy: y(value), r: 2.5, class: `fill-${line.kind}` },
        s("title", {}, `${new Date(buckets[number].time).toLocaleString()}: ${seconds(value)} ${line.name}`)));
    }
  }
  const unit = series.some((line) => line.bar) ? String(most) : seconds(most);
  const range = s("rect", { y: 0, height, width: 0, class: "fill-range" });
  const picture = s("svg", {
    class: "plot", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `${title}: at most ${unit}`,
  }, drawn, range, s("text", { x: 4, y: 12 }, unit));
  drag(picture, range, buckets, stepS, width);
  return h("section", {}, h("h2", {}, title), picture, h("p", { class: "dim" },
    series.map((line) => [h("span", { class: line.kind }, `■ ${line.name} `)]),
    "Drag over the plot to look closer at that time."));
}

function drag(picture, range, buckets, stepS, width) {
  let from = null;
  const at = (event) => {
    const box = picture.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  picture.addEventListener("pointerdown", (event) => {
    from = at(event);
    picture.setPointerCapture(event.pointerId);
  });
  picture.addEventListener("pointermove", (event) => {
    if (from === null) return;
    const to = at(event);
    range.setAttribute("x", Math.min(from, to) * width);
    range.setAttribute("width", Math.abs(to - from) * width);
  });
  picture.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const ends = [from, at(event)].sort((a, b) => a - b);
    from = null;
    const first = new Date(buckets[0].time).getTime(), span = buckets.length * stepS * 1000;
    const time = (part) => new Date(first + part * span).toISOString();
    location.hash = link("", { since: time(ends[0]), until: time(Math.max(ends[1], ends[0] + 1 / buckets.length)) });
  });
}

// ---------------------------------------------------------------- pages

function spanForm(page, query, chosen) {
  return h("form", { onsubmit: (event) => event.preventDefault() }, h("label", {}, "Time",
    h("select", {
      onchange: (event) => { location.hash = link(page, { ...query, since: event.target.value }); },
    }, (SPANS.some(([value]) => value === chosen) ? SPANS : [[chosen, chosen], ...SPANS]).map(([value, text]) => h("option", { value, selected: value === chosen }, `last ${text}`)))));
}
const partial = (found) => found.partial
  && h("p", { class: "wait" }, "Counting took too long: these numbers begin at ", when(found.since), ".");

async function overview(query) {
  const since = query.since || "1h", span = { since, until: query.until };
  const [stats, { stores }] = await Promise.all([api("api/stats", span), api("api/stores")]);
  const sum = (name) => stats.buckets.reduce((total, one) => total + one[name], 0);
  const card = (text, value, kind, target) => h("li", {}, h("span", { class: kind || "dim" }, text),
    h("strong", {}, target ? h("a", { href: target }, value) : value));
  return ["Overview",
    query.until
      ? h("p", { class: "pager" }, h("span", {}, when(since), " to ", when(query.until)),
        h("a", { href: link("tasks", span) }, "Tasks of this time"), h("a", { href: "#/" }, "Last hour"))
      : spanForm("", query, since),
    partial(stats),
    h("ul", { class: "cards" },
      card("sent", sum("sent"), null, link("tasks", span)),
      card("succeeded", sum("succeeded"), "good", link("tasks", { ...span, state: "SUCCESS" })),
      card("failed", sum("failed"), "bad",
        query.until ? link("tasks", { ...span, state: "FAILURE" }) : link("failures", { since })),
      card("retried", sum("retried"), "wait", link("tasks", { ...span, state: "RETRY" })),
      stores.map((one) => [card(`store ${one.path.split("/").pop()}`, one.status,
        one.status === "ok" ? "good" : "bad", link("stores")), !one.error && [
        card("disk used", `${one.disk_used_percent} %`, one.disk_used_percent > 85 ? "bad" : null, link("stores")),
        card(`log, ${one.segments} segments`, bytes(one.log_bytes), null, link("stores")),
        card("not dispatched", bytes(one.dispatch_behind_bytes), null, link("stores")),
        card("not flushed", bytes(one.flush_behind_bytes), null, link("stores"))]])),
    plot("Tasks", stats.buckets, [
      { name: "succeeded", bar: true, kind: "good", of: (one) => one.succeeded },
      { name: "failed", bar: true, kind: "bad", of: (one) => one.failed },
    ], stats.step_s),
    plot("Run time", stats.buckets, [
      { name: "median", kind: "run", of: (one) => one.run_s.p50 },
      { name: "95 %", kind: "bad", of: (one) => one.run_s.p95 },
    ], stats.step_s),
    plot("Wait in the queue", stats.buckets, [
      { name: "median", kind: "wait", of: (one) => one.wait_s.p50 },
      { name: "95 %", kind: "bad", of: (one) => one.wait_s.p95 },
    ], stats.step_s),
    table("By name", [
      { name: "Name", of: (one) => h("a", { href: link("tasks", { name: one.name, since }) }, one.name || "-") },
      { name: "Succeeded", number: true, of: (one) => one.succeeded },
      { name: "Failed", number: true, of: (one) => one.failed },
      { name: "Retried", number: true, of: (one) => one.retried },
      { name: "Median", number: true, of: (one) => seconds(one.run_s.p50) },
      { name: "95 %", number: true, of: (one) => seconds(one.run_s.p95) },
    ], stats.names),
    stores.map((one) => dutiesOf(one))];
}

const dutiesOf = (store) => store.duties && store.duties.length > 0 && table(
  `Duties of ${store.path.split("/").pop()}, and who holds their leases`, [
    { name: "Duty", of: (duty) => duty.duty },
    { name: "Last run", of: (duty) => when(duty.begun) },
    { name: "Took", number: true, of: (duty) => seconds(duty.took_s) },
    { name: "Process", number: true, of: (duty) => duty.pid || "" },
    { name: "Outcome", of: (duty) => h("span", { class: duty.outcome === "done" ? "good" : "wait" }, duty.outcome) },
    { name: "Runs", number: true, of: (duty) => duty.runs },
    { name: "Lease", number: true, of: (duty) => (duty.lease_left_s ? `${seconds(duty.lease_left_s)} left` : "free") },
  ], store.duties);

const TASK_COLUMNS = [
  { name: "State", of: state },
  { name: "Name", of: (one) => one.name || "-" },
  { name: "Id", of: (one) => taskLink(one.id) },
  { name: "Sent", of: (one) => when(one.sent || one.received || one.started || one.ended) },
  { name: "Waited", number: true, of: (one) => seconds(one.wait_s) },
  { name: "Ran", number: true, of: (one) => seconds(one.run_s) },
  { name: "Worker", of: (one) => one.worker || "" },
  { name: "Arguments, error", of: (one) => short(one.error || [one.args, one.kwargs].filter(Boolean).join(" ")) },
];

async function tasks(query) {
  const begun = Date.now(), rows = [];
  const ask = (after) => api("api/tasks", { limit: PAGE_ROWS - rows.length, within: FIRST_ROWS, ...query, after });
  const isFull = (found) => !found.next || rows.length >= PAGE_ROWS || Date.now() - begun > SEARCH_MS;
  let found = await ask(query.after);
  rows.push(...found.tasks);
  const list = table("", TASK_COLUMNS, rows);
  const pager = h("nav", { class: "pager", "aria-label": "More tasks" });
  const tell = () => {
    list.caption.textContent = `${rows.length} tasks, newest first${isFull(found) ? "" : "; searching older ones ..."}`;
    pager.replaceChildren(...[
      query.after && h("a", { href: link("tasks", { ...query, after: null }) }, "Newest"),
      isFull(found) && found.next && h("a", { href: link("tasks", { ...query, after: found.next }) },
        rows.length ? "Older" : "Search older tasks"),
    ].filter(Boolean));
  };
  tell();
  const field = (name, text, attributes = {}) => h("label", {}, text,
    h("input", { name, value: query[name] || "", autocomplete: "off", ...attributes }));
  const search = (event) => {
    event.preventDefault();
    location.hash = link("tasks", Object.fromEntries(new FormData(event.target)));
  };
  const shown = ["Tasks",
    h("form", { onsubmit: search, role: "search" },
      field("text", "Id, name, argument or error", { type: "search", id: "search" }),
      field("name", "Name"),
      h("label", {}, "State", h("select", { name: "state" }, STATES.map((one) =>
        h("option", { value: one, selected: one === (query.state || "") }, one || "any")))),
      field("worker", "Worker"),
      field("since", "Since", { placeholder: "2h" }),
      field("until", "Until", { placeholder: "2026-01-31T12:00Z" }),
      h("button", {}, "Search")),
    list, pager];
  shown.goOn = async (isShown) => {
    while (!isFull(found)) {
      const more = await ask(found.next);
      if (!isShown()) return;
      found = more;
      rows.push(...more.tasks);
      list.tBodies[0].append(...more.tasks.map((one) => row(TASK_COLUMNS, one)));
      tell();
    }
  };
  return shown;
}

function spent(one) {
  const total = (one.wait_s || 0) + (one.run_s || 0);
  if (!total) return null;
  const part = (value) => ((value || 0) / total) * 1000;
  const wait = part(one.wait_s), store = part(Math.min(one.store_s || 0, one.run_s || 0));
  return h("section", {}, h("h2", {}, "Where its time was spent"),
    s("svg", {
      class: "spent", viewBox: "0 0 1000 22", preserveAspectRatio: "none", role: "img",
      "aria-label": `waited ${seconds(one.wait_s || 0)}, ran ${seconds(one.run_s || 0)}, of that stored its result ${
        seconds(one.store_s || 0)}`,
    }, s("rect", { width: wait, height: 22, class: "fill-wait" }),
    s("rect", { x: wait, width: 1000 - wait - store, height: 22, class: "fill-run" }),
    s("rect", { x: 1000 - store, width: store, height: 22, class: "fill-good" })),
    h("p", {}, h("span", { class: "wait" }, `■ waited ${seconds(one.wait_s) || "?"} `),
      h("span", { class: "run" }, `■ ran ${seconds(one.run_s) || "?"} `),
      one.store_s !== null && h("span", { class: "good" }, `■ of that stored its result ${seconds(one.store_s)}`)));
}

const NODE = { width: 176, height: 40, right: 40, below: 12 };

// A task stands right of the one that sent it; only further ones begin a new row. So a chain is one row.
function placed(tasks) {
  const nodes = [], above = [];
  let rows = 0;
  for (const one of tasks) {
    const from = one.depth ? above[one.depth - 1] : undefined;
    const node = { one, from, column: one.depth, row: from && !from.sent ? from.row : rows, sent: 0 };
    if (node.row === rows) rows += 1;
    if (from) from.sent += 1;
    above[one.depth] = node;
    nodes.push(node);
  }
  return nodes;
}

function graph(workflow, id) {
  const nodes = placed(workflow.tasks), byId = new Map(nodes.map((node) => [node.one.id, node]));
  const x = (node) => node.column * (NODE.width + NODE.right) + 2, y = (node) => node.row * (NODE.height + NODE.below) + 2;
  const width = Math.max(...nodes.map(x)) + NODE.width + 2, height = Math.max(...nodes.map(y)) + NODE.height + 2;
  const edge = (from, to, kind) => {
    const begin = [x(from) + NODE.width, y(from) + NODE.height / 2], end = [x(to), y(to) + NODE.height / 2];
    return s("path", { class: kind,
      d: `M${begin} C${begin[0] + NODE.right / 2},${begin[1]} ${end[0] - NODE.right / 2},${end[1]} ${end}` });
  };
  const chords = workflow.chords.flatMap((chord) => {
    const body = byId.get(chord.body_id);
    return body ? nodes.filter((node) => node.one.group_id === chord.group_id && node !== body && node !== body.from)
      .map((node) => edge(node, body, "edge chord")) : [];
  });
  const boxes = nodes.map((node) => s("a", { href: `#/task/${encodeURIComponent(node.one.id)}` },
    s("title", {}, `${node.one.name || node.one.id} ${node.one.state}`),
    s("rect", { x: x(node), y: y(node), width: NODE.width, height: NODE.height, rx: 5,
      class: `node ${KIND[node.one.state] || ""} ${node.one.id === id ? "here" : ""}` }),
    s("text", { x: x(node) + 8, y: y(node) + 16 }, short((node.one.name || node.one.id).split(".").pop(), 22)),
    s("text", { x: x(node) + 8, y: y(node) + 32, class: `small ${KIND[node.one.state] || ""}` },
      [node.one.state, seconds(node.one.run_s)].filter(Boolean).join(" · "))));
  return h("div", { class: "graph", tabindex: "0", role: "region", "aria-label": "Workflow" },
    s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Graph of the workflow" },
      nodes.filter((node) => node.from).map((node) => edge(node.from, node, "edge")), chords, boxes));
}

function tree(workflow, id) {
  return h("ul", { class: "tree" }, workflow.tasks.map((one) => {
    const line = h("li", {}, state(one), " ", one.id === id ? h("strong", {}, one.name || one.id)
      : taskLink(one.id, one.name || one.id), " ", when(one.sent || one.started), " ",
    one.wait_s !== null && `waited ${seconds(one.wait_s)} `, one.run_s !== null && `ran ${seconds(one.run_s)} `,
    one.error && h("span", { class: "bad" }, short(one.error)));
    line.style.paddingInlineStart = `${Math.min(one.depth, 20) * 1.5}em`;
    return line;
  }), workflow.chords.map((one) => h("li", {},
    `chord ${one.group_id}: ${one.parts} of ${one.size === null ? "?" : one.size} parts, `,
    one.done_ms ? `body ${one.outcome || "?"}` : one.claimed_ms ? "body claimed, not sent yet" : "body not sent")));
}

const ACTION_TEXTS = {
  rerun: "Send it again, under a new id?", revoke: "Keep it from running?", cancel: "End it, also where it runs?",
  fire: "Make it due now?", run: "Run it now?", pause: "Stop it until it is resumed?", resume: "Let it run again?",
  delete: "Delete this schedule?", clean: "Remove what has expired from the store of the app?",
  purge: "Remove all messages that are in this topic now?",
};

async function act(address, action) {
  if (!window.confirm(ACTION_TEXTS[action])) return;
  const answer = await fetch(`${address}/${action}`, { method: "POST", headers: { "X-Cystore-Action": action } });
  const told = await answer.json();
  if (answer.ok && told.new_id) location.hash = `#/task/${encodeURIComponent(told.new_id)}`;
  else if (answer.ok) await show(false);
  notice.textContent = answer.ok ? `${action}: done` : told.detail;
}
const buttons = (address, names) => names.map((action) =>
  h("button", { type: "button", onclick: () => act(address, action) }, action));
const taskAddress = (id) => `api/tasks/${encodeURIComponent(id)}`;

const EVENT_TEXTS = ["worker", "pid", "queue", "retries", "runtime", "countdown", "eta", "exception", "signal"];

async function task(query, id) {
  const [one, workflow] = await Promise.all([
    api(`api/tasks/${encodeURIComponent(id)}`), api(`api/workflows/${encodeURIComponent(id)}`)]);
  const fact = (name, value) => value !== null && value !== undefined && value !== ""
    && [h("dt", {}, name), h("dd", {}, value)];
  const block = (name, value) => value && [h("h2", {}, name), h("pre", { tabindex: "0" }, value)];
  const related = (name, value) => value && value !== id && fact(name, taskLink(value));
  return [`${one.name || "Task"} ${id}`,
    h("dl", {}, fact("State", state(one)), fact("Id", one.id), fact("Name", one.name), fact("Queue", one.queue),
      fact("Worker", one.worker), fact("Sent", when(one.sent)), fact("Due", when(one.due)),
      fact("Received", when(one.received)), fact("Started", when(one.started)), fact("Ended", when(one.ended)),
      fact("Retries", one.retries), related("Parent", one.parent_id), related("Root", one.root_id),
      fact("Group", one.group_id), related("Rerun of", one.rerun_of)),
    one.actions.length > 0 && h("p", { class: "pager" }, buttons(taskAddress(one.id), one.actions)),
    spent(one),
    block("Arguments", [one.args, one.kwargs].filter(Boolean).join("\n")),
    block("Error", one.error), block("Traceback", one.traceback),
    one.result !== null ? block("Result", JSON.stringify(one.result, null, 2))
      : one.result_bytes && h("p", {}, `The result has ${bytes(one.result_bytes)} of ${one.result_type}.`),
    h("h2", {}, "Its life"),
    table("Events and results, oldest first", [
      { name: "Time", of: (event) => when(event.time) },
      { name: "Event", of: (event) => (event.kind === "result" ? `result ${event.event}` : event.event) },
      { name: "Facts", of: (event) => EVENT_TEXTS.filter((name) => name in event)
        .map((name) => `${name} ${short(String(event[name]))}`).join(", ") },
    ], one.events),
    (workflow.tasks.length > 1 || workflow.chords.length > 0) && [h("h2", {}, "Its workflow"), graph(workflow, id), tree(workflow, id),
      workflow.more && h("p", { class: "dim" }, "The workflow has more tasks.")]];
}

async function failures(query) {
  const since = query.since || "1d";
  const found = await api("api/failures", { ...query, since });
  return ["Failures by cause", spanForm("failures", query, since), partial(found),
    table(`${found.failures.length} causes`, [
      { name: "Count", number: true, of: (one) => one.count },
      { name: "Cause", of: (one) => h("span", { class: "bad" }, one.cause) },
      { name: "Name", of: (one) => h("a", { href: link("tasks", { name: one.name, state: one.event, since }) },
        one.name || "-") },
      { name: "Newest", of: (one) => when(one.newest) },
      { name: "Example", of: (one) => (one.newest_id ? taskLink(one.newest_id, short(one.error) || one.newest_id)
        : short(one.error)) },
    ], found.failures)];
}

async function workers(query) {
  const since = query.since || "1h";
  const found = await api("api/workers", { since });
  return ["Workers", spanForm("workers", query, since), partial(found),
    table(`${found.workers.length} workers`, [
      { name: "Worker", of: (one) => h("a", { href: link("tasks", { worker: one.worker, since }) }, one.worker) },
      { name: "State", of: (one) => h("span", { class: `state ${one.alive ? "good" : "dim"}` }, one.alive ? "alive" : "gone") },
      { name: "Last seen", of: (one) => when(one.last_seen) },
      { name: "Runs now", of: (one) => one.running_now.map((run, number) => [number > 0 && ", ",
        taskLink(run.id, run.name || run.id)]).concat(one.running > one.running_now.length ? " …" : []) },
      { name: "Started", number: true, of: (one) => one.started },
      { name: "Succeeded", number: true, of: (one) => one.succeeded },
      { name: "Failed", number: true, of: (one) => one.failed },
      { name: "Queues", of: (one) => one.queues.join(", ") },
    ], found.workers)];
}

async function topics() {
  const { stores, actions } = await api("api/stores");
  return ["Queues and topics", stores.map((one) => [h("h2", {}, one.path),
    one.error ? h("p", { class: "bad" }, one.error) : [
      table("Topics", [
        { name: "Topic", of: (topic) => h("a", {
          href: link(`topic/${encodeURIComponent(topic.topic)}`, { store: one.path }) }, topic.topic) },
        { name: "Queues", number: true, of: (topic) => topic.queues },
        { name: "Messages", number: true, of: (topic) => topic.messages },
        actions.includes("purge") && { name: "Actions", of: (topic) => (topic.topic.startsWith("celery_") ? ""
          : buttons(`api/topics/${encodeURIComponent(topic.topic)}`, ["purge"])) },
      ].filter(Boolean), one.topics),
      one.groups.length > 0 && table("Consumer groups", [
        { name: "Group", of: (group) => group.group },
        { name: "Not committed", number: true, of: (group) => group.lag },
      ], one.groups)]])];
}

const bodyOf = (one) => (one.body_encoding === "hidden"
  ? h("span", { class: "dim" }, `${bytes(one.size_bytes)}, not shown: it has arguments of a task as they were sent`)
  : h("pre", { tabindex: "0" }, typeof one.body === "string" ? one.body : JSON.stringify(one.body, null, 2),
    one.body_cut && "…"));

async function topic(query, name) {
  const found = await api(`api/topics/${encodeURIComponent(name)}`, { limit: PAGE_ROWS, ...query });
  const page = (after) => link(`topic/${encodeURIComponent(name)}`, { ...query, after });
  const ask = (event) => {
    event.preventDefault();
    location.hash = link(`topic/${encodeURIComponent(name)}`, { store: query.store, queue: new FormData(event.target).get("queue") });
  };
  return [`Topic ${name}`,
    h("form", { onsubmit: ask }, h("label", {}, "Queue", h("input", { name: "queue", inputmode: "numeric",
      value: query.queue || "", placeholder: "all" })), h("button", {}, "Show")),
    table(`${found.messages.length} messages of ${found.store}, newest first`, [
      { name: "Queue", number: true, of: (one) => `${one.queue_id}@${one.queue_offset}` },
      { name: "Stored", of: (one) => when(one.time) },
      { name: "Tag", of: (one) => one.tags || "" },
      { name: "Keys", of: (one) => one.keys.join(" ") },
      { name: "Body", of: bodyOf },
    ], found.messages),
    h("nav", { class: "pager", "aria-label": "More messages" },
      query.after && h("a", { href: page(null) }, "Newest"), found.next && h("a", { href: page(found.next) }, "Older"))];
}

async function eta(query) {
  const found = await api("api/eta", { limit: PAGE_ROWS, ...query });
  const ask = (event) => {
    event.preventDefault();
    location.hash = link("eta", Object.fromEntries(new FormData(event.target)));
  };
  return ["Waiting for their ETA",
    h("form", { onsubmit: ask, role: "search" },
      h("label", {}, "Name", h("input", { name: "name", value: query.name || "", autocomplete: "off" })),
      h("button", {}, "Show")),
    table(`${found.tasks.length} tasks, the next one first`, [
      { name: "Due", of: (one) => when(one.due) },
      { name: "In", number: true, of: (one) => seconds(Math.max(0, (new Date(one.due) - Date.now()) / 1000)) },
      { name: "Name", of: (one) => one.name },
      { name: "Id", of: (one) => (one.args === null && one.kwargs === null ? one.id : taskLink(one.id)) },
      { name: "Queue", of: (one) => one.queue },
      { name: "Arguments", of: (one) => short([one.args, one.kwargs].filter(Boolean).join(" ")) },
      found.actions.length > 0 && { name: "Actions", of: (one) => buttons(taskAddress(one.id), found.actions) },
    ].filter(Boolean), found.tasks),
    h("nav", { class: "pager", "aria-label": "More tasks" },
      query.after && h("a", { href: link("eta", { ...query, after: null }) }, "Next"),
      found.next && h("a", { href: link("eta", { ...query, after: found.next }) }, "Later"))];
}

const scheduleAddress = (name) => `api/schedules/${encodeURIComponent(name)}`;
const fitting = (one, actions) => actions.filter((action) => action !== (one.enabled ? "resume" : "pause"));

async function schedules() {
  const found = await api("api/schedules");
  return ["Schedules", table(`${found.schedules.length} schedules, the next one first`, [
    { name: "Name", of: (one) => h("a", { href: `#/schedule/${encodeURIComponent(one.name)}` }, one.name) },
    { name: "Due", of: (one) => (one.enabled ? when(one.due) : h("span", { class: "wait" }, "paused")) },
    { name: "Schedule", of: (one) => one.schedule },
    { name: "Task", of: (one) => h("a", { href: link("tasks", { name: one.task }) }, one.task) },
    { name: "Queue", of: (one) => one.queue || "" },
    { name: "Runs", number: true, of: (one) => one.runs },
    { name: "Missed runs", of: (one) => one.missed },
    { name: "Made by", of: (one) => one.source },
    found.actions.length > 0 && { name: "Actions",
      of: (one) => buttons(scheduleAddress(one.name), fitting(one, found.actions)) },
  ].filter(Boolean), found.schedules)];
}

async function schedule(query, name) {
  const one = await api(scheduleAddress(name));
  const fact = (title, value) => value !== null && value !== undefined && value !== ""
    && [h("dt", {}, title), h("dd", {}, value)];
  return [`Schedule ${name}`,
    one.task ? h("dl", {}, fact("Task", h("a", { href: link("tasks", { name: one.task }) }, one.task)),
      fact("Schedule", one.schedule), fact("Due", one.enabled ? when(one.due) : "paused"), fact("Queue", one.queue),
      fact("Runs", one.runs), fact("Missed runs", one.missed), fact("Made by", one.source), fact("Store", one.store),
      fact("Arguments", [one.args, one.kwargs].filter(Boolean).map((some) => JSON.stringify(some)).join(" ")))
      : h("p", {}, "This schedule is deleted."),
    one.actions.length > 0 && h("p", { class: "pager" }, buttons(scheduleAddress(name), fitting(one, one.actions))),
    table("Its runs, newest first", [
      { name: "Due", of: (run) => when(run.due) },
      { name: "Sent", of: (run) => when(run.sent) },
      { name: "Run", of: (run) => run.run },
      { name: "Task", of: (run) => (run.task_id ? taskLink(run.task_id) : "") },
      { name: "Outcome", of: (run) => h("span", {
        class: run.outcome === "SUCCEEDED" ? "good" : run.outcome === "FAILED" || run.run === "FAILED" ? "bad" : null,
      }, run.error || run.outcome) },
    ], one.history)];
}

function replication(one) {
  const behind = (value) => (value === null ? "not known" : `${bytes(value)} behind`);
  if (one.role === "replica") {
    return h("p", {}, `Replica of ${one.master || "a master"}: `, one.connected
      ? h("span", { class: "good" }, `connected, ${behind(one.behind_bytes)}`) : h("span", { class: "bad" }, "not connected"));
  }
  return table(`Replicas of this master${one.listens ? `, which listens on ${one.listens}` : ""}`, [
    { name: "Replica", of: (slave) => slave.name },
    { name: "Log", number: true, of: (slave) => behind(slave.behind_bytes) },
  ], one.slaves);
}

async function stores() {
  const found = await api("api/stores");
  const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
  return ["Stores",
    found.actions.includes("clean") && h("p", { class: "pager" }, buttons("api/stores", ["clean"])),
    found.stores.map((one) => [h("h2", {}, one.path),
    h("p", { class: `state ${one.status === "ok" ? "good" : "bad"}` }, one.status),
    one.error ? h("p", {}, one.error) : h("dl", {},
      fact("Newest record", when(one.last_record)), fact("Log", bytes(one.log_bytes)),
      fact("Not flushed", bytes(one.flush_behind_bytes)), fact("Not dispatched", bytes(one.dispatch_behind_bytes)),
      fact("Segments", `${one.segments} of ${bytes(one.segment_bytes)}`), fact("Disk used", `${one.disk_used_percent} %`),
      fact("Damaged ranges", one.holes.length ? one.holes.map((hole) => hole.join(" to ")).join(", ") : "none"),
      one.lost && fact("Lost at the end", one.lost.join(" to ")),
      fact("Puts that failed", one.put_failed), fact("Delayed messages", one.delayed)),
    dutiesOf(one),
    one.replication && replication(one.replication),
    one.quarantine && one.quarantine.length > 0 && table("Quarantine: copies of damaged bytes", [
      { name: "Copy", of: (copy) => copy.name || "no copy" },
      { name: "Range", of: (copy) => `${copy.begin} to ${copy.end}` },
      { name: "State", of: (copy) => h("span", { class: copy.state === "damaged" ? "bad" : "dim" }, copy.state) },
      { name: "Reason", of: (copy) => copy.reason },
      { name: "Found", of: (copy) => when(copy.found) },
    ], one.quarantine),
    one.holds && one.holds.length > 0 && table("Kept from cleaning", [
      { name: "By", of: (hold) => hold.name },
      { name: "Log", number: true, of: (hold) => bytes(hold.bytes) },
      { name: "At most for", number: true, of: (hold) => (hold.max_age_s === 0 ? "no time" : seconds(hold.max_age_s) || "ever") },
    ], one.holds)])];
}

const PAGES = {
  "": overview, tasks, task, failures, workers, eta, schedules, schedule, topics, topic, stores,
};
const ABOVE = { task: "tasks", schedule: "schedules", topic: "topics" }; // the page that is marked in the list of pages

// ---------------------------------------------------------------- showing and refreshing

let turn = 0;

async function show(isRefresh) {
  const mine = ++turn;
  const { page, rest, query } = place();
  const made = PAGES[page];
  let title, content, goOn;
  try {
    if (!made) throw new Error(`There is no page ${page}.`);
    const answer = await made(query, decodeURIComponent(rest));
    [title, ...content] = answer;
    goOn = answer.goOn;
    notice.textContent = "";
  } catch (error) {
    if (mine !== turn) return;
    notice.textContent = error.message;
    if (isRefresh) return; // what is shown stays
    [title, content] = ["Not available", []];
  }
  if (mine !== turn) return;
  document.title = `${title} - cystore`;
  for (const one of document.querySelectorAll("#pages a")) {
    const current = one.getAttribute("href").slice(2) === (ABOVE[page] || page);
    if (current) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  const scrolled = window.scrollY;
  main.replaceChildren(h("h1", {}, title), ...fill(document.createElement("div"), {}, content).childNodes);
  main.dataset.page = page || "overview";
  if (isRefresh) window.scrollTo(0, scrolled);
  else main.focus({ preventScroll: true });
  if (!goOn) return;
  try {
    await goOn(() => mine === turn);
  } catch (error) {
    if (mine === turn) notice.textContent = error.message;
  }
}

let waiting = false;
const isBusy = () => document.hidden || waiting || main.contains(document.activeElement)
  && ["INPUT", "SELECT", "A", "PRE", "BUTTON"].includes(document.activeElement.tagName)
  || String(window.getSelection()) !== "" || Boolean(place().query.after || place().query.text); // a search is not repeated

function refresh() {
  const pulse = document.getElementById("pulse");
  pulse.classList.add("on");
  setTimeout(() => pulse.classList.remove("on"), 400);
  if (!document.getElementById("live").checked || isBusy()) return;
  waiting = true;
  setTimeout(async () => {
    waiting = false;
    if (!isBusy()) await show(true);
  }, REFRESH_MS);
}

function listen() {
  const source = new EventSource("events");
  for (const kind of ["append", "back"]) source.addEventListener(kind, refresh);
  source.addEventListener("away", (event) => {
    const told = JSON.parse(event.data);
    notice.textContent = `${told.store} is away: ${told.error}`;
  });
}

document.addEventListener("keydown", (event) => {
  const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement.tagName);
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const search = document.getElementById("search");
  if (search) search.focus();
  else location.hash = "#/tasks";
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", () => show(false));
show(false);
listen();
