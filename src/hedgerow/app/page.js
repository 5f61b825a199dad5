// What both pages do: Python says what stands on them (page.py), and everything is set as text, so no name can become
// markup.
"use strict";

const at = (id) => document.getElementById(id);
const make = (name, text, className) => {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
};

// Only what differs is written, or a reader of the screen would hear everything again four times a second.
const say = (id, text) => { if (at(id).textContent !== text) at(id).textContent = text; };
const fill = (id, key, children) => {
  const made = JSON.stringify(key);
  if (at(id).dataset.key === made) return;
  at(id).dataset.key = made;
  at(id).replaceChildren(...children());
};
const show = (id, is) => { at(id).hidden = !is; };

// A part of the page that is there once it has something to say.
const part = (id, content, draw) => {
  const is = Array.isArray(content) ? content.length > 0 : Boolean(content);
  show(id, is);
  if (is) draw(content);
};

const facts = (id, list) =>
  fill(id, list, () => list.flatMap(([name, value]) => [make("dt", name), make("dd", value)]));

// A table's row: its first cell is its head; numbers, by their column, stand to the right.
const row = (cells, numbers = []) => {
  const made = make("tr", "");
  cells.forEach((cell, n) => {
    const one = make(n ? "td" : "th", cell, numbers.includes(n) ? "count" : "");
    if (!n) one.scope = "row";
    made.append(one);
  });
  return made;
};

function head(state) {
  document.title = `${state.phase}: ${state.title}`;
  say("title", state.title);
  say("phase", state.phase);
  at("phase").dataset.mood = state.mood;
  part("waiting", state.waiting, (text) => say("waiting", text));
  part("error", state.error, (error) => {
    say("error-what", error.what);
    say("error-more", [error.cause, error.remedy, error.code && `(${error.code})`].filter(Boolean).join(" "));
  });
  part("events-part", state.events, (events) => fill("events", events, () => events.map((event) => {
    const line = make("li", "");
    const text = make("span", event.text);
    text.dataset.mood = event.mood;
    line.append(make("time", event.time), text);
    return line;
  })));
}

// A curve that stays below a limit, and perhaps a second one.
function curve(id, lines, most, limit, labels) {
  const x = (value) => (34 + 280 * Math.min(1, value / most)).toFixed(1);
  const y = (value) => (90 - 80 * Math.min(1, value / limit)).toFixed(1);
  lines.forEach((points, n) => at(id).querySelectorAll("polyline")[n]
    .setAttribute("points", points.map(([place, value]) => `${x(place)},${y(value)}`).join(" ")));
  [String(Number(limit.toPrecision(3))), ...labels].forEach((text, n) => {
    const label = at(id).querySelectorAll("text")[n];
    if (label.textContent !== text) label.textContent = text;
  });
}

function model(state) {
  part("picture-part", state.picture || state.no_picture, () => {
    show("picture", state.picture);
    if (state.picture && at("picture").getAttribute("src") !== state.picture) at("picture").src = state.picture;
    part("no-picture", state.picture ? "" : state.no_picture, (text) => say("no-picture", text));
  });
  part("report-part", state.report, (text) => say("report", text));
}

function follow(draw) {
  const stream = new EventSource("events");
  stream.onmessage = (message) => {
    show("lost", false);
    const state = JSON.parse(message.data);
    if (state.title) draw(state);
  };
  stream.onerror = () => show("lost", true);
}

// Asks the server for something; what it answers is said next to the button.
async function ask(name, body, place) {
  try {
    // No other origin's page can send this header; the server wants it.
    const headers = { "content-type": "application/json", "x-hedgerow": "1" };
    const answer = await fetch(`do/${name}`, { method: "POST", headers, body: JSON.stringify(body) });
    const isJson = (answer.headers.get("content-type") || "").startsWith("application/json");
    say(place, isJson ? (await answer.json()).said : await answer.text());
    return answer.ok;
  } catch {
    say(place, "Hedgerow on this machine does not answer.");
    return false;
  }
}
