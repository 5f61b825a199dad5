// The page of a site: draws what site_page.py says, and asks for what its owner wants.
"use strict";

let question = "";

function draw(state) {
  head(state);
  say("brand", state.study ? `Hedgerow, ${state.study}` : "Hedgerow");
  part("question-part", state.question, asked);
  part("rounds-part", state.rounds, ([done, planned]) => {
    say("rounds-text", `${done} of ${planned}`);
    at("rounds").max = Math.max(1, planned);
    at("rounds").value = done;
  });
  part("budget-part", state.ledger, (ledger) => {
    say("budget-text", `epsilon ${state.budget_text}`);
    facts("budget", state.budget);
    const labels = ["0", "", state.runs.length > 1 ? `${state.runs.length} runs` : "1 run"];
    curve("ledger", [ledger.points, ledger.reserved], ledger.most, ledger.limit, labels);
    at("ledger").toggleAttribute("hidden", !state.runs.length);
  });
  part("about-part", state.about, (list) => facts("about", list));
  part("cost-part", state.cost, (list) => facts("cost", list));
  part("tables-part", state.tables, (tables) => fill("tables", tables, () => tables.flatMap(table)));
  part("runs-part", state.runs, (runs) => fill("runs", runs, () => runs.map((one) => row(one, [4, 5]))));
  part("invitations-part", state.invitations, (list) =>
    fill("invitations", list, () => list.map((one) => row(one, [3, 5]))));
  part("models-part", state.models, (list) => {
    fill("models", list, () => list.flatMap(([file, report]) => [make("dt", "model"), make("dd", file),
      make("dt", "report"), make("dd", report)]));
  });
  model(state);
  show("stop-part", state.can_stop);
}

// Another question than the one that was answered or read has buttons of its own.
function asked(one) {
  facts("question-facts", one.facts);
  if (one.id === question) return;
  question = one.id;
  say("said", "");
  for (const name of ["approve", "deny"]) at(name).disabled = false;
}

async function answer(name) {
  const body = { question };
  for (const one of ["approve", "deny"]) at(one).disabled = true;
  if (!await ask(name, body, "said")) for (const one of ["approve", "deny"]) at(one).disabled = false;
}

// How a table fits the plan: a table of its own, with what to look at under each column's line.
function table(one) {
  const made = [make("h3", one.name)];
  if (one.columns.length) {
    const heads = ["column", "kind", "missing", "clamped", "not listed", "unreadable", "to look at"];
    const names = make("tr", "");
    heads.forEach((text, n) => {
      const cell = make("th", text, n > 1 && n < 6 ? "count" : "");
      cell.scope = "col";
      names.append(cell);
    });
    const top = make("thead", ""), rows = make("tbody", ""), whole = make("table", ""), around = make("div", "", "scrolls tall");
    top.append(names);
    rows.append(...one.columns.map((cells) => {
      const line = row(cells, [2, 3, 4, 5]);
      line.lastChild.className = "finding";
      return line;
    }));
    whole.append(top, rows);
    Object.assign(around, { tabIndex: 0, role: "region", ariaLabel: `How ${one.name} fits the plan` });
    around.append(whole);
    made.push(around);
  }
  made.push(make("p", one.rest, "muted"));
  if (one.suggested_lines) {
    made.push(make("p", "If that is what these cells mean, these lines of this site's own file would mend it:"));
    made.push(make("pre", one.suggested_lines));
  }
  return made;
}

at("approve").addEventListener("click", () => answer("approve"));
at("deny").addEventListener("click", () => answer("deny"));
at("stop").addEventListener("click", () => ask("stop", {}, "stop-said"));
follow(draw);
