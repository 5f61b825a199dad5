// Draws what Python says (console.py, state_of). Everything is set as text, so no name can become markup.
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

function draw(state) {
  if (!state.title) return;
  document.title = `${state.phase}: ${state.title}`;
  say("title", state.title);
  say("phase", state.phase);
  at("phase").dataset.mood = state.mood;
  say("waiting", state.waiting);
  at("waiting").hidden = !state.waiting;
  const [done, planned] = state.rounds;
  say("rounds-text", `${done} of ${planned}`);
  at("rounds").max = Math.max(1, planned);
  at("rounds").value = done;
  say("pace", [state.pace, state.left].filter(Boolean).join(", "));
  say("epsilon-text", state.epsilon_text);
  curve(state);
  fill("facts", state.facts, () => state.facts.flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
  say("sites-text", state.sites_text);
  fill("sites", state.sites, () => state.sites.map(site));
  fill("events", state.events, () => state.events.map((event) => {
    const line = make("li", "");
    const text = make("span", event.text);
    text.dataset.mood = event.mood;
    line.append(make("time", event.time), text);
    return line;
  }));
  if (state.report !== undefined) ended(state);
}

function site(one) {
  const row = make("tr", "");
  const name = make("th", one.name);
  name.scope = "row";
  const state = make("td", `${one.mark} ${one.state}`);
  state.dataset.mood = one.is_calm ? "good" : "waits";
  const counts = one.counts.map((count) => make("td", count ? String(count) : "-", "count"));
  row.append(name, state, make("td", one.why), ...counts);
  return row;
}

function curve(state) {
  at("curve").toggleAttribute("hidden", !state.epsilon);
  if (!state.epsilon) return;
  const limit = state.epsilon[1], planned = Math.max(1, state.rounds[1]);
  const points = state.curve.map(([round, epsilon]) =>
    `${(34 + 280 * round / planned).toFixed(1)},${(90 - 80 * Math.min(1, epsilon / limit)).toFixed(1)}`);
  at("line").setAttribute("points", points.join(" "));
  say("limit-label", String(Number(limit.toPrecision(3))));
  say("last-round", `round ${planned}`);
}

function ended(state) {
  at("report-part").hidden = false;
  say("report", state.report);
  at("picture-part").hidden = false;
  at("picture").hidden = !state.picture;
  if (state.picture && !at("picture").src) at("picture").src = state.picture;
  at("no-picture").hidden = Boolean(state.picture);
  say("no-picture", state.no_picture || "");
}

const stream = new EventSource("events");
stream.onmessage = (message) => { at("lost").hidden = true; draw(JSON.parse(message.data)); };
stream.onerror = () => { at("lost").hidden = false; };
