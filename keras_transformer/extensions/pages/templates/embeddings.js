"use strict";

// The data: {points: [[x, y], …], sentences: […]}.
const { points, sentences } = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 800;
const HEIGHT = 600;
const MARGIN = 20;

const plot = document.getElementById("points");
const list = document.getElementById("sentences");
const find = document.querySelector("#choice input");

// Returns a function from a coordinate to its position in the plot.
function scale(axis, from, to) {
  const values = points.map((point) => point[axis]);
  const [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  return (value) => from + ((to - from) * (value - low)) / (high - low || 1);
}

plot.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
const x = scale(0, MARGIN, WIDTH - MARGIN);
const y = scale(1, HEIGHT - MARGIN, MARGIN);
const circles = points.map(([across, up], index) => {
  const circle = document.createElementNS(SVG, "circle");
  const at = { cx: x(across).toFixed(1), cy: y(up).toFixed(1), r: 5, "data-index": index };
  for (const [name, value] of Object.entries(at)) circle.setAttribute(name, value);
  return circle;
});
plot.append(...circles);
const buttons = sentences.map((sentence, index) => {
  const button = document.createElement("button");
  button.type = "button";
  button.dataset.index = index;
  button.textContent = sentence;
  const item = document.createElement("li");
  item.append(button);
  list.append(item);
  return button;
});

let chosen = null;

function choose(index) {
  for (const each of chosen === null ? [] : [circles[chosen], buttons[chosen]]) {
    each.classList.remove("chosen");
  }
  chosen = index;
  circles[index].classList.add("chosen");
  buttons[index].classList.add("chosen");
  document.getElementById("sentence").textContent = `${index + 1}. ${sentences[index]}`;
}

function indexOf(event) {
  const index = event.target.dataset.index;
  return index === undefined ? null : Number(index);
}

for (const [place, kinds] of [[plot, ["pointerover", "click"]], [list, ["pointerover", "focusin"]]]) {
  for (const kind of kinds) {
    place.addEventListener(kind, (event) => {
      const index = indexOf(event);
      if (index === null) return;
      choose(index);
      if (kind === "click") buttons[index].scrollIntoView({ block: "nearest" });
    });
  }
}
document.getElementById("choice").addEventListener("submit", (event) => event.preventDefault());
find.addEventListener("input", () => {
  const words = find.value.toLowerCase();
  const are = sentences.map((sentence) => words !== "" && sentence.toLowerCase().includes(words));
  are.forEach((is, index) => {
    circles[index].classList.toggle("found", is);
    buttons[index].classList.toggle("found", is);
  });
  const count = are.filter(Boolean).length;
  document.getElementById("found").textContent = words && `${count} of ${sentences.length}`;
  if (count) buttons[are.indexOf(true)].scrollIntoView({ block: "nearest" });
});
