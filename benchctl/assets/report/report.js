"use strict";
// Everything from results files enters the page through textContent, so none of it is read as HTML.
(() => {
  const make = (name, className, text) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  // Tables sort by the number that a cell begins with. Cells without one go last.
  const numberIn = (cell) => {
    const value = parseFloat(cell.textContent.trim().replace("\u2212", "-").replace(/,(?=\d{3})/g, ""));
    return Number.isNaN(value) ? null : value;
  };
  const compareCells = (one, other, column, sign) => {
    const [a, b] = [one.cells[column], other.cells[column]];
    const [x, y] = [numberIn(a), numberIn(b)];
    if (column && x !== null && y !== null) return sign * (x - y);
    if (column && (x === null) !== (y === null)) return x === null ? 1 : -1;
    return sign * a.textContent.localeCompare(b.textContent);
  };
  function setUpSorting(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = make("button", "", head.textContent.trim());
      button.type = "button";
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : column > 0;
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const [body] = table.tBodies;
        body.append(...[...body.rows].sort((one, other) => compareCells(one, other, column, down ? -1 : 1)));
      });
    });
  }

  // Answers next to each other.
  const data = JSON.parse(document.getElementById("answers").textContent);

  function fill(place, answer) {
    const text = data.texts[answer.text];
    if (answer.cut === null) {
      place.append(text);
      return;
    }
    const sign = make("span", "cut");
    sign.title = "the first difference";
    sign.setAttribute("role", "img");
    sign.setAttribute("aria-label", "first difference:");
    place.append(text.slice(0, answer.cut), sign, make("span", "after", text.slice(answer.cut)));
  }
  function side(title, answer) {
    const box = make("div", "side");
    box.append(make("h3", "", title));
    const facts = [answer.tokens !== null && `${answer.tokens} tokens`, answer.stop_reason && `stop reason: ${answer.stop_reason}`];
    box.append(make("p", "quiet", facts.filter(Boolean).join(", ")));
    const text = make("div", "text");
    text.dir = "auto";
    text.tabIndex = 0;
    fill(text, answer);
    box.append(text);
    if (answer.steps.length) {
      const steps = make("div", "steps");
      for (const [accepted, committed] of answer.steps) steps.append(make("span", accepted ? "accepted" : "", committed));
      box.append(steps, make("p", "quiet", "Tokens of each step. Blue: the step accepted draft tokens."));
    }
    return box;
  }
  const short = (value) => (Math.abs(value) >= 0.001 || value === 0 ? value.toFixed(4) : value.toExponential(2));
  const VERDICTS = {
    identical: "Same answer as the baseline.",
    tie: "A tie: at the first difference both tokens score equally within rounding error.",
    numeric: "The answers differ. Rounding error elsewhere in the answer explains the difference; in float32 an exact method must not differ.",
    lossy: "The answers differ by more than rounding error.",
    sampled: "Sampled answers: two samples may differ.",
  };
  function evidence(entry) {
    const numbers = [];
    if (entry.first_divergence !== null) numbers.push(`First difference at token ${entry.first_divergence} (counted from 0)`);
    if (entry.margin !== null) numbers.push(`the target's two best tokens differ by ${short(entry.margin)} logits where the verdict was decided`);
    if (entry.noise !== null) numbers.push(`rounding changes logits by ${short(entry.noise)}`);
    return [VERDICTS[entry.verdict] || "Not compared.", numbers.join(", ")].join(" ");
  }
  function judgement(score) {
    const order = score.order ? `, ${score.order.replace("_", " ")}` : "";
    const against = score.baseline_score === null ? "" : `, the baseline ${score.baseline_score}`;
    const result = score.unreadable || (score.score === null ? "a tie: the texts are the same" : `${score.score}${against}`);
    const box = make("details", "judgement");
    box.append(make("summary", "", `${score.judge}${order}: ${result}`), make("div", "text", score.reply || "An empty reply."));
    return box;
  }
  function legend(entry) {
    const line = make("p", "quiet legend");
    if (entry.answer.cut !== null) line.append(make("span", "after", "after the first difference"));
    return line;
  }
  function setUpViewer(place) {
    const own = data.answers.filter((entry) => entry.group === Number(place.dataset.viewer));
    const names = JSON.parse(place.dataset.names);
    const choice = (title) => {
      const label = make("label", "", title);
      const select = make("select");
      label.append(select);
      return [label, select];
    };
    const [methodLabel, methodSelect] = choice("Method");
    const [promptLabel, promptSelect] = choice("Answer");
    for (const label of new Set(own.map((entry) => entry.place.label))) {
      methodSelect.append(make("option", "", names[label]));
      methodSelect.lastChild.value = label;
    }
    const before = make("button", "", "previous");
    const after = make("button", "", "next");
    before.type = after.type = "button";
    const bar = make("div", "choices");
    bar.append(methodLabel, promptLabel, before, after);
    const verdict = make("p", "verdict");
    verdict.setAttribute("aria-live", "polite");
    const sides = make("div", "sides");
    let entries = [];
    const show = () => {
      const at = promptSelect.selectedIndex;
      const entry = entries[at];
      before.disabled = at <= 0;
      after.disabled = at >= entries.length - 1;
      verdict.textContent = evidence(entry);
      sides.replaceChildren(side("baseline", entry.baseline), side(names[entry.place.label], entry.answer));
      below.replaceChildren(legend(entry), ...entry.judgements.map(judgement));
    };
    const choose = () => {
      entries = own.filter((entry) => entry.place.label === methodSelect.value);
      promptSelect.replaceChildren(...entries.map((entry) => {
        const turn = entry.place.turn ? `, turn ${entry.place.turn + 1}` : "";
        return make("option", "", `${entry.verdict ? `${entry.verdict}: ` : ""}${entry.place.suite} ${entry.place.prompt_id}${turn}`);
      }));
      promptSelect.selectedIndex = 0;
      show();
    };
    const move = (step) => { promptSelect.selectedIndex += step; show(); };
    methodSelect.addEventListener("change", choose);
    promptSelect.addEventListener("change", show);
    before.addEventListener("click", () => move(-1));
    after.addEventListener("click", () => move(1));
    const below = make("div");
    place.replaceChildren(bar, verdict, sides, below);
    const different = own.find((entry) => entry.answer.cut !== null);
    if (different) methodSelect.value = different.place.label;
    choose();
  }

  document.querySelectorAll("table").forEach(setUpSorting);
  document.querySelectorAll("[data-viewer]").forEach(setUpViewer);
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((box) => { box.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach((box) => { box.open = false; }));
})();
