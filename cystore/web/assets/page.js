// The page: reads the API, and writes text nodes only, so nothing that came from a task is ever read as HTML.

const main = document.getElementById("main");
const notice = document.getElementById("notice");
const STATES = ["", "PENDING", "RECEIVED", "STARTED", "SUCCESS", "FAILURE", "RETRY", "REVOKED", "REJECTED", "IGNORED",
  "TIMED_OUT", "CHILD_LOST", "UNKNOWN"];
const SPANS = [["15m", "15 minutes"], ["1h", "1 hour"], ["6h", "6 hours"], ["1d", "1 day"], ["7d", "7 days"]];
const REFRESH_MS = 1000;
const SEARCHES_MOST = 20; // empty pages that a search goes through by itself
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

function table(caption, columns, rows) {
  const kind = (column) => (column.number ? "number" : null);
  return h("table", {},
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, columns.map((one) => h("th", { scope: "col", class: kind(one) }, one.name)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, columns.map((one) =>
      h("td", { class: kind(one), "data-label": one.name }, one.of(row)))))));
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
    "Drag over the plot to see the tasks of that time."));
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
    location.hash = link("tasks", { since: time(ends[0]), until: time(Math.max(ends[1], ends[0] + 1 / buckets.length)) });
  });
}

// ---------------------------------------------------------------- pages

function spanForm(page, query, chosen) {
  return h("form", { onsubmit: (event) => event.preventDefault() }, h("label", {}, "Time",
    h("select", {
      onchange: (event) => { location.hash = link(page, { ...query, since: event.target.value }); },
    }, SPANS.map(([value, text]) => h("option", { value, selected: value === chosen }, `last ${text}`)))));
}
const partial = (found) => found.partial
  && h("p", { class: "wait" }, "Counting took too long: these numbers begin at ", when(found.since), ".");

async function overview(query) {
  const since = query.since || "1h";
  const [stats, { stores }] = await Promise.all([api("api/stats", { since }), api("api/stores")]);
  const sum = (name) => stats.buckets.reduce((total, one) => total + one[name], 0);
  const card = (text, value, kind, target) => h("li", {}, h("span", { class: kind || "dim" }, text),
    h("strong", {}, target ? h("a", { href: target }, value) : value));
  return ["Overview",
    spanForm("", query, since), partial(stats),
    h("ul", { class: "cards" },
      card("sent", sum("sent"), null, link("tasks", { since })),
      card("succeeded", sum("succeeded"), "good", link("tasks", { since, state: "SUCCESS" })),
      card("failed", sum("failed"), "bad", link("failures", { since })),
      card("retried", sum("retried"), "wait", link("tasks", { since, state: "RETRY" })),
      stores.map((one) => card(`store ${one.path.split("/").pop()}`, one.status,
        one.status === "ok" ? "good" : "bad", link("stores")))),
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
    ], stats.names)];
}

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
  let found = await api("api/tasks", { limit: 50, ...query });
  for (let number = 0; !found.tasks.length && found.next && number < SEARCHES_MOST; number++) {
    notice.textContent = "Searching older tasks ...";
    found = await api("api/tasks", { limit: 50, ...query, after: found.next });
  }
  const field = (name, text, attributes = {}) => h("label", {}, text,
    h("input", { name, value: query[name] || "", autocomplete: "off", ...attributes }));
  const ask = (event) => {
    event.preventDefault();
    location.hash = link("tasks", Object.fromEntries(new FormData(event.target)));
  };
  return ["Tasks",
    h("form", { onsubmit: ask, role: "search" },
      field("text", "Id, name, argument or error", { type: "search", id: "search" }),
      field("name", "Name"),
      h("label", {}, "State", h("select", { name: "state" }, STATES.map((one) =>
        h("option", { value: one, selected: one === (query.state || "") }, one || "any")))),
      field("worker", "Worker"),
      field("since", "Since", { placeholder: "2h" }),
      field("until", "Until", { placeholder: "2026-01-31T12:00Z" }),
      h("button", {}, "Search")),
    table(`${found.tasks.length} tasks, newest first`, TASK_COLUMNS, found.tasks),
    h("nav", { class: "pager", "aria-label": "More tasks" },
      query.after && h("a", { href: link("tasks", { ...query, after: null }) }, "Newest"),
      found.next && h("a", { href: link("tasks", { ...query, after: found.next }) },
        found.tasks.length ? "Older" : "Search older tasks"))];
}

function spent(one) {
  const total = (one.wait_s || 0) + (one.run_s || 0);
  if (!total) return null;
  const wait = ((one.wait_s || 0) / total) * 1000;
  return h("section", {}, h("h2", {}, "Where its time was spent"),
    s("svg", {
      class: "spent", viewBox: "0 0 1000 22", preserveAspectRatio: "none", role: "img",
      "aria-label": `waited ${seconds(one.wait_s || 0)}, ran ${seconds(one.run_s || 0)}`,
    }, s("rect", { width: wait, height: 22, class: "fill-wait" }),
    s("rect", { x: wait, width: 1000 - wait, height: 22, class: "fill-run" })),
    h("p", {}, h("span", { class: "wait" }, `■ waited ${seconds(one.wait_s) || "?"} `),
      h("span", { class: "run" }, `■ ran ${seconds(one.run_s) || "?"}`)));
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
};

async function act(id, action) {
  if (!window.confirm(ACTION_TEXTS[action])) return;
  const answer = await fetch(`api/tasks/${encodeURIComponent(id)}/${action}`, {
    method: "POST", headers: { "X-Cystore-Action": action },
  });
  const told = await answer.json();
  if (answer.ok && told.new_id) location.hash = `#/task/${encodeURIComponent(told.new_id)}`;
  else if (answer.ok) await show(false);
  notice.textContent = answer.ok ? `${action}: done` : told.detail;
}

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
    one.actions.length > 0 && h("p", { class: "pager" }, one.actions.map((action) =>
      h("button", { type: "button", onclick: () => act(one.id, action) }, action))),
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
    (workflow.tasks.length > 1 || workflow.chords.length > 0) && [h("h2", {}, "Its workflow"), tree(workflow, id),
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
  const { stores } = await api("api/stores");
  return ["Queues and topics", stores.map((one) => [h("h2", {}, one.path),
    one.error ? h("p", { class: "bad" }, one.error) : [
      table("Topics", [
        { name: "Topic", of: (topic) => topic.topic },
        { name: "Queues", number: true, of: (topic) => topic.queues },
        { name: "Messages", number: true, of: (topic) => topic.messages },
      ], one.topics),
      one.groups.length > 0 && table("Consumer groups", [
        { name: "Group", of: (group) => group.group },
        { name: "Not committed", number: true, of: (group) => group.lag },
      ], one.groups)]])];
}

async function stores() {
  const found = await api("api/stores");
  const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
  return ["Stores", found.stores.map((one) => [h("h2", {}, one.path),
    h("p", { class: `state ${one.status === "ok" ? "good" : "bad"}` }, one.status),
    one.error ? h("p", {}, one.error) : h("dl", {},
      fact("Newest record", when(one.last_record)), fact("Log", bytes(one.log_bytes)),
      fact("Not flushed", bytes(one.flush_behind_bytes)), fact("Not dispatched", bytes(one.dispatch_behind_bytes)),
      fact("Disk used", `${one.disk_used_percent} %`),
      fact("Damaged ranges", one.holes.length ? one.holes.map((hole) => hole.join(" to ")).join(", ") : "none"),
      fact("Puts that failed", one.put_failed), fact("Delayed messages", one.delayed)),
    one.duties && one.duties.length > 0 && table("Duties", [
      { name: "Duty", of: (duty) => duty.duty },
      { name: "Last run", of: (duty) => when(duty.begun) },
      { name: "Took", number: true, of: (duty) => seconds(duty.took_s) },
      { name: "Process", number: true, of: (duty) => duty.pid || "" },
      { name: "Outcome", of: (duty) => h("span", { class: duty.outcome === "done" ? "good" : "wait" }, duty.outcome) },
      { name: "Runs", number: true, of: (duty) => duty.runs },
      { name: "Lease", number: true, of: (duty) => (duty.lease_left_s ? `${seconds(duty.lease_left_s)} left` : "free") },
    ], one.duties),
    one.holds && one.holds.length > 0 && table("Kept from cleaning", [
      { name: "By", of: (hold) => hold.name },
      { name: "Log", number: true, of: (hold) => bytes(hold.bytes) },
      { name: "At most for", number: true, of: (hold) => seconds(hold.max_age_s) || "ever" },
    ], one.holds)])];
}

const PAGES = { "": overview, tasks, task, failures, workers, topics, stores };

// ---------------------------------------------------------------- showing and refreshing

let turn = 0;

async function show(isRefresh) {
  const mine = ++turn;
  const { page, rest, query } = place();
  const made = PAGES[page];
  let title, content;
  try {
    if (!made) throw new Error(`There is no page ${page}.`);
    [title, ...content] = await made(query, decodeURIComponent(rest));
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
    const current = one.getAttribute("href").slice(2) === page || (page === "task" && one.hash === "#/tasks");
    if (current) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  const scrolled = window.scrollY;
  main.replaceChildren(h("h1", {}, title), ...fill(document.createElement("div"), {}, content).childNodes);
  main.dataset.page = page || "overview";
  if (isRefresh) window.scrollTo(0, scrolled);
  else main.focus({ preventScroll: true });
}

let waiting = false;
const isBusy = () => document.hidden || waiting || main.contains(document.activeElement)
  && ["INPUT", "SELECT", "A", "PRE", "BUTTON"].includes(document.activeElement.tagName)
  || String(window.getSelection()) !== "" || Boolean(place().query.after);

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
