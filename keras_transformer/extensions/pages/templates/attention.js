"use strict";

// The data: {attentions: {encoder: {queries, keys, layers, heads, weights}, …}}. `weights` are
// bytes in base64, with 255 for 1, in the order layers, heads, queries, keys.
const data = JSON.parse(document.getElementById("data").textContent);
const form = document.getElementById("choice");
const SVG = "http://www.w3.org/2000/svg";
const LISTED = 12; // weights in the table
const FAINT = 0.01; // the smallest weight that is drawn as a line

for (const attention of Object.values(data.attentions)) {
  attention.bytes = Uint8Array.from(atob(attention.weights), (sign) => sign.charCodeAt(0));
}

let attention; // the attention on display
let weights; // its weights: a row for each query, with a number for each key
let pinned = null; // {side: "queries" | "keys", index}, the token to show when the pointer leaves

const percent = (weight) => `${Math.round(100 * weight)} %`;

function element(name, attributes = {}, text = "") {
  const isDrawn = ["svg", "g", "line", "rect", "text"].includes(name);
  const made = isDrawn ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

// Returns the weights of a head of a layer. Head -1 is the mean of all heads.
function read({ bytes, heads, queries, keys }, layer, head) {
  const some = head < 0 ? [...Array(heads).keys()] : [head];
  const at = (h, q, k) => bytes[((layer * heads + h) * queries.length + q) * keys.length + k];
  return queries.map((_, q) =>
    keys.map((_, k) => some.reduce((sum, h) => sum + at(h, q, k), 0) / some.length / 255));
}

function setOptions(select, options) {
  const before = select.value;
  select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
  if (options.some(([value]) => value === before)) select.value = before;
}

function show() {
  attention = data.attentions[form.elements.kind.value];
  const numbers = (count) => [...Array(count).keys()].map((i) => [String(i), String(i + 1)]);
  setOptions(form.elements.layer, numbers(attention.layers));
  setOptions(form.elements.head, [["-1", "mean of all"], ...numbers(attention.heads)]);
  weights = read(attention, Number(form.elements.layer.value), Number(form.elements.head.value));
  const most = Math.max(attention.queries.length, attention.keys.length);
  const row = most <= 24 ? 24 : most <= 40 ? 19 : 15;
  const letters = Math.max(11, Math.min(15, row - 5));
  const longest = Math.max(...attention.keys.map((key) => [...key].length));
  const above = 14 + 0.62 * letters * longest;
  const style = document.documentElement.style;
  style.setProperty("--row", `${row}px`);
  style.setProperty("--letters", `${letters}px`);
  style.setProperty("--above", `${above}px`);
  style.setProperty("--most", most);
  for (const side of ["queries", "keys"]) fillTokens(side);
  drawMatrix(row, above);
  choose(pinned);
}

function fillTokens(side) {
  const list = document.getElementById(side);
  list.replaceChildren(...attention[side].map((token, index) => {
    const button = element("button", { type: "button", "data-index": index, tabindex: index ? -1 : 0 }, token);
    const item = element("li");
    item.append(button);
    return item;
  }));
}

function drawMatrix(row, above) {
  const { queries, keys } = attention;
  const [width, height] = [keys.length * row, queries.length * row];
  const svg = document.getElementById("matrix");
  svg.setAttribute("viewBox", `0 ${-above} ${width} ${height + above}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", height + above);
  const cells = element("g", { class: "cells" });
  weights.forEach((line, q) => line.forEach((weight, k) => {
    if (weight >= 0.002) {
      const at = { x: k * row, y: q * row, width: row, height: row, "fill-opacity": weight.toFixed(3) };
      cells.append(element("rect", at));
    }
  }));
  const labels = keys.map((key, k) => {
    const place = `translate(${(k + 0.5) * row + 4} -6) rotate(-90)`;
    return element("text", { transform: place }, key);
  });
  const frame = element("rect", { class: "frame", x: 0, y: 0, width, height });
  svg.replaceChildren(cells, frame, ...labels, element("rect", { class: "chosen", visibility: "hidden" }));
}

// Draws the lines of a chosen token and lists its weights. Without a token, draws all lines.
function choose(chosen) {
  const { queries, keys } = attention;
  if (chosen && chosen.index >= attention[chosen.side].length) chosen = null;
  const other = chosen && (chosen.side === "queries" ? "keys" : "queries");
  const of = chosen && (chosen.side === "queries"
    ? weights[chosen.index] : weights.map((line) => line[chosen.index]));
  const row = parseFloat(document.documentElement.style.getPropertyValue("--row"));

  const lines = document.getElementById("lines");
  const most = Math.max(queries.length, keys.length);
  lines.setAttribute("viewBox", `0 0 100 ${most * row}`);
  const drawn = [];
  weights.forEach((line, q) => line.forEach((weight, k) => {
    const isOf = !chosen || chosen.index === (chosen.side === "queries" ? q : k);
    if (isOf && weight >= FAINT) {
      const at = { x1: 0, x2: 100, y1: (q + 0.5) * row, y2: (k + 0.5) * row };
      drawn.push(element("line", { ...at, "stroke-opacity": weight.toFixed(3) }));
    }
  }));
  lines.replaceChildren(...drawn);

  for (const side of ["queries", "keys"]) {
    document.getElementById(side).querySelectorAll("button").forEach((button, index) => {
      const weight = side === other ? of[index] : 0;
      const is = (choice) => Boolean(choice && choice.side === side && choice.index === index);
      button.classList.toggle("chosen", is(chosen));
      button.setAttribute("aria-pressed", is(pinned));
      const share = Math.round(55 * weight);
      button.style.background = weight < FAINT
        ? "" : `color-mix(in srgb, var(--training) ${share}%, transparent)`;
    });
  }
  const mark = document.querySelector("#matrix .chosen");
  mark.setAttribute("visibility", chosen ? "visible" : "hidden");
  if (chosen) {
    const isRow = chosen.side === "queries";
    mark.setAttribute("x", isRow ? 0 : chosen.index * row);
    mark.setAttribute("y", isRow ? chosen.index * row : 0);
    mark.setAttribute("width", isRow ? keys.length * row : row);
    mark.setAttribute("height", isRow ? row : queries.length * row);
  }
  list(chosen, other, of);
}

function list(chosen, other, of) {
  const title = document.getElementById("of");
  const body = document.querySelector("#weights tbody");
  const said = document.getElementById("said");
  document.querySelector("#weights table").hidden = !chosen;
  document.getElementById("help").hidden = Boolean(chosen);
  if (!chosen) {
    title.textContent = "";
    said.textContent = "";
    body.replaceChildren();
    return;
  }
  const order = of.map((weight, index) => [weight, index]).sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  const largest = order.slice(0, LISTED).filter(([weight]) => weight >= 0.005);
  const does = chosen.side === "queries" ? "attends to" : "is attended to by";
  title.textContent = `${attention[chosen.side][chosen.index]} ${does}`;
  body.replaceChildren(...largest.map(([weight, index]) => {
    const line = element("tr");
    line.append(element("td", { class: "number" }, percent(weight)),
      element("td", {}, attention[other][index]),
      element("td", { class: "number muted" }, String(index + 1)));
    return line;
  }));
  const first = largest.slice(0, 3).map(([w, i]) => `${attention[other][i]} ${percent(w)}`);
  said.textContent = `${title.textContent} ${first.join(", ")}`;
}

// Returns the token at the pointer or the keyboard focus.
function tokenAt(event) {
  const button = event.target.closest(".drawing button");
  if (!button) return null;
  return { side: button.closest("ol").id, index: Number(button.dataset.index) };
}

function rowAt(event) {
  const svg = document.getElementById("matrix");
  const row = parseFloat(document.documentElement.style.getPropertyValue("--row"));
  const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const index = Math.floor(point.y / row);
  return index >= 0 && index < attention.queries.length ? { side: "queries", index } : null;
}

function pin(chosen) {
  const isSame = pinned && chosen && pinned.side === chosen.side && pinned.index === chosen.index;
  pinned = isSame ? null : chosen;
  choose(pinned || chosen);
}

form.addEventListener("change", () => {
  const kind = form.elements.kind.value;
  if (attention !== data.attentions[kind]) pinned = null; // which belongs to other tokens
  show();
});
form.addEventListener("submit", (event) => event.preventDefault());
for (const side of ["queries", "keys"]) {
  const tokens = document.getElementById(side);
  tokens.addEventListener("pointerover", (event) => { if (tokenAt(event)) choose(tokenAt(event)); });
  tokens.addEventListener("pointerleave", () => choose(pinned));
  tokens.addEventListener("focusin", (event) => choose(tokenAt(event)));
  tokens.addEventListener("focusout", () => choose(pinned));
  tokens.addEventListener("click", (event) => { if (tokenAt(event)) pin(tokenAt(event)); });
  tokens.addEventListener("keydown", (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const buttons = [...tokens.querySelectorAll("button")];
    const index = tokenAt(event).index + steps[event.key];
    const next = buttons[Math.max(0, Math.min(buttons.length - 1, index))];
    for (const button of buttons) button.tabIndex = button === next ? 0 : -1;
    next.focus();
  });
}
const matrix = document.getElementById("matrix");
matrix.addEventListener("pointermove", (event) => choose(rowAt(event) || pinned));
matrix.addEventListener("pointerleave", () => choose(pinned));
matrix.addEventListener("click", (event) => { if (rowAt(event)) pin(rowAt(event)); });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    pinned = null;
    choose(null);
  }
});
show();
