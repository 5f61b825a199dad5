// The page of a run: draws what console.py says.
"use strict";

function draw(state) {
  head(state);
  say("brand", state.study ? `Hedgerow, ${state.study}` : "Hedgerow");
  part("lost-coordinator", state.lost, (text) => say("lost-coordinator", text));
  show("run-parts", state.rounds);
  if (state.rounds) run(state);
  part("sites-part", state.sites, (sites) => {
    say("sites-text", state.sites_text || "");
    fill("sites", sites, () => sites.map(site));
    // Before a run there is no more to say of them.
    at("sites").parentElement.classList.toggle("few", !sites[0].counts);
  });
  part("plan-part", state.plan, (list) => facts("plan", list));
  part("history-part", state.history, (runs) => {
    part("budget", state.budget, (list) => facts("budget", list));
    fill("history", runs, () => runs.map((one) => row(one, [3])));
  });
  model(state);
}

function run(state) {
  const [done, planned] = state.rounds;
  say("rounds-text", `${done} of ${planned}`);
  at("rounds").max = Math.max(1, planned);
  at("rounds").value = done;
  say("pace", [state.pace, state.left].filter(Boolean).join(", "));
  say("epsilon-text", state.epsilon_text);
  facts("facts", state.facts);
  at("curve").toggleAttribute("hidden", !state.epsilon);
  if (!state.epsilon) return;
  const most = Math.max(1, planned);
  curve("curve", [state.curve], most, state.epsilon[1], ["0", "round 0", `round ${most}`]);
}

function site(one) {
  const counts = (one.counts || []).map((count) => (count ? String(count) : "-"));
  const made = row([one.name, `${one.mark} ${one.state}`, one.why || "", one.version || "", ...counts], [4, 5, 6]);
  made.children[1].dataset.mood = one.is_calm ? "good" : "waits";
  return made;
}

follow(draw);
