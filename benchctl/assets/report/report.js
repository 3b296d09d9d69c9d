"use strict";
// All that users wrote enters the page through textContent: it is text, whatever it looks like.
(() => {
  const make = (name, className, text) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  // Toggles: an element is shown where both its method and its suite are.
  function setUpToggles(group) {
    const controls = group.querySelector(".controls");
    controls.hidden = false;
    controls.classList.toggle("tall", controls.offsetHeight > innerHeight / 5);
    const chosen = (kind) =>
      new Set([...controls.querySelectorAll(`[data-shows-${kind}]:checked`)].map((box) => box.getAttribute(`data-shows-${kind}`)));
    const update = () => {
      const methods = chosen("method");
      const suites = controls.querySelector("[data-shows-suite]") ? chosen("suite") : null;
      for (const element of group.querySelectorAll("[data-method], [data-suite]")) {
        const method = element.getAttribute("data-method");
        const suite = element.getAttribute("data-suite");
        const shown = (method === null || methods.has(method)) && (suite === null || !suites || suites.has(suite));
        element.classList.toggle("off", !shown);
      }
    };
    controls.addEventListener("change", update);
    controls.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      const kind = button.dataset.all || button.dataset.none;
      for (const box of controls.querySelectorAll(`[data-shows-${kind}]`)) box.checked = Boolean(button.dataset.all);
      update();
    });
    update();
  }

  // Tables sort by the number that a cell begins with; cells without one go last, and ties stay as they are.
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
        for (const body of table.tBodies) {
          const lines = [...body.rows].filter((line) => line.hasAttribute("data-method"));
          lines.sort((one, other) => compareCells(one, other, column, down ? -1 : 1));
          body.append(...lines);
        }
      });
    });
  }

  // Answers side by side.
  const data = JSON.parse(document.getElementById("answers").textContent);

  // The pieces of a text: [from, to, class], cut where blocks and the first difference begin.
  function piecesOf(answer, text) {
    const pieces = [];
    let at = 0;
    const push = (length, className) => {
      for (const end of [answer.cut, at + length]) {
        if (end !== null && end > at && end <= at + length && (end === answer.cut || end === at + length)) {
          pieces.push([at, end, className]);
          length -= end - at;
          at = end;
        }
      }
    };
    (answer.spans || []).forEach(([accepted, own], step) => {
      push(accepted, step % 2 ? "accepted odd" : "accepted");
      push(own, step ? "own" : "");
    });
    push(text.length - at, "");
    return pieces;
  }
  function fill(place, answer) {
    const text = data.texts[answer.text];
    const cut = answer.cut;
    let marked = cut === null;
    const mark = () => {
      const sign = make("span", "cut");
      sign.title = "the first difference";
      sign.setAttribute("role", "img");
      sign.setAttribute("aria-label", "first difference:");
      place.append(sign);
      marked = true;
    };
    for (const [from, to, className] of piecesOf(answer, text)) {
      if (!marked && from >= cut) mark();
      const late = cut !== null && from >= cut ? " after" : "";
      place.append(make("span", (className + late).trim(), text.slice(from, to)));
    }
    if (!marked) mark();
  }
  function side(title, answer) {
    const box = make("div", "side");
    box.append(make("h4", "", title));
    box.append(make("p", "quiet", `${answer.tokens} tokens${answer.stop_reason ? `, ended by ${answer.stop_reason}` : ""}`));
    const said = make("div", "said");
    said.dir = "auto";
    said.tabIndex = 0;
    fill(said, answer);
    box.append(said);
    if (!answer.spans && answer.steps.length) {
      const strip = make("div", "strip");
      strip.setAttribute("role", "img");
      strip.setAttribute("aria-label", "tokens of each step; coloured where drafted ones were accepted");
      for (const [accepted, committed] of answer.steps) strip.append(make("span", accepted ? "accepted" : "", committed));
      box.append(strip, make("p", "quiet", "Tokens of each step; coloured where drafted ones were accepted."));
    }
    return box;
  }
  const short = (value) => (Math.abs(value) >= 0.001 || value === 0 ? value.toFixed(4) : value.toExponential(2));
  function evidence(entry) {
    const parts = [entry.verdict || "no verdict"];
    if (entry.first_divergence !== null) parts.push(`first difference at token ${entry.first_divergence} (counted from 0)`);
    if (entry.margin !== null) parts.push(`margin of the target there ${short(entry.margin)}`);
    if (entry.noise !== null) parts.push(`noise ${short(entry.noise)}`);
    return parts.join("; ");
  }
  function judgement(said) {
    const order = said.order ? `, ${said.order.replace("_", " ")}` : "";
    const against = said.baseline_score === null ? "" : `, the baseline ${said.baseline_score}`;
    const given = said.unreadable || (said.score === null ? "a tie: the texts are the same" : `${said.score}${against}`);
    const box = make("details", "judgement");
    box.append(make("summary", "", `${said.judge}${order}: ${given}`), make("div", "said", said.reply || "It wrote nothing."));
    return box;
  }
  function legend() {
    const words = make("p", "quiet legend");
    words.append(make("span", "swatch accepted", "accepted"), make("span", "swatch accepted odd", "accepted by the next step"));
    words.append(make("span", "swatch own", "the target's own token"), make("span", "swatch after", "after the first difference"));
    return words;
  }
  function setUpViewer(place) {
    const own = data.answers.filter((entry) => entry.group === Number(place.dataset.viewer));
    const methods = [...new Set(own.map((entry) => entry.place.label))];
    const choice = (title) => {
      const label = make("label", "", title);
      const select = make("select");
      label.append(select);
      return [label, select];
    };
    const [methodLabel, methodSelect] = choice("Method");
    const [promptLabel, promptSelect] = choice("Answer");
    for (const label of methods) methodSelect.append(make("option", "", label));
    const before = make("button", "", "previous");
    const after = make("button", "", "next");
    before.type = after.type = "button";
    const bar = make("div", "bar-of-choices");
    bar.append(methodLabel, promptLabel, before, after);
    const said = make("p", "verdict");
    said.setAttribute("aria-live", "polite");
    const sides = make("div", "sides");
    let entries = [];
    const show = () => {
      const at = promptSelect.selectedIndex;
      const entry = entries[at];
      before.disabled = at <= 0;
      after.disabled = at >= entries.length - 1;
      said.textContent = evidence(entry);
      sides.replaceChildren(side("baseline", entry.baseline), side(entry.place.label, entry.answer));
      judged.replaceChildren(...entry.judgements.map(judgement));
    };
    const choose = () => {
      entries = own.filter((entry) => entry.place.label === methodSelect.value);
      promptSelect.replaceChildren(...entries.map((entry) => {
        const turn = entry.place.turn ? `, turn ${entry.place.turn + 1}` : "";
        return make("option", "", `${entry.verdict || "?"}: ${entry.place.suite} ${entry.place.prompt_id}${turn}`);
      }));
      promptSelect.selectedIndex = 0;
      show();
    };
    const move = (step) => { promptSelect.selectedIndex += step; show(); };
    methodSelect.addEventListener("change", choose);
    promptSelect.addEventListener("change", show);
    before.addEventListener("click", () => move(-1));
    after.addEventListener("click", () => move(1));
    const judged = make("div", "judged");
    place.replaceChildren(bar, said, legend(), sides, judged);
    const telling = own.find((entry) => entry.answer.cut !== null);
    if (telling) methodSelect.value = telling.place.label;
    choose();
  }

  document.querySelectorAll(".group").forEach(setUpToggles);
  document.querySelectorAll("table").forEach(setUpSorting);
  document.querySelectorAll("[data-viewer]").forEach(setUpViewer);
})();
