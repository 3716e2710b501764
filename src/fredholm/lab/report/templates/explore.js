// The interactive figure of a report: pick a query point, see its row of the kernel.
// It reads the numbers in the figure's own data-kernel attribute, and loads nothing.
"use strict";
for (const figure of document.querySelectorAll(".explore")) {
  const kernel = JSON.parse(figure.dataset.kernel);
  const bytes = Uint8Array.from(atob(kernel.weights), (sign) => sign.charCodeAt(0));
  const signed = new Int8Array(bytes.buffer);
  const count = kernel.names.length;
  const stage = figure.querySelector(".stage");
  const told = figure.querySelector(".told");
  const sliders = { layer: figure.querySelector("[name=layer]"), head: figure.querySelector("[name=head]") };
  const points = kernel.names.map(makePoint);
  let query = kernel.query;

  function makePoint(name, index) {
    const point = document.createElement("span");
    point.className = "point";
    point.tabIndex = index === kernel.query ? 0 : -1;
    point.setAttribute("role", "button");
    point.setAttribute("aria-label", name);
    if (kernel.layout === "words") point.textContent = name;
    if (kernel.layout === "line") point.append(document.createElement("i"));
    if (kernel.places) {
      point.style.left = `${100 * kernel.places[index][0]}%`;
      point.style.top = `${100 * kernel.places[index][1]}%`;
    }
    point.addEventListener("mouseenter", () => choose(index));
    point.addEventListener("focus", () => choose(index));
    stage.append(point);
    return point;
  }

  // One query's weights: signed bytes times the row's scale.
  function row() {
    const start = (Number(sliders.layer.value) * kernel.heads + Number(sliders.head.value)) * count + query;
    const scale = kernel.scales[start];
    return Array.from(signed.subarray(start * count, (start + 1) * count), (byte) => (byte / 127) * scale);
  }

  function choose(index) {
    points[query].classList.remove("query");
    points[query].tabIndex = -1;
    query = index;
    points[query].classList.add("query");
    points[query].tabIndex = 0;
    draw();
  }

  function draw() {
    const weights = row();
    const largest = Math.max(...weights.map(Math.abs)) || 1;
    weights.forEach((weight, index) => {
      points[index].style.setProperty("--w", (Math.abs(weight) / largest).toFixed(4));
      points[index].classList.toggle("negative", weight < 0);
    });
    for (const [name, slider] of Object.entries(sliders)) {
      const place = Number(slider.value);
      const shown = name === "layer" ? kernel.layers[place] : `head ${place + 1}`;
      slider.nextElementSibling.textContent = shown;
      slider.setAttribute("aria-valuetext", shown);
    }
    const order = weights.map((_, index) => index).sort((a, b) => Math.abs(weights[b]) - Math.abs(weights[a]));
    // Weights below a hundredth of the largest are not worth naming.
    const named = order.slice(0, 3).filter((index) => Math.abs(weights[index]) >= largest / 100);
    const most = named.map((index) => `${kernel.names[index]} (${weights[index].toPrecision(3)})`);
    told.textContent = `${kernel.names[query]} takes most from ${most.join(", ")}.`;
  }

  stage.addEventListener("keydown", (event) => {
    const across = kernel.columns || 1;
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across };
    let next = query + (moves[event.key] || 0);
    if (event.key === "Home") next = 0;
    if (event.key === "End") next = count - 1;
    if (next === query || next < 0 || next >= count) return;
    event.preventDefault();
    points[next].focus();
  });
  for (const slider of Object.values(sliders)) slider.addEventListener("input", draw);
  choose(query);
  figure.hidden = false;
}
